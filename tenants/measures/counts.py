"""Which count of tokens is believed: a whole number that the columns of a run can hold.

Counts are told by servers and by files of others, and what is told may be anything. Whatever is no such number counts as not
told, wherever it comes in: unknown is null, and neither a number that wrapped nor a run that broke.
"""

from __future__ import annotations

import numpy as np

COUNT_TYPE = np.int32
"""What the columns of a run hold counts of tokens in."""

MOST_TOKENS = int(np.iinfo(COUNT_TYPE).max)


def believed(value: object) -> int | None:
    """``value`` as a count of tokens; None for what is not an int from 0 to MOST_TOKENS. A bool is none."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
