"""``python -m backends.gateway``: the gateway in a process of its own."""

import sys

from backends.gateway.cli import main

sys.exit(main())
