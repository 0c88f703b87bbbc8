"""One capture has intervals of its own, which hold the law that is printed beside them."""

from __future__ import annotations

import numpy as np
from calibration_loads import PLAIN_LAW, PLAIN_LIMITS, captured, workload

from scheduler.calibration.calibrate import calibrate
from scheduler.calibration.refine import refine
from scheduler.calibration.step_law import Interval95
from scheduler.calibration.within_run import drawn_blocks, no_narrower, within_run
from scheduler.server_model.spec import StepLaw


def test_one_capture_has_intervals_and_its_file_too():
    """Of every parameter that is not 0 and that the run tells; said to be within the run, and never taken for those over
    captures."""
    seen = captured(workload(7, 80, rate=6.0), PLAIN_LAW, PLAIN_LIMITS)
    steps = []
    found = calibrate(
        [seen],
        limits=PLAIN_LIMITS,
        evaluations=20,
        bootstrap=10,
        refits=4,
        on_progress=lambda done, total: steps.append((done, total)),
    )
    law, shown = found.spec.law, found.intervals()
    assert found.untold == {"stream_us"}, "about two sequences decode at once"
    assert set(shown) == {name for name in law.__struct_fields__ if getattr(law, name) > 0} - found.untold
    for name, one in shown.items():
        assert one.low <= getattr(law, name) == one.value <= one.high
    assert shown["a_us"].low < shown["a_us"].high
    assert found.over_captures() == {}
    assert found.spec.fit["within_run_bootstrap_95"] == {name: [one.low, one.high] for name, one in shown.items()}
    assert found.spec.fit["jackknife_95"] == {}
    assert steps == [(done, 6) for done in range(1, 7)], "every fit and every refit is progress"


def test_of_a_long_run_a_stretch_is_refitted(monkeypatch):
    """No command takes an hour for its intervals, and none is without them: those of fewer requests, so wider."""
    seen = captured(workload(1, 240, rate=5.0), PLAIN_LAW, PLAIN_LIMITS)
    start = StepLaw(a_us=5500.0, b_us=28.0, c_us=60.0, d_us=0.02, offset_us=8000.0, stream_us=150.0)
    replayed = []

    def refined(captures, law, limits, **options):
        replayed.append([len(one) for one in captures])
        return refine(captures, law, limits, **options | {"evaluations": 10})

    monkeypatch.setattr("scheduler.calibration.within_run.refine", refined)
    monkeypatch.setattr("scheduler.calibration.within_run.MOST_REQUESTS", 100)
    found = within_run([seen], start, PLAIN_LIMITS, refits=3)
    assert set(found) == {name for name in start.__struct_fields__ if getattr(start, name) > 0}
    within_run([seen, seen], start, PLAIN_LIMITS, refits=2)
    assert replayed == [[100]] * 3 + [[50, 50]] * 2


def test_without_refits_there_are_no_intervals():
    assert within_run([workload(1, 20, rate=5.0)], PLAIN_LAW, PLAIN_LIMITS, refits=0) == {}


def test_what_is_drawn_are_whole_blocks():
    """A block is rows in order, drawn as a whole or not at all; as many blocks as there are."""
    rows = drawn_blocks(200, np.random.default_rng(3))
    assert len(rows) == 200
    for block in rows.reshape(20, 10):
        assert block[0] % 10 == 0
        assert np.array_equal(block, np.arange(block[0], block[0] + 10))
    assert len(np.unique(rows)) < 200


def test_an_interval_within_a_run_holds_that_of_least_squares():
    """Refits that start at the law stay beside it where the run does not tell two parameters apart."""
    within = {
        "a_us": Interval95(5.0, 4.9, 5.1),
        "c_us": Interval95(44.0, 41.0, 47.0),
        "offset_us": Interval95(9.0, 8.0, 10.0),
    }
    spans = {"a_us": Interval95(5.2, 5.0, 5.4), "c_us": Interval95(30.0, 17.5, 77.5)}
    found = no_narrower(within, spans)
    assert (found["a_us"].low, found["a_us"].high) == (4.9, 5.4)
    assert (found["c_us"].value, found["c_us"].low, found["c_us"].high) == (44.0, 17.5, 77.5)
    assert found["offset_us"] == within["offset_us"]
