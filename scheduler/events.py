"""What goes into the dispatcher (events) and what comes out (actions).

Each is a frozen struct that encodes to one line of JSON with its type in ``type``: a log of them, begun by the full
configuration, replays to the same actions (:mod:`scheduler.event_log`). Plain data that is part of no ring: the garbage
collector does not look at them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from scheduler.request import Request, Status
from tenants.tenant import Tenant


class RejectReason(StrEnum):
    """Why a request was refused or given up before it reached a backend."""

    QUEUE_FULL = "queue_full"
    RATE_LIMIT = "rate_limit"
    TOKEN_LIMIT = "token_limit"  # noqa: S105 (a limit on tokens, not a secret)
    OUT_OF_CONTRACT = "out_of_contract"
    DEADLINE = "deadline"
    TTL = "ttl"
    LATE = "late"
    UNKNOWN_TENANT = "unknown_tenant"
    FIRST_TOKEN_TIMEOUT = "first_token_timeout"  # noqa: S105 (a time-out, not a secret)
    TOTAL_TIMEOUT = "total_timeout"


class AbortReason(StrEnum):
    """Why a dispatched request was ended by us."""

    FIRST_TOKEN_TIMEOUT = "first_token_timeout"  # noqa: S105 (a time-out, not a secret)
    TOTAL_TIMEOUT = "total_timeout"
    CANCELLED = "cancelled"


class Event(msgspec.Struct, frozen=True, tag_field="type", gc=False):
    """Something happened at ``now_ns``."""

    now_ns: int


class Arrived(Event, frozen=True, tag="arrived"):
    request: Request


class PrefillProgress(Event, frozen=True, tag="prefill_progress"):
    """``tokens`` more prompt tokens of a dispatched request are prefilled (known to a simulator only)."""

    request_id: int
    tokens: int


class FirstToken(Event, frozen=True, tag="first_token"):
    """The first token came, so the whole prompt is prefilled."""

    request_id: int


class Progress(Event, frozen=True, tag="progress"):
    """(account, output tokens since the last report of all requests that were dispatched under it): see ``Dispatch``."""

    counts: tuple[tuple[int, int], ...]


class Finished(Event, frozen=True, tag="finished"):
    """A dispatched request ended with ``status``; token counts are the truth as far as known. ``reported_tokens``: those of
    its output tokens that were part of a ``Progress``."""

    request_id: int
    status: Status
    prompt_tokens: int
    output_tokens: int
    reported_tokens: int = 0


class Cancelled(Event, frozen=True, tag="cancelled"):
    """The client gave up; queued or dispatched."""

    request_id: int


class DispatchFailed(Event, frozen=True, tag="dispatch_failed"):
    """A dispatch did not reach its backend; a retryable one returns to the queue, unless it was aborted meanwhile or its
    tenant is gone: then it ends (Expire, or nothing when the client cancelled it). ``elsewhere``: a retry goes to another
    backend, if one has room when its turn comes. ``reported_tokens`` as in ``Finished``."""

    request_id: int
    retryable: bool
    elsewhere: bool = False
    reported_tokens: int = 0


class SlotsChanged(Event, frozen=True, tag="slots_changed"):
    """New slots of one backend; None means unlimited."""

    backend: str
    sequences: int | None
    prefill_tokens: int | None


class BackendState(Event, frozen=True, tag="backend_state"):
    backend: str
    up: bool


class TenantsChanged(Event, frozen=True, tag="tenants_changed"):
    tenants: tuple[Tenant, ...]


class PolicyChanged(Event, frozen=True, tag="policy_changed"):
    """Another policy takes over; queued requests re-enter it in arrival order."""

    name: str
    options: dict[str, object]


class Tick(Event, frozen=True, tag="tick"):
    """A wake-up that was asked for (WakeAt) is due."""


AnyEvent = (
    Arrived
    | PrefillProgress
    | FirstToken
    | Progress
    | Finished
    | Cancelled
    | DispatchFailed
    | SlotsChanged
    | BackendState
    | TenantsChanged
    | PolicyChanged
    | Tick
)


class Action(msgspec.Struct, frozen=True, tag_field="type", gc=False):
    """Something the driver must do now."""


class Dispatch(Action, frozen=True, tag="dispatch"):
    """``account``: what its output tokens are to be reported under, in sum with those of others (``Progress``); 0: nobody
    asks for them."""

    request: Request
    backend: str
    account: int = 0


class Reject(Action, frozen=True, tag="reject"):
    """Refused on arrival (status ``shed``). ``retry_after_ns``: a hint for the client, None when unknown."""

    request_id: int
    reason: RejectReason
    retry_after_ns: int | None = None


class Expire(Action, frozen=True, tag="expire"):
    """Given up while it waited in the queue."""

    request_id: int
    reason: RejectReason


class Abort(Action, frozen=True, tag="abort"):
    """End a dispatched request; the driver answers with Finished."""

    request_id: int
    reason: AbortReason


class WakeAt(Action, frozen=True, tag="wake_at"):
    """Send Tick at ``at_ns`` (replaces the last WakeAt)."""

    at_ns: int


AnyAction = Dispatch | Reject | Expire | Abort | WakeAt
