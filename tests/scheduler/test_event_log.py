"""The event log: what a run recorded, a fresh dispatcher repeats action for action; anything else is refused with its line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sched_support import MS, POLICIES, S, request, tenant

from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.simulated import Simulation
from scheduler.event_log import EventLogError, LoggedDispatcher, replay
from scheduler.events import BackendState, PolicyChanged, SlotsChanged, TenantsChanged
from scheduler.server_model.batching import ContinuousBatch
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.slots import Slots
from tenants.tenant import Contract, QueueLimits


def _config(which: str, late: str = "keep") -> DispatcherConfig:
    name, options = POLICIES[which]
    limits = QueueLimits(max_queued=30, requests_per_s=40.0, ttl_ns=4 * S, shed_out_of_contract=True, reject_late=False)
    return DispatcherConfig(
        tenants=(
            tenant("a", 2.0, ttft_ms=300, contract=Contract(rate=3_000.0, burst=9_000.0)),
            tenant("b", 1.0, ttft_ms=900, limits=limits, contract=Contract(rate=3_000.0, burst=9_000.0)),
            tenant("c", 0.3, ttft_ms=None, expected=None),
        ),
        policy=name,
        options={**options, "late": late},
        backends={"x": Slots(sequences=6, prefill_tokens=600), "y": Slots(sequences=4)},
    )


def _record(which: str, late: str = "keep") -> list[bytes]:
    """A busy run with time-outs, cancels and every kind of reconfiguration."""
    rng = np.random.default_rng(7)
    lines: list[bytes] = []
    core = LoggedDispatcher(_config(which, late), lines.append)
    arrivals = [
        request(
            number,
            "abc"[rng.integers(3)],
            int(at_ns),
            int(rng.integers(1, 300)),
            int(rng.integers(1, 60)),
            timeout_ns=int(rng.integers(1, 12)) * S if number % 5 == 0 else None,
            first_token_timeout_ns=2 * S if number % 7 == 0 else None,
            cancel_after_ns=int(rng.integers(1, 3_000)) * MS if number % 6 == 0 else None,
        )
        for number, at_ns in enumerate(np.sort(rng.integers(0, 8 * S, 250)))
    ]
    law = StepLaw(a_us=9_000.0, b_us=60.0, c_us=50.0, d_us=0.5)
    limits = ServerLimits(max_num_seqs=4, max_num_batched_tokens=256, kv_tokens=900)
    outcomes: list = []
    run = Simulation(core, {n: ContinuousBatch(law, limits) for n in "xy"}, arrivals, outcomes.append)
    changed = (*core.config.tenants[:2], tenant("c", 4.0), tenant("d"))
    for at_ns, event in [
        (S, SlotsChanged(S, "x", 2, None)),
        (2 * S, BackendState(2 * S, "y", up=False)),
        (3 * S, BackendState(3 * S, "y", up=True)),
        (4 * S, TenantsChanged(4 * S, changed)),
        (5 * S, PolicyChanged(5 * S, "edf", {"late": "demote"})),
    ]:
        run.env.timeout(at_ns).callbacks.append(lambda _, e=event: run.handle(e))
    run.run()
    assert len(outcomes) == len(arrivals)
    assert len({str(o.status) for o in outcomes}) >= 4, "the run met several fates"
    return lines


@pytest.mark.parametrize("late", ["keep", "demote", "shed"])
@pytest.mark.parametrize("which", POLICIES)
def test_a_recorded_run_replays_to_the_same_actions(which, late):
    """The log alone, as text, is enough: configuration, events, actions."""
    lines = _record(which, late)
    events = sum(b'"event"' in line[:9] for line in lines)
    assert events > 600
    assert replay(lines) == events


def test_each_line_is_one_json_object_and_the_first_is_the_configuration():
    lines = _record("wfq")
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    kinds = [next(iter(json.loads(line))) for line in lines]
    assert kinds[0] == "config"
    assert set(kinds[1:]) == {"event", "action"}


def _first(lines: list[bytes], part: bytes, start: int = 1) -> int:
    return next(i for i, line in enumerate(lines) if i >= start and part in line)


def _changed_action(lines):
    at = _first(lines, b'"dispatch"')
    lines[at] = lines[at].replace(b'"backend":"x"', b'"backend":"y"')
    return at + 1


def _missing_action(lines):
    at = _first(lines, b'"dispatch"')
    del lines[at]
    return at + 1


def _extra_action(lines):
    at = _first(lines, b'"dispatch"')
    lines.insert(at + 1, lines[at])
    return at + 2


def _changed_event(lines):
    at = _first(lines, b'"arrived"')
    lines[at] = lines[at].replace(b'"tenant":"', b'"tenant":"un')
    return at + 2


def _no_json(lines):
    lines[40] = b"{oops\n"
    return 41


def _unknown_event(lines):
    at = _first(lines, b'"first_token"')
    lines[at] = lines[at].replace(b'"first_token"', b'"second_token"')
    return at + 1


def _empty_object(lines):
    lines.insert(50, b"{}\n")
    return 51


def _second_configuration(lines):
    lines.insert(50, lines[0])
    return 51


@pytest.mark.parametrize(
    "tamper",
    [
        _changed_action,
        _missing_action,
        _extra_action,
        _changed_event,
        _no_json,
        _unknown_event,
        _empty_object,
        _second_configuration,
    ],
)
def test_a_tampered_log_is_refused_with_the_line(tamper):
    """Whatever was changed, the message names the first line that no longer fits."""
    lines = _record("wfq")
    line = tamper(lines)
    with pytest.raises(EventLogError, match=rf"line {line}\b"):
        replay(lines)


def test_a_log_cut_before_its_last_action_is_refused():
    lines = _record("fifo")
    last = max(i for i, line in enumerate(lines) if line.startswith(b'{"action"'))
    with pytest.raises(EventLogError, match="one more action"):
        replay(lines[:last])


def test_a_log_starts_with_its_configuration():
    with pytest.raises(EventLogError, match="configuration first"):
        replay(_record("fifo")[1:])
    with pytest.raises(EventLogError, match="configuration first"):
        replay([])


def test_logging_changes_nothing():
    """A logged dispatcher gives the actions of a plain one."""
    lines: list[bytes] = []
    logged, plain = LoggedDispatcher(_config("wfq"), lines.append), Dispatcher(_config("wfq"))
    event = TenantsChanged(0, logged.config.tenants)
    assert logged.handle(event) == plain.handle(event)
