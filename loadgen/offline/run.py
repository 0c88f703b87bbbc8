"""One simulated run: a source's requests through a dispatcher and server models, into the recorder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from heapq import merge

import msgspec

from loadgen.recorder import Recorder
from loadgen.signals import beside
from loadgen.workload.source import Source
from scheduler.dispatcher import Dispatcher
from scheduler.drivers.simulated import Simulation
from scheduler.request import Outcome, Request
from scheduler.server_model.build import build_server
from scheduler.server_model.spec import ServerModelSpec
from scheduler.slot_control import SlotControl


def simulate(
    source: Source,
    dispatcher: Dispatcher,
    servers: Mapping[str, ServerModelSpec],
    recorder: Recorder,
    *,
    until_ns: int | None = None,
    control: SlotControl | None = None,
) -> int:
    """Run ``source`` to its end (or to ``until_ns``) and record every outcome; returns the end in ns of virtual time.

    ``servers``: a server model for every backend name of the dispatcher. ``control`` moves its slots; the
    recorder's header keeps how.
    """
    models = {name: build_server(spec.law, spec.limits, source.block_tokens) for name, spec in servers.items()}

    def after(outcome: Outcome) -> Iterable[Request]:
        following = source.after(outcome)
        return () if following is None else (following,)

    def on_outcome(outcome: Outcome) -> None:
        if control is not None:
            control.observe(outcome)
        recorder.on_outcome(outcome)

    simulation = Simulation(
        dispatcher,
        models,
        _arrivals(source),
        recorder.on_outcome if control is None else on_outcome,
        on_gaps=recorder.on_gaps,
        gap_window_ns=recorder.window_ns,
        after=after,
        until_ns=until_ns,
        control=control,
        most=source.limit,
    )
    end_ns = beside(simulation.run)
    recorder.flush()
    if control is not None:
        recorder.metadata = msgspec.structs.replace(recorder.metadata, slot_moves=tuple(control.moves))
    return end_ns


def _arrivals(source: Source) -> Iterator[Request]:
    users = source.start_closed(0)
    if not users:
        return source.absolute()
    return merge(source.absolute(), users, key=lambda request: (request.arrival_ns, request.id))
