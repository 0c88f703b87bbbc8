"""The prefix cache of an engine: which blocks of KV are resident, who holds them, and which goes first.

The rules are those of vLLM's V1 engine, in tokens instead of pages:

* Only *full* blocks of a prompt are shared, by name (:class:`scheduler.request.Request` carries the names of its prompt's
  blocks; equal names mean equal text). A request that enters the batch takes the longest run of its leading blocks that is
  resident, but never the whole of what it has to prefill: at least one token is computed, to have something to sample from.
* A block can be shared from the moment its tokens are *scheduled* for prefill: the step computes it before it is read.
* Sequences in the batch hold their blocks; a block held by several is resident once.
* A block that nobody holds any more stays until the room is needed: least recently released first, and of one sequence's
  blocks the last of the prompt first, since those are the least likely to be shared.

What has no name cannot be found again and is given up with its sequence (an engine would keep it until its turn to be
evicted, so a nearly full cache is modelled as somewhat kinder to shared blocks). That holds for what an answer adds: a
conversation's next turn prefills the previous answer. It also holds for a block that a sequence computes although another
copy is resident (both were under way).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from scheduler.request import Request

BLOCK_TOKENS = 16
"""A block where nobody says otherwise: vLLM's default."""


class _Holding:
    """``blocks``: what a sequence in the batch holds; ``seen``: how many of its prompt's blocks have been computed."""

    __slots__ = ("blocks", "full", "seen")

    def __init__(self, blocks: list[int], full: int) -> None:
        self.blocks = blocks
        self.full = full
        self.seen = len(blocks)


class PrefixCache:
    """Blocks of ``block_tokens`` tokens. Deterministic; every operation is O(blocks of the request), eviction O(evicted).

    Releases take effect with :meth:`settle`: a driver that jumps over many steps learns of an abort before it has accounted
    for the steps before it, and both must evict the same blocks.
    """

    def __init__(self, block_tokens: int) -> None:
        if block_tokens < 1:
            raise ValueError(f"a block holds at least one token, got {block_tokens}")
        self.block_tokens = block_tokens
        self._holders: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._released: list[int] = []
        self._held: dict[int, _Holding] = {}
        self.shared_tokens = 0

    @property
    def idle_tokens(self) -> int:
        """Tokens in blocks that nobody holds."""
        return len(self._idle) * self.block_tokens

    def resident(self) -> frozenset[int]:
        """The names of all blocks that could be shared now."""
        return frozenset(self._holders)

    def hits(self, request: Request, to_prefill: int) -> tuple[int, int]:
        """(blocks that are resident at the front of the prompt, how many of them nobody holds), for a sequence that has
        ``to_prefill`` tokens to compute and keeps at least one of them."""
        found = idle = 0
        holders = self._holders
        most = min(self._full(request), (to_prefill - 1) // self.block_tokens)
        for name in request.prefix_blocks[:most]:
            holding = holders.get(name)
            if holding is None:
                break
            found += 1
            idle += holding == 0
        return found, idle

    def hold(self, request: Request, hits: int) -> None:
        """The request enters the batch with its first ``hits`` blocks, which are resident."""
        names = request.prefix_blocks[:hits]
        for name in names:
            holding = self._holders[name]
            self._holders[name] = holding + 1
            if holding:
                self.shared_tokens += self.block_tokens
            else:
                del self._idle[name]
        self._held[request.id] = _Holding(list(names), self._full(request))

    def computed(self, request: Request, context: int) -> None:
        """The first ``context`` tokens of the request are computed, or will be by the step that is being planned."""
        holding = self._held[request.id]
        full = min(holding.full, context // self.block_tokens)
        for name in request.prefix_blocks[holding.seen : full]:
            if name not in self._holders:
                self._holders[name] = 1
                holding.blocks.append(name)
        holding.seen = max(holding.seen, full)

    def release(self, request_id: int) -> None:
        """The request left the batch."""
        for name in reversed(self._held.pop(request_id).blocks):
            holding = self._holders[name] = self._holders[name] - 1
            if holding:
                self.shared_tokens -= self.block_tokens
            else:
                self._released.append(name)

    def settle(self) -> None:
        """What was released can be evicted from now on."""
        for name in self._released:
            self._idle[name] = None
        self._released.clear()

    def fit(self, room: int) -> None:
        """Evict until what nobody holds takes at most ``room`` tokens."""
        while self._idle and len(self._idle) * self.block_tokens > room:
            name, _ = self._idle.popitem(last=False)
            del self._holders[name]

    def _full(self, request: Request) -> int:
        return min(len(request.prefix_blocks), request.prompt_tokens // self.block_tokens)


class KnownHits(PrefixCache):
    """How much of each prompt is found is told, ``tokens`` by request id, where a server was seen to find it; whose blocks they
    were is not known, so nothing is shared or kept."""

    def __init__(self, tokens: Mapping[int, int]) -> None:
        super().__init__(1)
        self._tokens = tokens

    def hits(self, request: Request, to_prefill: int) -> tuple[int, int]:
        found = min(self._tokens.get(request.id, 0), to_prefill - 1)
        return found, found

    def hold(self, request: Request, hits: int) -> None:
        pass

    def computed(self, request: Request, context: int) -> None:
        pass

    def release(self, request_id: int) -> None:
        pass
