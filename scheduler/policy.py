"""The Policy protocol: in which order queued requests leave the queue.

A policy is deterministic: same calls, same answers. Ties are broken by (arrival_ns, id). No method blocks, reads a clock
or logs. The same object runs in the load generator, in the gateway, inside vLLM and in the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from scheduler.request import Request
from tenants.tenant import Tenant


class Policy(Protocol):
    """See the module docstring for the rules that every method keeps.

    Accounts change in ``select``, ``requeue``, ``on_progress`` and ``on_finish`` only. ``peek`` charges nothing, and its
    result is held until ``select`` or another event (engines peek, allocate memory, then pop), also as time passes.
    ``wants_progress``: ``on_progress`` means something to it; ``sheds``: ``expired`` may return something.
    """

    @property
    def wants_progress(self) -> bool: ...

    @property
    def sheds(self) -> bool: ...

    def set_tenants(self, tenants: Sequence[Tenant], now_ns: int) -> None:
        """Replace the configuration; queued requests and accounts of tenants that stay are kept."""

    def enqueue(self, request: Request, now_ns: int) -> None:
        """Add a request. Its tenant must be configured (KeyError) and its id not queued (ValueError)."""

    def select(self, now_ns: int) -> Request | None:
        """Pop the next request and charge its tenant; None when nothing is queued."""

    def peek(self, now_ns: int) -> Request | None:
        """The request that ``select`` would pop now; held (see the class)."""

    def cancel(self, request_id: int, now_ns: int) -> bool:
        """Remove a queued request, at most O(log n); False when it is not queued."""

    def requeue(self, request: Request, now_ns: int) -> None:
        """Undo ``select``: the request is queued again and its tenant's charge refunded."""

    def on_first_token(self, request_id: int, now_ns: int) -> None:
        """A dispatched request gave its first token."""

    def on_progress(self, request_id: int, new_tokens: int, now_ns: int) -> None:
        """A dispatched request gave ``new_tokens`` more output tokens."""

    def on_progress_many(self, counts: Sequence[tuple[int, int]], now_ns: int) -> None:
        """``on_progress`` for several (request id, new tokens) at once, in that order."""

    def on_finish(self, request_id: int, prompt_tokens: int, output_tokens: int, now_ns: int) -> None:
        """A dispatched request ended, however it ended; the counts are the truth, for the correction of its charge."""

    def expired(self, now_ns: int) -> list[Request]:
        """Remove and return requests that ``late: shed`` gives up."""

    def next_wakeup_ns(self) -> int | None:
        """When ``expired`` should be asked again, if ever."""

    def snapshot(self) -> dict[str, object]:
        """The state as plain data, for logs, tests and the status page."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...
