"""What the parent and a worker say to each other: batches of these, in order, over one socket a worker.

Times are ns since the run's start, by the monotonic clock that all processes of a host share. A worker's events are the
dispatcher's own; what the dispatcher answers travels without the request, which the worker has.
"""

from __future__ import annotations

import msgspec

from scheduler.events import (
    AbortReason,
    Arrived,
    BackendState,
    Cancelled,
    DispatchFailed,
    Finished,
    FirstToken,
    Progress,
    RejectReason,
)
from scheduler.slot_control import Pace


class Ready(msgspec.Struct, frozen=True, tag_field="type", tag="ready"):
    """Prompts are prepared and sockets open."""


class Standing(msgspec.Struct, frozen=True, tag_field="type", tag="standing"):
    """Where the worker's run stands, in requests."""

    done: int
    queued: int
    in_flight: int
    failed: int


class Ended(msgspec.Struct, frozen=True, tag_field="type", tag="ended"):
    """The run is over; ``report`` is a pickled :class:`loadgen.workers.report.WorkerReport`."""

    report: bytes


class Broken(msgspec.Struct, frozen=True, tag_field="type", tag="broken"):
    """A part of lmperf failed in the worker: one line on what, and the traceback."""

    error: str
    traceback: str


class Unreached(msgspec.Struct, frozen=True, tag_field="type", tag="unreached"):
    """A request did not reach its backend; ``requeued``: and is in the queue again."""

    backend: str
    requeued: bool


QueueEvent = Arrived | FirstToken | Progress | Finished | Cancelled | DispatchFailed
FromWorker = QueueEvent | Pace | Unreached | Ready | Standing | Ended | Broken


class Job(msgspec.Struct, frozen=True, tag_field="type", tag="job"):
    """What the worker is to do, pickled: it holds resolved secrets and goes nowhere but over this socket."""

    job: bytes


class Start(msgspec.Struct, frozen=True, tag_field="type", tag="start"):
    """Time 0 is the instant ``origin_ns`` of the monotonic clock; all workers are told the same."""

    origin_ns: int
    start_utc: str


class Stop(msgspec.Struct, frozen=True, tag_field="type", tag="stop"):
    """No more arrivals; said again: no more waiting either."""


class Granted(msgspec.Struct, frozen=True, tag_field="type", tag="granted"):
    """The request left the queue at ``now_ns``; ``account``: what its tokens are reported under."""

    request_id: int
    backend: str
    account: int
    now_ns: int


class Refused(msgspec.Struct, frozen=True, tag_field="type", tag="refused"):
    """Rejected on arrival, or given up in the queue."""

    request_id: int
    reason: RejectReason
    retry_after_ns: int | None
    now_ns: int


class Aborted(msgspec.Struct, frozen=True, tag_field="type", tag="aborted"):
    """End this dispatched request."""

    request_id: int
    reason: AbortReason


QueueAnswer = Granted | Refused | Aborted
FromParent = QueueAnswer | BackendState | Job | Start | Stop
