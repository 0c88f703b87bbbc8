"""One look for each tenant, the same in every figure and table.

The colours are those of Okabe and Ito (*Color Universal Design*, 2008) that stand out on white and on black alike, told
apart also with red-green and blue-yellow blindness. From the seventh tenant on the colours repeat with other dashes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_COLOURS = ("#0083cc", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


@dataclass(frozen=True, slots=True)
class Look:
    """``key`` names the tenant in the page's own data: it is short, and safe wherever it stands."""

    key: str
    colour: str
    dash: str


def looks_of(tenants: Iterable[str]) -> dict[str, Look]:
    """A look for every name, by the order of their first appearance."""
    looks: dict[str, Look] = {}
    for name in tenants:
        if name not in looks:
            i = len(looks)
            dash = _DASHES[i // len(_COLOURS) % len(_DASHES)]
            looks[name] = Look(f"t{i}", _COLOURS[i % len(_COLOURS)], dash)
    return looks
