"""How every command of lmperf answers to wrong flags: usage and one message on stderr, and the documented exit code."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

BAD_USAGE = 104
"""A bad configuration, as for every other one; argparse's own 2 is the shell's."""


class UsageParser(argparse.ArgumentParser):
    """Sub-commands made by ``add_subparsers`` are of this class too."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(BAD_USAGE, f"{self.prog}: {message}\n")
