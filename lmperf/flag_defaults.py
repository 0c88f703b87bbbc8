"""What flags are where they are not given. Imports nothing: ``--help`` must be instant."""

from __future__ import annotations

from typing import Final

PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9)
READY_TIMEOUT_S: Final = 600.0
LIVE_DURATION_S: Final = 60.0
