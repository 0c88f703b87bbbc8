"""Which prefix blocks each server was sent: what a router knows of their caches without asking them.

It is a guess: a server may have evicted a block that is here, and may hold one that is not. Of each server the most recently
sent blocks are kept; of one prompt the last go first, as in a server's own cache (:mod:`scheduler.server_model.prefix_cache`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class PrefixIndex:
    """At most ``blocks`` names of each server. Deterministic; every operation is O(blocks of the prompt)."""

    def __init__(self, blocks: int) -> None:
        self._most = blocks
        self._sent: dict[str, OrderedDict[int, None]] = {}

    def match(self, server: str, blocks: Sequence[int]) -> int:
        """How many of the leading ``blocks`` the server was sent."""
        known = self._sent.get(server)
        if known is None:
            return 0
        found = 0
        for block in blocks:
            if block not in known:
                break
            found += 1
        return found

    def sent(self, server: str, blocks: Sequence[int]) -> None:
        """A prompt with these leading blocks went to ``server``."""
        known = self._sent.setdefault(server, OrderedDict())
        for block in reversed(blocks):
            known[block] = None
            known.move_to_end(block)
        while len(known) > self._most:
            known.popitem(last=False)

    def forget(self, server: str) -> None:
        """The server's cache is empty."""
        self._sent.pop(server, None)
