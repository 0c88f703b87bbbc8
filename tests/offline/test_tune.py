"""Tune: the trials are fair, the best of them is recommended, and the scenario's own setting is where it starts."""

from __future__ import annotations

import io
import json
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace

import pytest

from lmperf.__main__ import main
from lmperf.cli.tune_command import recommendation
from lmperf.scenario.load import load_scenario, scenario_from_text
from lmperf.wiring.confirm import cell_of_plan, confirm
from lmperf.wiring.dispatching import auto_of
from lmperf.wiring.known import installed
from lmperf.wiring.offline import policy_choices, simulate_scenario
from lmperf.wiring.setting import Setting
from lmperf.wiring.sources import SourceError
from lmperf.wiring.tune import Tuner, own_setting, tune
from lmperf.wiring.tune_ranking import Trial, best_of, efficient
from lmperf.wiring.variants import auto_rules, resolved
from loadgen.offline.experiment import PolicyChoice
from loadgen.offline.verdicts import Figure
from loadgen.offline.workers import Workers
from scheduler.auto_rule import AutoRule, Follows, usual_rule
from scheduler.slots import Slots

SCENARIO = """\
version: 1
name: small
duration_s: 20
seed: 1
backend: {server_model: h200-llama-8b, limits: {max_num_seqs: 256, max_num_batched_tokens: 2048}}
policy: fifo
slots: {sequences: 16, prefill_tokens: 2048}
load: {at: baseline, baseline: 0.75, raised: 1.4, noisy: batch, saturation: 17000}
tenants:
  chat:
    share: 0.4
    prompt: {mean: 300, cv: 0.5}
    output: {mean: 60, cv: 0.5}
    slo: {ttft_ms: 500, attainment: 0.9}
  batch:
    load: 0.55
    prompt: {mean: 600, cv: 0.5}
    output: {mean: 100, cv: 0.5}
    slo: {ttft_ms: 2000, attainment: 0.9}
"""


def scenario(text=SCENARIO):
    return scenario_from_text(text, known=installed())


def tuner(text=SCENARIO, *, seeds=2):
    return Tuner(scenario(text), seeds=seeds, workers=Workers(1), on_runs=lambda _: lambda done, total: None)


@pytest.fixture(scope="module")
def answer():
    """The whole search over two policies."""
    return tune(tuner(), policy_choices("wfq"))


def test_the_first_trial_is_the_scenario_as_simulate_judges_it(answer):
    """Own policy and slots, and to the last digit the figures of `lmperf simulate` for the same seeds."""
    first = answer.trials[0]
    assert first.setting == own_setting(answer.baseline)
    assert first.setting.slots == Slots(sequences=16, prefill_tokens=2048)
    oracle = simulate_scenario(scenario(), policy_choices("fifo"), 2, processes=1).comparisons[0].verdicts[0]
    assert replace(first.verdict, label="") == replace(oracle, label="")


def test_every_stage_is_tried_and_no_setting_twice(answer):
    """Policies, slots halved and doubled, weights of who misses, queue limits of who is noisy."""
    settings = [trial.setting for trial in answer.trials]
    assert len({setting.label for setting in settings}) == len(settings)
    assert {setting.policy.policy for setting in settings} == {"fifo", "wfq"}
    assert {setting.slots.sequences for setting in settings} >= {8, 16, 32}
    assert {setting.slots.prefill_tokens for setting in settings} >= {1024, 2048, 4096}
    assert {tuple(setting.weights) for setting in settings} == {(), ("chat",)}
    assert {tuple(setting.queued) for setting in settings} == {(), ("batch",)}


def test_slots_that_move_by_themselves_are_a_choice(answer):
    """By waiting counts, since no tenant has a TPOT limit: to the last digit what `lmperf simulate` says of that scenario."""
    moved = [trial for trial in answer.trials if trial.setting.auto is not None]
    assert [trial.setting.auto for trial in moved if not trial.setting.weights and not trial.setting.queued] == [
        usual_rule(Follows.WAITING)
    ]
    trial = moved[0]
    assert "D=auto by waiting (1 to 1024)" in trial.setting.label
    assert trial.setting.data()["slots"]["auto"] == {"follows": "waiting", "least": 1, "most": 1024}
    start = trial.setting.slots
    text = SCENARIO.replace(
        "slots: {sequences: 16, prefill_tokens: 2048}",
        f"slots: {{auto: waiting, sequences: {start.sequences}, prefill_tokens: {start.prefill_tokens or 'null'}}}",
    )
    choices = policy_choices(f"fifo,{trial.setting.policy.label}")
    oracle = simulate_scenario(scenario(text), choices, 2, processes=1).comparisons[0].verdicts[-1]
    assert trial.verdict.raised == oracle.raised
    assert trial.verdict.baseline == oracle.baseline


def test_a_tpot_limit_offers_slots_by_tpot_and_fixed_ones_none():
    """What the scenario itself states as automatic stays so in its own row, bounds and all."""
    with_limit = SCENARIO.replace("slo: {ttft_ms: 500,", "slo: {ttft_ms: 500, tpot_ms: 20,")
    assert [rule.follows for rule in auto_rules(scenario(with_limit))] == [Follows.TPOT, Follows.WAITING]
    assert auto_rules(scenario(SCENARIO + "workers: 2\n")) == []
    own = with_limit.replace("slots: {sequences: 16,", "slots: {auto: tpot, sequences: 16, min_sequences: 8,")
    plan = resolved(scenario(own))
    setting = own_setting(plan)
    assert setting.auto == AutoRule(follows=Follows.TPOT, least=8, most=128)
    assert resolved(setting.of(scenario(own))).slots == plan.slots


def test_a_live_confirmation_of_moving_slots_moves_them(tmp_path):
    """The plan that is run live has the rule, and so has the simulation beside it."""
    setting = Setting(policy=policy_choices("wfq")[0], slots=Slots(sequences=16), auto=usual_rule(Follows.WAITING))
    seen = []

    def run(_scenario, plan, _options):
        seen.append(plan)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        confirm(setting.of(scenario()), (1.0,), duration_s=5, directory=tmp_path, percentiles=(50.0,), run=run)
    (plan,) = seen
    assert auto_of(plan) == cell_of_plan(plan).auto == usual_rule(Follows.WAITING)


def test_no_trial_ranks_above_the_recommended(answer):
    """Fewest tenants below target; of those with as few, none has 1% more throughput."""
    best = answer.best
    for trial in answer.trials:
        assert len(best.missed) <= len(trial.missed)
        if len(best.missed) == len(trial.missed):
            ratios = [each.verdict.throughput_ratio.value for each in (best, trial)]
            assert ratios[0] >= ratios[1] - 0.01


def test_the_search_finds_what_fair_queueing_is_known_to_give(answer):
    """Under fifo the victim misses its target; some setting keeps it, and is recommended."""
    assert answer.trials[0].missed == ("chat",)
    assert answer.best.missed == ()
    assert answer.attained(answer.best)["chat"].value >= 0.9


def test_every_trial_offers_the_same_load(answer):
    """Weights change what a share means, not what arrives; queue limits and slots change neither."""
    offered = [tuple(t.offered for t in resolved(trial.setting.of(answer.scenario)).tenants) for trial in answer.trials]
    for other in offered[1:]:
        assert other == pytest.approx(offered[0])


def test_a_queue_limit_reaches_admission(answer):
    """The variant's tenants hold it."""
    limited = next(trial.setting for trial in answer.trials if trial.setting.queued)
    tenants = {t.tenant.name: t.tenant for t in resolved(limited.of(answer.scenario)).tenants}
    assert tenants["batch"].limits.max_queued == limited.queued["batch"]
    assert tenants["chat"].limits.max_queued is None


def test_an_interrupt_keeps_the_finished_trials():
    """The recommendation is then the best of these."""
    told = []

    def on_trial(state):
        told.append(len(state.trials))
        if len(told) == 2:
            raise KeyboardInterrupt

    found = tune(tuner(seeds=1), policy_choices("wfq"), on_trial=on_trial)
    assert found.interrupted
    assert told == [1, 2]
    assert len(found.trials) == 2
    assert found.best in found.trials


def trial(label, *, worst=0.99, decay=1.0, throughput=1.0, missed=(), unsure=(), slots=None, auto=None, seats=None):
    """A trial of which only the figures that rank it are real."""
    figures = {"worst_attainment": worst, "decay_in_contract": decay, "throughput_ratio": throughput}
    verdict = type("Verdict", (), {name: Figure(value) for name, value in figures.items()})()
    setting = Setting(policy=PolicyChoice(label=label, policy="fifo"), slots=slots or Slots(), auto=auto)
    return Trial(setting, verdict, missed, unsure, seats)


ORDERED = [
    trial("faster", throughput=1.2),
    trial("own", worst=0.9941, decay=1.2, throughput=1.0),
    trial("slower, though it attains more", worst=1.0, throughput=0.9),
    trial("not shown to be kept", worst=0.995, throughput=1.5, unsure=("a",)),
    trial("one misses by little", worst=0.95, throughput=1.1, missed=("a",)),
    trial("one misses by much", worst=0.5, throughput=1.9, missed=("a",)),
    trial("two miss", worst=0.98, throughput=2.0, missed=("a", "b")),
]


def test_promises_come_before_throughput_and_throughput_before_what_nobody_promised():
    """Best first, whatever the order in which they were tried."""
    worst_first = ORDERED[::-1]
    for start in range(len(ORDERED)):
        assert best_of(worst_first[: len(ORDERED) - start]) is ORDERED[start]
    assert best_of([]) is None


def test_ties_go_to_what_was_tried_first():
    """Differences below the rounding are none, nor is a decay below 1 better than 1."""
    own, same = trial("own", worst=0.9941, decay=1.002), trial("same", worst=0.9943, decay=0.8, throughput=1.004)
    assert best_of([own, same]) is own
    assert best_of([same, own]) is same
    assert efficient([own, same]) == [own, same]


def test_throughput_that_is_no_more_than_noise_is_not_bought_with_harm():
    """Within 1% of the most throughput the one that harms those who keep their promise least is recommended: it is the farthest
    from a cliff. Measured: 0.5% more throughput stood beside a setting that kept nothing when it was tried."""
    own, cliff = trial("own", worst=0.997, decay=1.13), trial("cliff", worst=0.99, decay=1.30, throughput=1.0052)
    gentler = trial("gentler", worst=0.997, decay=1.09, throughput=0.9981)
    assert best_of([cliff, own]) is own
    assert best_of([cliff, own, trial("no gentler", worst=0.998, decay=1.15, throughput=0.9981)]) is own
    assert best_of([cliff, own, gentler]) is gentler
    assert best_of([own, trial("faster", decay=3.0, throughput=1.02)]).setting.policy.label == "faster"


def test_what_is_recommended_is_never_beaten_in_the_table_beside_it():
    """Of those that tie, one that no other of them beats in attainment, decay and throughput alike. Measured: a setting was
    recommended beside one of less decay and more throughput, because it had been tried before."""
    first, beats = trial("first", worst=1.0, decay=1.32), trial("beats", worst=1.0, decay=1.23, throughput=1.009)
    assert best_of([first, beats]) is beats
    mixed = trial("milder and slower", worst=1.0, decay=1.25, throughput=0.995)
    assert best_of([first, mixed]) is first, "the first tried of two that do not beat each other"
    for trials in ([first, beats, mixed], [mixed, beats, first]):
        assert best_of(trials) in efficient(trials)


@pytest.mark.parametrize("beyond", [128, None], ids=["twice the seats", "unlimited"])
def test_of_what_ties_one_within_the_servers_seats_is_recommended(beyond):
    """More sequences out than a server takes on wait where no policy reaches them. Measured: such a setting, predicted at 99%
    and tied with one within the seats, kept 65.5%."""
    over = trial("over", worst=1.0, decay=1.05, throughput=1.005, slots=Slots(sequences=beyond), seats=64)
    within = trial("within", decay=1.1, slots=Slots(sequences=64), seats=64)
    assert best_of([over, within]) is within
    assert within.doubt == ""
    faster = trial("faster", throughput=1.02, slots=Slots(sequences=beyond), seats=64)
    assert best_of([within, faster]) is faster, "more than a tie is not given up"
    assert "to a server of 64 seats (max_num_seqs)" in faster.doubt


def test_slots_that_move_are_no_more_than_the_server_shows_room_for():
    """Their start and their bounds say nothing of what they come to."""
    moved = trial("moved", slots=Slots(), auto=usual_rule(Follows.WAITING), seats=64)
    assert not moved.beyond_seats
    assert best_of([moved, trial("within", slots=Slots(sequences=8), seats=64)]) is moved


def test_a_recommendation_beyond_the_servers_seats_says_why_it_is_doubtful():
    """16 sequences out to a server of 8 seats, and nothing tried that is better: the sentence says so."""
    search = tuner(SCENARIO.replace("max_num_seqs: 256", "max_num_seqs: 8"), seeds=1)
    assert search.try_(own_setting(search.answer.baseline)).seats == 8
    said = recommendation(search.answer)
    assert "Doubtful: it lets 16 sequences out to a server of 8 seats (max_num_seqs)" in said
    assert said.endswith("confirm it with --live.")


def test_the_trade_off_leaves_out_what_another_beats_in_everything():
    """A setting stays when it is best in something."""
    slower = trial("slower", throughput=0.9)
    gentle = trial("gentle", throughput=0.9, worst=0.999)
    assert efficient([trial("own"), slower, gentle])[1:] == [gentle]


def test_without_a_promise_there_is_nothing_to_tune():
    """The message says what would be one."""
    with pytest.raises(SourceError, match="attainment"):
        tuner("\n".join(line for line in SCENARIO.splitlines() if "slo:" not in line))


def test_all_grow_where_nobody_is_noisy():
    """Then every tenant is in contract, and the raised load is everybody's."""
    text = SCENARIO.replace("noisy: batch, ", "")
    found = tuner(text).answer
    assert found.raised.in_contract == ("chat", "batch")
    assert sum(tenant.offered for tenant in found.baseline.tenants) == pytest.approx(0.75 * 17_000)
    for before, after in zip(found.baseline.tenants, found.raised.tenants, strict=True):
        assert after.offered == pytest.approx(1.4 * before.offered)


def test_the_command_prints_the_trade_off_and_writes_it(tmp_path):
    """A row a trial, one recommendation with its predicted attainment, and the same in tune.json."""
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("duration_s: 20", "duration_s: 8"))
    out, err = io.StringIO(), io.StringIO()
    with chdir(tmp_path), redirect_stdout(out), redirect_stderr(err):
        code = main(
            ["tune", "s.yaml", "--policies", "wfq", "--seeds", "1", "--processes", "1", "--quiet", "--output-dir", "r"]
        )
    assert code == 0, err.getvalue()
    data = json.loads((tmp_path / "r/tune.json").read_text())
    assert data["schema"] == "lmperf.tune/1.1"
    assert data["recommendation"]["sentence"] in out.getvalue()
    assert data["recommendation"]["label"] in [row["label"] for row in data["trials"]]
    assert set(data["recommendation"]["attainment"]) == {"chat"}
    assert len(data["trials"]) > 8
    assert any(row["on_the_trade_off"] for row in data["trials"])
    assert data["command"].startswith("lmperf tune s.yaml --policies wfq")
    assert "1 seed gives no interval" in out.getvalue()
    assert "interval over" not in out.getvalue()
    assert load_scenario(tmp_path / "r/scenario.resolved.yaml", known=installed()).model.load.at == "raised"


def test_interrupted_before_its_first_trial_it_shows_no_empty_table(tmp_path, monkeypatch):
    """The sentence alone, and a tune.json without a recommendation."""
    (tmp_path / "s.yaml").write_text(SCENARIO)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Tuner, "try_", interrupted)
    out = io.StringIO()
    with chdir(tmp_path), redirect_stdout(out):
        code = main(["tune", "s.yaml", "--quiet", "--output-dir", "r"])
    assert code == 105
    assert "nothing is recommended" in out.getvalue()
    assert "worst attained" not in out.getvalue()
    assert json.loads((tmp_path / "r/tune.json").read_text())["recommendation"] is None


def test_a_trace_without_a_duration_is_one_realisation_and_has_no_interval(tmp_path):
    """However many seeds are asked for, in tune and in simulate: all would be the same run, and zero width no certainty."""
    rows = "".join(
        f'{{"timestamp": {100 * n}, "input_length": {200 + 40 * (n % 7)}, "output_length": {20 + n % 30}, "hash_ids": [{n}]}}\n'
        for n in range(120)
    )
    (tmp_path / "rows.jsonl").write_text(rows)
    (tmp_path / "s.yaml").write_text(
        "version: 1\nname: traced\nbackend: {kind: emulated}\npolicy: fifo\nslots: {sequences: 16, prefill_tokens: 2048}\n"
        "trace: {path: rows.jsonl, tenants: {by: index, order: [chat, batch]}}\nload: {noisy: batch}\ntenants:\n"
        "  chat: {slo: {ttft_ms: 500, attainment: 0.95}}\n  batch: {slo: {ttft_ms: 10000, attainment: 0.9}}\n"
    )
    for command, file in (("tune", "tune.json"), ("simulate", "comparison.json")):
        out, err = io.StringIO(), io.StringIO()
        flags = ["--policies", "wfq", "--seeds", "5", "--processes", "1", "--quiet", "--output-dir", command]
        with chdir(tmp_path), redirect_stdout(out), redirect_stderr(err):
            assert main([command, "s.yaml", *flags]) == 0, err.getvalue()
        assert "so it has one realisation" in " ".join(out.getvalue().split())
        assert "interval over" not in out.getvalue()
        data = json.loads((tmp_path / command / file).read_text())
        assert (data["seeds"] if command == "tune" else data["source"]["seeds"]) == 1
    trials = json.loads((tmp_path / "tune/tune.json").read_text())["trials"]
    assert {trial["worst_attainment"]["low"] for trial in trials} == {None}
