"""``python -m backends.emulator``: the embedded server in a process of its own."""

import sys

from backends.emulator.cli import main

sys.exit(main())
