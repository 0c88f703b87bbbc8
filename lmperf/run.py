"""``python -m lmperf.run`` is ``lmperf run``: the same flags."""

import sys

from lmperf.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
