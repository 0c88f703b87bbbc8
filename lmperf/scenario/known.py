"""What is installed, as far as a scenario's names are checked against it. Filled in by the command line's wiring."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """None: not known here, so not checked. ``check_policy(name, options)`` raises ValueError for options that the
    policy does not take, and says what would be right; it is not asked about ``none``.
    """

    policies: Collection[str] | None = None
    backends: Collection[str] | None = None
    trace_formats: Collection[str] | None = None
    check_policy: Callable[[str, Mapping[str, object]], object] | None = None
