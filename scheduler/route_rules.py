"""Which of the servers with room a request goes to: one class a rule. Pure: no clock, no randomness.

``least_work``: the server whose outstanding requests cost least, then the one with fewer of them, then the first configured.

``round_robin``: the next one in configured order after the server chosen last.

``prefix``: of the servers whose work is at most ``slack`` above the least, the one that was sent the longest run of the
prompt's leading blocks; of equals, the least work. What is remembered of a server is what it was sent
(:mod:`scheduler.prefix_index`), as in SGLang's router, which keeps such a tree and turns to the shortest queue when loads
differ by more than a threshold (``sgl-router/src/policies/cache_aware.rs`` at b6f2064: absolute and relative, on counts of
requests, of the most loaded server). Here the bound is one, in cost units, and of the server that would be preferred, so one
overloaded server does not cost the others their prefixes.

``session``: rendezvous hashing (Thaler, Ravishankar, 1998) of the session, else of the first prefix block: one session has
one server while that has room, and its second choice when not; a server that comes or goes moves only its own sessions. A
request with neither goes to the least work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from scheduler.backend_slots import BackendSlots
from scheduler.mixing import MASK, mix
from scheduler.prefix_index import PrefixIndex
from scheduler.request import Request


class LeastWork:
    """The default, and what the other rules fall back on."""

    def choose(self, roomy: Sequence[BackendSlots], request: Request) -> BackendSlots:  # noqa: ARG002 (others read it)
        """One of ``roomy``: the servers with room, at least one, in configured order."""
        return min(roomy, key=BackendSlots.load)

    def placed(self, request: Request, backend: BackendSlots) -> None:
        """``request`` was sent to ``backend``."""

    def lost(self, name: str) -> None:
        """The server went down, and its prefix cache with it."""


class RoundRobin(LeastWork):
    """``names``: all servers in configured order; it may grow."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = names
        self._last = ""

    def choose(self, roomy: Sequence[BackendSlots], request: Request) -> BackendSlots:  # noqa: ARG002 (others read it)
        place = {name: number for number, name in enumerate(self._names)}
        last = place.get(self._last, -1)
        return next((backend for backend in roomy if place[backend.name] > last), roomy[0])

    def placed(self, request: Request, backend: BackendSlots) -> None:  # noqa: ARG002 (others read it)
        self._last = backend.name


class LongestPrefix(LeastWork):
    """``slack``: thousandths of a cost unit, None: no bound. ``blocks``: how many are remembered of each server."""

    def __init__(self, slack: float | None, blocks: int) -> None:
        self._slack = slack
        self._index = PrefixIndex(blocks)

    def choose(self, roomy: Sequence[BackendSlots], request: Request) -> BackendSlots:
        blocks = request.prefix_blocks
        if not blocks:
            return super().choose(roomy, request)
        near = roomy
        if self._slack is not None:
            most = min(backend.work for backend in roomy) + self._slack
            near = [backend for backend in roomy if backend.work <= most]
        return min(near, key=lambda backend: (-self._index.match(backend.name, blocks), backend.load()))

    def placed(self, request: Request, backend: BackendSlots) -> None:
        if request.prefix_blocks:
            self._index.sent(backend.name, request.prefix_blocks)

    def lost(self, name: str) -> None:
        self._index.forget(name)


class BySession(LeastWork):
    """See the module docstring."""

    def __init__(self) -> None:
        self._salts: dict[str, int] = {}

    def choose(self, roomy: Sequence[BackendSlots], request: Request) -> BackendSlots:
        if request.session_id is not None:
            key = _hash(f"{request.tenant}\0{request.session_id}")
        elif request.prefix_blocks:
            key = mix(request.prefix_blocks[0] & MASK)
        else:
            return super().choose(roomy, request)
        return max(roomy, key=lambda backend: mix(key ^ self._salt(backend.name)))

    def _salt(self, name: str) -> int:
        salt = self._salts.get(name)
        if salt is None:
            salt = self._salts[name] = _hash(name)
        return salt


def _hash(text: str) -> int:
    """The same in every process, unlike ``hash``."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())
