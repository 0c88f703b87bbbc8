"""The known name that a wrong one was meant to be, when that is nearly certain.

Every ``did you mean`` asks here. A bold guess is worse than none: whoever wrote `nope` did not mean the policy `none`, and
reads past the list of what there is.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

CLOSE = 0.8
"""Of difflib's ratio; names of four letters that differ in one have 0.75, as have those with two letters swapped."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The closest of ``known``, or one of the same letters, whatever its case; None when none is close."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=CLOSE)
    if not close:
        close = [each for each in by_lower if name and sorted(each) == sorted(name.lower())]
    return by_lower[close[0]] if close else None
