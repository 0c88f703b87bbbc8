"""A calibration says when it is not to be believed: in words of its own, and in the file that it writes."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from calibration_loads import PLAIN_LAW, PLAIN_LIMITS, captured, workload

from scheduler.calibration.calibrate import calibrate
from scheduler.calibration.doubts import beyond_use, large_errors, wide
from scheduler.calibration.step_law import Interval95
from scheduler.calibration.words import FIGURES, PARAMETERS, parameter_text
from scheduler.server_model.spec import ServerLimits, StepLaw

EVALUATIONS = 12


@pytest.fixture(scope="module")
def plain():
    return captured(workload(2, 160, rate=12.0), PLAIN_LAW, PLAIN_LIMITS)


def warnings_of(seen, limits=PLAIN_LIMITS):
    found = calibrate([seen], limits=limits, evaluations=EVALUATIONS, bootstrap=10, refits=0)
    assert found.spec.fit["warnings"] == list(found.warnings)
    return " | ".join(found.warnings)


def test_a_sound_capture_raises_no_doubt(plain):
    """Neither its errors, nor a parameter, nor the limits that it was made with."""
    told = warnings_of(plain)
    for doubt in ("does not predict", "end of its range", "is stated as"):
        assert doubt not in told


def test_stamps_that_mean_nothing_are_doubted(plain):
    """All requests sent at one instant, each answered as fast as when it was alone: the held-out error says so."""
    wait, rest = plain.first_ns - plain.sent_ns, plain.last_ns - plain.first_ns
    zero = np.zeros_like(plain.sent_ns)
    same = dataclasses.replace(plain, sent_ns=zero, first_ns=wait, last_ns=wait + rest, gaps_ns=None, gap_counts=None)
    told = warnings_of(same, ServerLimits(max_num_seqs=256))
    assert "does not predict its own captures" in told
    assert "TTFT P50" in told


def test_a_parameter_at_the_end_of_its_range_is_named(plain):
    """First tokens as fast as no server gives them: the wait before the engine is nothing, and is doubted."""
    soon = dataclasses.replace(plain, first_ns=plain.sent_ns + 1000, gaps_ns=None, gap_counts=None)
    assert "end of its range" in warnings_of(soon)


def test_a_limit_that_the_capture_contradicts_is_named(plain):
    """With what the capture shows, and what to state."""
    told = warnings_of(plain, ServerLimits(max_num_seqs=4))
    assert "max_num_seqs is stated as 4" in told
    assert "state at least" in told


@pytest.mark.parametrize("seeds", [(2,), (1, 2, 3)])
def test_a_width_that_is_warned_of_is_that_of_the_interval_shown(seeds):
    """Of answers with noise in their times: each parameter that is warned of has such an interval beside it, and no other."""
    seen = []
    for seed in seeds:
        one = captured(workload(seed, 80, rate=6.0), PLAIN_LAW, PLAIN_LIMITS)
        noise = np.random.default_rng(seed).uniform(0.6, 1.4, len(one))
        seen.append(
            dataclasses.replace(one, last_ns=one.first_ns + ((one.last_ns - one.first_ns) * noise).astype(np.int64))
        )
    found = calibrate(seen, limits=PLAIN_LIMITS, evaluations=EVALUATIONS, bootstrap=40, refits=3)
    told = {text.partition(" is known only")[0] for text in found.warnings if "is known only to within" in text}
    assert told == {parameter_text(name) for name, one in found.intervals().items() if one.high - one.low > one.value}


def test_warnings_say_what_people_read():
    """Every parameter of the law and every figure that may be warned of has words, and no warning a name of the file."""
    assert set(PARAMETERS) == set(StepLaw.__struct_fields__)
    told = wide({name: Interval95(1.0, 0.1, 9.0) for name in PARAMETERS}) + large_errors(dict.fromkeys(FIGURES, 9.0))
    assert "c (us per decoding sequence) is known only to within 445% (from 0.1 to 9)" in told
    assert "TTFT P50 900%" in told[-1]
    for text in told:
        assert not re.search(r"[a-z]_(us|p\d|mean)", text), text


@pytest.mark.parametrize(
    ("tpot", "throughput", "useless"),
    [
        ((0.0, 0.0), (0.0, 0.0), ()),
        ((0.9, 0.9), (-0.4, 0.9), ()),
        ((1.1, 1.1), (0.0, 0.0), ("TPOT mean by a factor of 2.1",)),
        ((1.1, -0.6), (0.0, 0.0), ("TPOT mean by a factor of 2.3",)),
        ((0.0, 0.0), (-0.75, -0.75), ("throughput by a factor of 4.0",)),
        ((3.0, -0.0), (-1.0, 0.0), ("throughput by a factor of",)),
    ],
)
def test_a_factor_of_two_either_way_is_beyond_use(tpot, throughput, useless):
    """A pace or a throughput of half or of twice the captured one, in the geometric mean; a first token may err without end."""
    told = beyond_use(
        [{"tpot_mean": t, "throughput": out, "ttft_p50": 76.0} for t, out in zip(tpot, throughput, strict=True)],
        PLAIN_LAW,
    )
    assert bool(told) is bool(useless)
    for text in useless:
        assert text in told


def test_what_was_never_held_out_is_not_beyond_use():
    assert beyond_use([], PLAIN_LAW) == ""
    assert beyond_use([{"ttft_p50": 9.0}], PLAIN_LAW) == ""


def test_times_of_sending_that_no_server_allows_are_beyond_use(plain):
    """First tokens a microsecond after their requests: no distance to the server, and TTFT mispredicted beyond measure."""
    soon = dataclasses.replace(plain, first_ns=plain.sent_ns + 1000, gaps_ns=None, gap_counts=None)
    for seen, useless in ((soon, True), (plain, False)):
        found = calibrate([seen], limits=PLAIN_LIMITS, evaluations=60, bootstrap=10, refits=0)
        told = beyond_use([held.errors for held in found.held_out], found.spec.law)
        assert ("TTFT P50 by a factor of" in told) is useless
