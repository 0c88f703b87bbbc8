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

    A policy that charges tokens as they come has *token accounts*: requests of one account are charged alike, so that their
    tokens may be reported in sum. Reports must be in before ``enqueue``, ``select`` and ``peek``, which read the accounts.
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

    def account_of(self, request_id: int) -> int:
        """The account that a dispatched request's tokens are to be reported under; 0: under none. Fixed by ``select``."""

    def requeue(self, request: Request, now_ns: int, reported_tokens: int = 0) -> None:
        """Undo ``select``: the request is queued again and its tenant's charge refunded, with that of the
        ``reported_tokens`` that the request gave since and that ``on_progress`` was told of."""

    def on_first_token(self, request_id: int, now_ns: int) -> None:
        """A dispatched request gave its first token."""

    def on_progress(self, counts: Sequence[tuple[int, int]], now_ns: int) -> None:
        """(account, new output tokens of its dispatched requests) since the last report; unknown accounts are ignored."""

    def on_finish(
        self, request_id: int, prompt_tokens: int, output_tokens: int, now_ns: int, reported_tokens: int = 0
    ) -> None:
        """A dispatched request ended, however it ended; the counts are the truth, for the correction of its charge.
        ``reported_tokens``: those of its output tokens that ``on_progress`` was told of."""

    def expired(self, now_ns: int) -> list[Request]:
        """Remove and return requests that ``late: shed`` gives up."""

    def next_wakeup_ns(self) -> int | None:
        """When ``expired`` should be asked again, if ever."""

    def snapshot(self) -> dict[str, object]:
        """The state as plain data, for logs, tests and the status page."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...
