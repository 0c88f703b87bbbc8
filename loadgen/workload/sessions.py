"""A conversation: the turns of one session, each prompt holding all that was said before.

All lengths are drawn when the session starts, so they do not depend on when its answers come. What a later turn repeats
of an answer is its *drawn* length: the size of a conversation does not depend on where a server stopped.
"""

from __future__ import annotations

import msgspec

from loadgen.workload.blocks import block_names, session_key
from loadgen.workload.streams import TenantStream
from scheduler.request import ArrivalKind, Request

TURN_SHIFT = 40
"""Turn t of the session that began with request i has the id i + (t << 40): known without asking who finished first."""


class Conversation:
    """One session in progress. ``seed`` and ``block_tokens`` are the workload's."""

    __slots__ = (
        "_arrival",
        "_block_tokens",
        "_context",
        "_key",
        "_outputs",
        "_prompts",
        "_stream",
        "first_id",
        "session_id",
    )

    def __init__(self, stream: TenantStream, *, turns: int, first_id: int, seed: int, block_tokens: int) -> None:
        self._stream = stream
        self._arrival = stream.next_index()
        self._prompts, self._outputs = stream.lengths(turns)
        self._context = 0
        self._block_tokens = block_tokens
        self.first_id = first_id
        self.session_id = f"{stream.tenant.name}/{self._arrival}"
        self._key = session_key(seed, self.session_id)

    @property
    def turns(self) -> int:
        return len(self._prompts)

    def turn(self, turn: int, arrival_ns: int) -> Request:
        """The request of ``turn`` (counted from 0). Turns are asked for in order."""
        prompt, output = self._prompts[turn], self._outputs[turn]
        request = self._stream.request(
            self._arrival,
            id=self.first_id + (turn << TURN_SHIFT),
            arrival_ns=arrival_ns,
            prompt=self._context + prompt,
            output=output,
            turn=turn,
        )
        self._context += prompt + output
        shared = request.prefix_blocks
        own = block_names(self._key, len(shared), request.prompt_tokens // self._block_tokens)
        return msgspec.structs.replace(request, session_id=self.session_id, prefix_blocks=(*shared, *own))


def following(request: Request, previous: Request, end_ns: int) -> Request:
    """``request`` marked as the one that came because ``previous`` had ended at ``end_ns``."""
    return msgspec.structs.replace(
        request,
        arrival_kind=ArrivalKind.AFTER,
        after_request_id=previous.id,
        think_ns=request.arrival_ns - end_ns,
    )
