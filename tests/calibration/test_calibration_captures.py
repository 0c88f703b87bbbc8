"""How well a real server is predicted: measured captures, each from a law that was fitted to the other seven.

``left_out_laws.json`` holds those laws, as ``benchmarks/fidelity.py --laws`` writes them (the fits take minutes); one of them
is fitted again here, so the file cannot drift from the code.
"""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from benchmarks.fidelity import DEFAULT, LIMITS, REPEATS, load_captures
from scheduler.calibration.calibrate import PLAIN, HeldOut, fit_engine, mean_absolute
from scheduler.calibration.figures import errors, figures
from scheduler.calibration.observations import Observations
from scheduler.calibration.replay import replay
from scheduler.calibration.step_law import fit_law
from scheduler.server_model.spec import PRESETS, StepLaw

LEFT_OUT = Path(__file__).with_name("left_out_laws.json")
CEILINGS = {
    "ttft_p50": 0.20,
    "ttft_p99": 0.20,
    "tpot_mean": 0.035,
    "tpot_p99": 0.080,
    "itl_p99": 0.26,
    "e2e_mean": 0.032,
    "throughput": 0.010,
}
"""Mean absolute error over these captures, with a little slack. Wider than the bars for captures that are kept back, because
in most of the eight the host was disturbed for seconds: a launch then takes 20 to 29 ms in place of 13, which no law of the
load can tell beforehand."""

pytestmark = pytest.mark.skipif(not DEFAULT.is_dir(), reason=f"the measured captures are not at {DEFAULT}")


@pytest.fixture(scope="module")
def captured() -> dict[str, Observations]:
    return {seen.name: seen for seen in load_captures()}


@pytest.fixture(scope="module")
def laws() -> dict[str, StepLaw]:
    return msgspec.json.decode(LEFT_OUT.read_bytes(), type=dict[str, StepLaw])


def held_out(captured, laws, limits=LIMITS) -> list[HeldOut]:
    return [
        HeldOut(name, laws[name], errors(figures(seen), figures(replay(seen, laws[name], limits).times)))
        for name, seen in captured.items()
    ]


def test_every_capture_is_predicted_from_the_others_within_its_ceiling(captured, laws):
    """Mean absolute error over the captures, by figure."""
    means = mean_absolute(held_out(captured, laws))
    assert set(laws) == set(captured)
    assert {name: means[name] for name, ceiling in CEILINGS.items() if means[name] > ceiling} == {}


def test_the_simulator_in_the_loop_predicts_unseen_captures_better_than_spans_alone(captured, laws):
    """Refining earns its place on captures that neither fit has seen."""
    spans = {
        name: fit_law([other for other in captured.values() if other is not seen], bootstrap=1).law
        for name, seen in captured.items()
    }
    refined, alone = mean_absolute(held_out(captured, laws)), mean_absolute(held_out(captured, spans))
    for figure in ("ttft_p50", "tpot_mean", "tpot_p99", "itl_p99", "e2e_mean", "throughput"):
        assert refined[figure] < alone[figure], figure


@pytest.mark.parametrize(("title", "source", "rate", "wanted", "ranges"), REPEATS[:2])
def test_runs_known_by_the_range_of_their_repeats_are_predicted_inside_it(
    title, source, rate, wanted, ranges, captured
):
    """A prediction inside the range of repeats is as good as can be had; three percent outside are let pass."""
    preset = PRESETS["h200-llama-8b"]
    load = dataclasses.replace(captured[source], sent_ns=captured[source].sent_ns * rate // wanted)
    found = figures(replay(load, preset.law, preset.limits).times)
    for figure, (low, high) in ranges.items():
        assert 0.97 * low <= found[figure] / 1e6 <= 1.03 * high, f"{title}: {figure}"


def test_the_preset_is_the_fit_of_all_captures(captured):
    """It lies where the laws of the folds lie, and errs on its own captures no more than they do on unseen ones."""
    preset = PRESETS["h200-llama-8b"]
    assert preset.limits == LIMITS
    means = mean_absolute(held_out(captured, dict.fromkeys(captured, preset.law)))
    assert {name: means[name] for name, ceiling in CEILINGS.items() if means[name] > ceiling} == {}


def test_quiet_decoding_is_predicted_to_three_percent(captured, laws):
    """One request at a time: nothing but the step itself is in its TPOT."""
    (alone,) = (one for one in held_out(captured, laws) if one.capture == "closed_c1")
    assert abs(alone.errors["tpot_mean"]) < 0.03


@pytest.mark.slow
def test_a_left_out_law_is_what_the_code_fits_today(captured, laws):
    """Fitted again, the law of one fold is the stored one."""
    others = [seen for name, seen in captured.items() if name != "open_r30"]
    again = fit_engine(others, LIMITS, PLAIN)
    for name in StepLaw.__struct_fields__:
        assert getattr(again, name) == pytest.approx(getattr(laws["open_r30"], name), rel=0.02), name
