"""A worker that cannot start: what a process without memory, or a broken installation, looks like to the parent."""

import sys

if __name__ == "__main__":
    sys.exit("no room for a worker here")
