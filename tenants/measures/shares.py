"""How a share is written where it is held against a bar: never better than it is.

Of a share that is promised to be high (attainment) the digits are cut: 99.996% is no full 100.0%, and 0.8999 does not read as a
promised 0.9. Of one that is to be low (a spent budget) they are raised. The bar itself is written as it was set.
"""

from __future__ import annotations

import math
from typing import Protocol

_DUST = 1e-9
"""What a product of floats may lack of the whole number that it is, in units of the last digit."""


class Ends(Protocol):
    """An interval's ends; ``high`` None: none was found."""

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float | None: ...


def cut(value: float, digits: int) -> str:
    """``value`` >= 0 with ``digits`` decimals, never more than it is."""
    return f"{math.floor(value * 10**digits + _DUST) / 10**digits:,.{digits}f}"


def raised(value: float, digits: int) -> str:
    """``value`` >= 0 with ``digits`` decimals, never less than it is."""
    return f"{math.ceil(value * 10**digits - _DUST) / 10**digits:,.{digits}f}"


def percent(share: float, digits: int = 1) -> str:
    """A share as a number of percent, cut."""
    return cut(100 * share, digits)


def percent_within(share: float | None, interval: Ends | None, digits: int = 1) -> str:
    """``99.1 [98.7, 99.4]``, all cut, the ends to what is possible at all; ``-`` without a share."""
    if share is None:
        return "-"
    if interval is None:
        return percent(share, digits)
    high = 1.0 if interval.high is None else min(interval.high, 1.0)
    return f"{percent(share, digits)} [{percent(max(interval.low, 0.0), digits)}, {percent(max(high, 0.0), digits)}]"


def promised(target: float) -> str:
    """A promised share as a number of percent, as it was set: ``99``, ``99.95``."""
    return f"{100 * target:.6f}".rstrip("0").rstrip(".")
