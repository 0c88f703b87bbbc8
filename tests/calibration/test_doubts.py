"""A calibration says when it is not to be believed: in words of its own, and in the file that it writes."""

from __future__ import annotations

import dataclasses
import re

import msgspec
import numpy as np
import pytest
from calibration_loads import PLAIN_LAW, PLAIN_LIMITS, captured, workload

from scheduler.calibration.calibrate import calibrate
from scheduler.calibration.doubts import beyond_use, joined, large_errors, mostly_left_out
from scheduler.calibration.doubts_of_law import at_bounds, moved, no_servers_law, wide
from scheduler.calibration.repeated import repeated
from scheduler.calibration.step_law import CalibrationError, Interval95
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


def shifted(seen, by_ns):
    """Its requests sent so much earlier than they were."""
    return dataclasses.replace(seen, first_ns=seen.first_ns + by_ns, last_ns=seen.last_ns + by_ns)


@pytest.mark.parametrize(("late_s", "doubted", "useless"), [(0.3, False, False), (2, True, False), (10, True, True)])
def test_an_offset_that_no_server_has_is_doubted_then_refused(plain, late_s, doubted, useless):
    """Times of sending that are seconds early predict themselves well: only what they make of the law tells."""
    late = shifted(plain, round(late_s * 1e9))
    found = calibrate([late], limits=PLAIN_LIMITS, evaluations=EVALUATIONS, bootstrap=10, refits=0)
    told = " | ".join(found.warnings)
    assert ("offset is " in told and "no quiet server takes so long" in told) is doubted
    assert bool(no_servers_law(found.spec.law)) is useless
    assert bool(beyond_use([held.errors for held in found.held_out], found.spec.law)) is useless


def slower(seen, times):
    stamps = {
        name: np.round(getattr(seen, name) * times).astype(np.int64) for name in ("sent_ns", "first_ns", "last_ns")
    }
    return dataclasses.replace(seen, **stamps, gaps_ns=None, gap_counts=None)


def test_times_that_no_law_can_have_are_refused_before_a_search(plain):
    """Microseconds read as seconds: a step would take hours."""
    with pytest.raises(CalibrationError, match=r"no server is so slow: .* in the units that they should be in"):
        calibrate([slower(plain, 1e6)], limits=PLAIN_LIMITS, evaluations=EVALUATIONS, bootstrap=10, refits=0)


@pytest.mark.parametrize(("times", "useless"), [(1.0, False), (0.001, True), (1e4, True)])
def test_times_in_wrong_units_are_refused_though_they_predict_themselves(plain, times, useless):
    found = calibrate([slower(plain, times)], limits=PLAIN_LIMITS, evaluations=EVALUATIONS, bootstrap=10, refits=0)
    assert ("a is " in beyond_use([held.errors for held in found.held_out], found.spec.law)) is useless


def test_what_parts_of_the_captures_put_elsewhere_is_named():
    """By more than four times, or from nothing at all; what at_bounds doubts is not said twice."""
    assert moved(PLAIN_LAW, []) == []
    near = msgspec.structs.replace(PLAIN_LAW, c_us=PLAIN_LAW.c_us * 3.9, offset_us=PLAIN_LAW.offset_us / 3.9)
    assert moved(PLAIN_LAW, [near, PLAIN_LAW]) == []
    (told,) = moved(PLAIN_LAW, [msgspec.structs.replace(PLAIN_LAW, c_us=PLAIN_LAW.c_us * 4.1, d_us=0.0), PLAIN_LAW])
    assert "c (us per decoding sequence) goes from 40 to 164" in told
    assert "d (us per resident KV token) goes from 0 to 0.05" in told
    assert moved(msgspec.structs.replace(PLAIN_LAW, d_us=0.0), [PLAIN_LAW]) == []


def test_kv_that_would_cost_nothing_is_doubted(plain):
    assert any(told.startswith("d is 0") for told in at_bounds([plain], msgspec.structs.replace(PLAIN_LAW, d_us=0.0)))
    assert at_bounds([plain], PLAIN_LAW) == []


def test_a_capture_is_not_held_out_from_itself(plain):
    """Under another name, or a part of it: what is held out would have been seen. Another run of the same load may be."""
    other = captured(workload(3, 160, rate=12.0), PLAIN_LAW, PLAIN_LIMITS)
    part = plain.take(np.arange(40, 120))
    for copy in (dataclasses.replace(plain, name="copy"), dataclasses.replace(part, name="part")):
        with pytest.raises(CalibrationError, match=f"seed 2 and {copy.name} hold the same requests"):
            calibrate([plain, other, copy], limits=PLAIN_LIMITS, evaluations=EVALUATIONS, bootstrap=10)
    assert repeated([plain, other]) == ""


@pytest.mark.parametrize(
    ("tokens", "drafts", "doubted"), [(1, 0, ""), (2, 0, "speculative"), (2, 3, ""), (0.5, 0, "more chunks")]
)
def test_chunks_of_another_number_of_tokens_than_a_step_gives_are_doubted(plain, tokens, drafts, doubted):
    """The law gives each sequence one token a step, unless its limits say that it speculates; no chunk has fewer than one."""
    count = int((plain.output_tokens - 1).sum())
    gaps = np.full(int(count / tokens), 6_000_000, dtype=np.int64)
    limits = msgspec.structs.replace(PLAIN_LIMITS, speculative_tokens=drafts)
    told = joined([dataclasses.replace(plain, gaps_ns=gaps, gap_counts=None)], limits)
    assert bool(told) is bool(doubted)
    assert all(doubted in text and f"{plain.name} {tokens:.1f}" in text for text in told)
    assert joined([dataclasses.replace(plain, gaps_ns=None, gap_counts=None)], limits) == []


def test_a_capture_of_which_most_is_left_out_gives_no_law(plain):
    """What was not answered took of the server too."""
    assert mostly_left_out([dataclasses.replace(plain, left_out=len(plain))]) == ""
    told = mostly_left_out([plain, dataclasses.replace(plain, left_out=len(plain) + 1)])
    assert f"{len(plain) + 1:,} of {2 * len(plain) + 1:,} of {plain.name}" in told
