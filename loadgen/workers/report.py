"""What a worker tells at the end of its run, and what several of them come to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from loadgen.live.engine import LiveEnd
from loadgen.live.failures import FailureState
from loadgen.live.lengths import LengthState
from loadgen.live.outage import OutageState
from loadgen.live.watch import OwnLoad
from loadgen.recorder import RecorderState
from tenants.measures.histogram import Histogram


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """Plain data: it travels pickled."""

    end: LiveEnd
    load: OwnLoad
    recorder: RecorderState
    failures: FailureState
    lengths: LengthState
    outage: OutageState


def joined_end(ends: Iterable[LiveEnd], *, ended_ns: int, interrupted: bool, lost: int) -> LiveEnd:
    """The end of the whole run: the last of each instant, the sum of each count.

    ``ended_ns``: of a run whose workers all died. ``interrupted``: by a person, which the workers cannot tell from an end
    that another one's death brought. ``lost``: requests that went with dead workers.
    """
    ends = list(ends)
    lag = Histogram()
    for end in ends:
        lag.add(end.lag)
    return LiveEnd(
        ended_ns=max((end.ended_ns for end in ends), default=ended_ns),
        last_arrival_ns=max((end.last_arrival_ns for end in ends), default=0),
        arrivals_ended_ns=max((end.arrivals_ended_ns for end in ends), default=ended_ns),
        released=sum(end.released for end in ends) + lost,
        interrupted=interrupted,
        unfinished=sum(end.unfinished for end in ends) + lost,
        lag=lag,
    )
