"""Calibration finds the law of a server whose law is known, and says how sure it is."""

import dataclasses

import msgspec
import numpy as np
import pytest
from calibration_loads import PLAIN_LAW, PLAIN_LIMITS, captured, captures, workload

import scheduler.calibration.calibrate as calibrate_module
from scheduler.calibration.calibrate import calibrate, start_of
from scheduler.calibration.refine import SCALES, refine
from scheduler.calibration.step_law import CalibrationError, fit_law
from scheduler.server_model.spec import ServerLimits, decode_server_model, encode_server_model


@pytest.fixture(scope="module")
def plain():
    return calibrate(captures(PLAIN_LAW, PLAIN_LIMITS), limits=PLAIN_LIMITS, evaluations=50, bootstrap=60)


def test_a_plain_law_is_recovered_from_stamps_alone(plain):
    """The terms that the loads identify come back within a few percent."""
    law = plain.spec.law
    assert law.a_us == pytest.approx(PLAIN_LAW.a_us, rel=0.05)
    assert law.b_us == pytest.approx(PLAIN_LAW.b_us, rel=0.10)
    assert law.d_us == pytest.approx(PLAIN_LAW.d_us, rel=0.30)
    assert law.offset_us == pytest.approx(PLAIN_LAW.offset_us, rel=0.15)


def test_a_front_end_that_streams_keep_busy_is_found():
    """Three times the guess, beside a small offset: a larger offset makes the usual request wait as long, and errs where loads
    differ."""
    law = msgspec.structs.replace(PLAIN_LAW, offset_us=8000.0, stream_us=280.0)
    loads = (workload(1, 60, rate=2.0), workload(2, 120, rate=14.0), workload(4, 100, users=24))
    found = calibrate(
        [captured(load, law, PLAIN_LIMITS) for load in loads],
        limits=PLAIN_LIMITS,
        evaluations=60,
        bootstrap=10,
        hold_out=False,
        refits=0,
    )
    assert found.spec.law.stream_us == pytest.approx(280, rel=0.2)
    assert found.spec.law.offset_us == pytest.approx(8000, rel=0.3)
    assert found.untold == frozenset()


def test_a_server_that_speculates_is_found_where_its_drafts_are_stated():
    """Its steps, not its tokens; how often drafts are accepted follows from how many tokens a chunk has."""
    limits = msgspec.structs.replace(PLAIN_LIMITS, speculative_tokens=3, speculative_acceptance=0.6)
    seen = [captured(workload(n, 100, rate=rate), PLAIN_LAW, limits) for n, rate in ((1, 2.0), (2, 12.0), (3, 20.0))]
    found = calibrate(seen, limits=PLAIN_LIMITS, drafts=3, evaluations=80, bootstrap=10, refits=0, hold_out=False)
    assert found.spec.limits.speculative_acceptance == pytest.approx(0.6, abs=0.03)
    assert found.spec.law.a_us == pytest.approx(PLAIN_LAW.a_us, rel=0.1)
    assert not any("one chunk" in warning for warning in found.warnings)
    plain = calibrate(seen, limits=PLAIN_LIMITS, evaluations=20, bootstrap=10, refits=0, hold_out=False)
    assert any("several tokens came in one chunk" in warning for warning in plain.warnings)


def test_what_the_captures_do_not_tell_has_no_interval(plain):
    """What streams take of the front end: light loads leave it at the guess, and how little it moves says nothing of how well
    it is known; several loads tell it."""
    light = [captured(workload(seed, 60, rate=1.0), PLAIN_LAW, PLAIN_LIMITS) for seed in (1, 2, 3)]
    found = calibrate(light, limits=PLAIN_LIMITS, evaluations=20, bootstrap=10)
    assert found.untold == {"stream_us"}
    assert found.intervals().keys() >= {"a_us", "b_us", "offset_us"}
    assert "stream_us" not in found.intervals()
    assert found.spec.fit["not_told"] == ["stream_us"]
    assert "stream_us" not in found.spec.fit["jackknife_95"]
    assert plain.untold == frozenset()
    assert "stream_us" in plain.intervals()


@pytest.mark.parametrize("stream_us", [100.0, 280.0, 600.0])
def test_quiet_requests_tell_what_streams_take_of_the_front_end(stream_us):
    """Without the simulator: to two fifths, from three loads."""
    law = msgspec.structs.replace(PLAIN_LAW, stream_us=stream_us)
    loads = (workload(1, 60, rate=2.0), workload(2, 120, rate=14.0), workload(4, 100, users=24))
    found = fit_law([captured(load, law, PLAIN_LIMITS) for load in loads], bootstrap=1).law
    assert found.stream_us == pytest.approx(stream_us, rel=0.4)
    assert found.offset_us == pytest.approx(PLAIN_LAW.offset_us, rel=0.25)


def test_held_out_captures_of_a_known_server_are_predicted(plain):
    """Leave one capture out, over four different loads: what the fit never saw is predicted within a few percent."""
    assert [one.capture for one in plain.held_out] == ["seed 1", "seed 2", "seed 3", "seed 4"]
    means = plain.mean_absolute()
    assert set(SCALES) <= set(means)
    assert means["tpot_mean"] < 0.02
    assert means["ttft_p50"] < 0.05
    assert means["throughput"] < 0.02


def test_every_held_out_law_is_fitted_without_the_capture_it_is_judged_on(plain):
    """The laws differ from fold to fold, and from the law of all captures."""
    laws = [one.law for one in plain.held_out] + [plain.spec.law]
    assert len(set(laws)) == len(laws)


def test_the_bootstrap_interval_holds_the_law(plain):
    """The interval of the least-squares fit of a step's time covers the truth, give or take the fit's own bias."""
    interval = plain.spans.intervals["a_us"]
    assert interval.low * 0.95 <= PLAIN_LAW.a_us <= interval.high * 1.05
    assert interval.low <= interval.value <= interval.high


def test_a_server_model_file_keeps_what_calibration_said_of_itself(plain):
    """Intervals, condition, held-out errors and warnings survive the file."""
    spec = decode_server_model(encode_server_model(plain.spec), where="test")
    assert spec == plain.spec
    assert spec.fit["warnings"] == list(plain.warnings)
    assert set(spec.fit["spans"]) == {"parameters", "bootstrap_95", "condition"}
    assert set(spec.fit["held_out"]) == {"seed 1", "seed 2", "seed 3", "seed 4"}


def test_cached_prompt_tokens_cost_no_prefill():
    """Half of each prompt is found in the server's prefix cache: told so, the fit gives the time of a computed token;
    untold, half of it."""
    load = workload(7, 300, rate=6.0, prompt=3000, output=20)
    cached = dataclasses.replace(load, cached_tokens=load.prompt_tokens // 2)
    seen = captured(cached, PLAIN_LAW, PLAIN_LIMITS)
    told = fit_law([seen], bootstrap=1)
    untold = fit_law([dataclasses.replace(seen, cached_tokens=None)], bootstrap=1)
    assert told.law.b_us == pytest.approx(PLAIN_LAW.b_us, rel=0.1)
    assert untold.law.b_us == pytest.approx(PLAIN_LAW.b_us / 2, rel=0.1)
    assert any("50.0% of the prompt tokens" in warning for warning in told.warnings)


def test_what_attention_costs_is_stated_and_no_fit_moves_it():
    """Told what a pair costs a server, the fit gives its time a prefilled token; untold, the prompts' pairs are in it too."""
    law = msgspec.structs.replace(PLAIN_LAW, attended_us=0.005)
    seen = captures(law, PLAIN_LIMITS)
    told = calibrate(seen, limits=PLAIN_LIMITS, attended_us=law.attended_us, evaluations=50, bootstrap=1)
    untold = calibrate(seen, limits=PLAIN_LIMITS, evaluations=50, bootstrap=1, hold_out=False)
    assert {one.law.attended_us for one in told.held_out} | {told.spec.law.attended_us} == {law.attended_us}
    assert "attended_us" not in told.intervals()
    assert "attended_us" not in told.left_out_range()
    assert told.spec.law.b_us == pytest.approx(law.b_us, rel=0.1)
    assert untold.spec.law.b_us > 1.1 * told.spec.law.b_us
    assert untold.spec.law.attended_us == 0


@pytest.mark.parametrize("prompt", [500, 1500])
def test_a_stated_cost_of_attention_that_leaves_no_time_for_the_rest_is_refused(prompt):
    """Nanoseconds given as microseconds: the message says the unit and a usual figure."""
    seen = [captured(workload(5, 80, rate=10.0, prompt=prompt), PLAIN_LAW, PLAIN_LIMITS)]
    with pytest.raises(CalibrationError, match=r"attended_us 0\.8 leaves no time .* microseconds .*0\.0008"):
        fit_law(seen, attended_us=0.8, bootstrap=1)


def test_cached_tokens_are_attended_to_in_a_fit_too():
    """Pairs of a prompt of 5 of which 3 were found: its fourth and fifth token attend to 4 and 5."""
    load = dataclasses.replace(workload(7, 2, rate=1.0), prompt_tokens=np.array([5, 5]), cached_tokens=np.array([3, 0]))
    assert load.attended_pairs.tolist() == [4 + 5, 1 + 2 + 3 + 4 + 5]


def test_refining_never_makes_a_fit_worse_and_keeps_what_is_off():
    """The start is one of the candidates; parameters that are 0 stay 0."""
    seen = [captured(workload(5, 80, rate=10.0), PLAIN_LAW, PLAIN_LIMITS)]
    start = start_of(seen, fit_law(seen, bootstrap=1).law, PLAIN_LIMITS)
    before = refine(seen, start, PLAIN_LIMITS, evaluations=1)
    after = refine(seen, start, PLAIN_LIMITS, evaluations=40)
    assert after.loss <= before.loss
    without = msgspec.structs.replace(start, c_us=0.0)
    assert refine(seen, without, PLAIN_LIMITS, evaluations=10).law.c_us == 0


def test_calibration_is_deterministic():
    """The same captures give the same model, bit for bit."""
    seen = [captured(workload(6, 60, rate=8.0), PLAIN_LAW, PLAIN_LIMITS)]
    first, second = (calibrate(seen, limits=PLAIN_LIMITS, evaluations=20, bootstrap=20) for _ in range(2))
    assert first == second


def test_a_single_capture_is_split_in_time():
    """Nothing else is there to hold out: fitted on the first half, judged on the second."""
    seen = captured(workload(7, 80, rate=6.0), PLAIN_LAW, PLAIN_LIMITS)
    found = calibrate([seen], limits=PLAIN_LIMITS, evaluations=30, bootstrap=10)
    (held,) = found.held_out
    assert held.capture == "seed 7 (second half)"
    assert abs(held.errors["tpot_mean"]) < 0.05


def test_a_capture_that_the_others_cannot_predict_is_a_warning_and_no_failure(monkeypatch):
    """Two captures of which one alone identifies no law: the fit to both stands, one error is missing, and it says so."""
    fit, calls = calibrate_module.fit_engine, []

    def fails_once(*args):
        calls.append(args)
        if len(calls) == 1:
            raise CalibrationError("too little")
        return fit(*args)

    monkeypatch.setattr(calibrate_module, "fit_engine", fails_once)
    found = calibrate(
        [captured(workload(seed, 80, rate=6.0), PLAIN_LAW, PLAIN_LIMITS) for seed in (1, 2)],
        limits=PLAIN_LIMITS,
        evaluations=5,
        bootstrap=5,
        refits=0,
    )
    assert len(found.held_out) == 1
    assert found.over_captures() == {}
    assert any("too little to predict it" in warning for warning in found.warnings)


def test_equal_lengths_are_warned_of():
    """When every prompt and every answer has the same length the terms cannot be told apart, and the report says so."""
    load = workload(8, 80, rate=6.0)
    equal = dataclasses.replace(load, prompt_tokens=np.full(80, 500), output_tokens=np.full(80, 100))
    found = calibrate(
        [captured(equal, PLAIN_LAW, PLAIN_LIMITS)], limits=PLAIN_LIMITS, evaluations=5, bootstrap=20, hold_out=False
    )
    assert any("lengths are nearly equal" in warning for warning in found.warnings)
    varied = calibrate(
        [captured(load, PLAIN_LAW, PLAIN_LIMITS)], limits=PLAIN_LIMITS, evaluations=5, bootstrap=20, hold_out=False
    )
    assert not any("lengths are nearly equal" in warning for warning in varied.warnings)


def test_the_engines_seats_are_read_from_a_plateau():
    """Past saturation the peak of concurrent decoding is max_num_seqs; below it, it is an accident, and calibration says what
    it assumes instead."""
    tight = ServerLimits(max_num_seqs=12, max_num_batched_tokens=8192)
    full = captured(workload(9, 200, rate=40.0), PLAIN_LAW, tight)
    found = calibrate([full], evaluations=3, bootstrap=10, hold_out=False)
    assert found.spec.limits.max_num_seqs == 12
    assert any("past saturation" in warning for warning in found.warnings)
    light = captured(workload(9, 60, rate=2.0), PLAIN_LAW, tight)
    guessed = calibrate([light], evaluations=3, bootstrap=10, hold_out=False)
    assert guessed.spec.limits.max_num_seqs == 256
    assert any("max_num_seqs is not known" in warning for warning in guessed.warnings)
    assert any("max_num_batched_tokens was not given: 8192" in warning for warning in guessed.warnings)


def test_stated_limits_are_kept():
    """What the caller knows is never guessed."""
    seen = captured(workload(10, 60, rate=2.0), PLAIN_LAW, PLAIN_LIMITS)
    found = calibrate([seen], max_num_seqs=99, max_num_batched_tokens=2048, evaluations=3, bootstrap=10, hold_out=False)
    assert (found.spec.limits.max_num_seqs, found.spec.limits.max_num_batched_tokens) == (99, 2048)
    assert not any("max_num" in warning for warning in found.warnings)


def test_preemption_is_flagged():
    """A capture in which sequences lost their KV does not show the step law alone."""
    small = ServerLimits(max_num_seqs=64, max_num_batched_tokens=8192, kv_tokens=8000)
    crowded = captured(workload(11, 120, rate=30.0), PLAIN_LAW, small)
    light = captured(workload(10, 60, rate=2.0), PLAIN_LAW, small)
    found = calibrate([light, crowded], limits=small, evaluations=3, bootstrap=10, hold_out=False)
    assert [warning.partition(":")[0] for warning in found.warnings if "preempted" in warning] == ["seed 11"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda seen: seen.take(np.arange(10)), "at least 20"),
        (lambda seen: seen.take(np.arange(len(seen))[::-1]), "order of sending"),
        (lambda seen: dataclasses.replace(seen, output_tokens=np.ones_like(seen.output_tokens)), "at least 20"),
    ],
)
def test_captures_that_cannot_be_fitted_say_why(spoil, message):
    """Too few requests, requests out of order, answers of one token."""
    seen = captured(workload(12, 60, rate=4.0), PLAIN_LAW, PLAIN_LIMITS)
    with pytest.raises(CalibrationError, match=message):
        calibrate([spoil(seen)], limits=PLAIN_LIMITS)
