"""Seconds and milliseconds of people to ns."""

from __future__ import annotations

from typing import overload


@overload
def ns_of_s(seconds: float) -> int: ...
@overload
def ns_of_s(seconds: None) -> None: ...
def ns_of_s(seconds: float | None) -> int | None:
    """ns, rounded to the nearest; None stays None."""
    return None if seconds is None else round(seconds * 1e9)


@overload
def ns_of_ms(milliseconds: float) -> int: ...
@overload
def ns_of_ms(milliseconds: None) -> None: ...
def ns_of_ms(milliseconds: float | None) -> int | None:
    """ns, rounded to the nearest; None stays None."""
    return None if milliseconds is None else round(milliseconds * 1e6)
