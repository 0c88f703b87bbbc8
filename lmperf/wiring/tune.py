"""Which policy, slots, weights and admission limits keep the promises best: a small search that ends in a table.

A coordinate search, each stage around the best of what came before it: policies, then slots (sequences and prefill tokens,
halved and doubled, and sequences that move by themselves), then the weights of the tenants that miss most, then a limit on the
noisy tenants' queues. Every trial is simulated at the baseline and at the raised load with the same seeds, and offers the same
load. How they rank says :mod:`lmperf.wiring.tune_ranking`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lmperf.scenario.load import Scenario
from lmperf.scenario.model import At
from lmperf.scenario.plan import Plan
from lmperf.wiring.capacity_study import too_few_seeds
from lmperf.wiring.confirm import job_of_plan
from lmperf.wiring.dispatching import auto_of, slots_of
from lmperf.wiring.saturation import resolve_with_saturation
from lmperf.wiring.servers import server_model_of
from lmperf.wiring.setting import Setting
from lmperf.wiring.sources import ONE_REALISATION, SourceError, recipe_of, seeds_of
from lmperf.wiring.tune_ranking import Trial, best_of
from lmperf.wiring.variants import (
    auto_rules,
    pinned,
    resolved,
    with_growth,
)
from loadgen.offline.experiment import BASELINE, RAISED, Cells, Experiment, Load, OnProgress, PolicyChoice
from loadgen.offline.replicas import ReplicatedJob, run_replicated
from loadgen.offline.verdicts import Figure, PolicyVerdict, judge_policies
from loadgen.offline.workers import Workers
from scheduler.slots import Slots

_WEIGHT_FACTORS = (2.0, 4.0)
_QUEUE_PER_SEQUENCE = (1, 4)
_UNLIMITED_PREFILL = (1024, 2048, 4096)
_UNLIMITED_SEQUENCES = (32, 64, 128)


@dataclass(slots=True)
class TuneAnswer:
    """``trials`` in the order tried, the scenario's own setting first. ``complete``: all of them. ``notes``: what makes
    them doubtful, sentences."""

    scenario: Scenario
    baseline: Plan
    raised: Plan
    seeds: int
    trials: list[Trial] = field(default_factory=list)
    interrupted: bool = False
    complete: bool = False
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Trial | None:
        return best_of(self.trials)

    @property
    def targets(self) -> dict[str, float]:
        """By tenant in contract."""
        slos = {p.tenant.name: p.tenant.slo for p in self.raised.tenants if p.tenant.name in self.raised.in_contract}
        return {n: slo.attainment for n, slo in slos.items() if slo.has_limits and slo.attainment is not None}

    def attained(self, trial: Trial) -> dict[str, Figure]:
        """The predicted attainment of every tenant in contract, raised load."""
        return {name: trial.verdict.raised[name].attainment for name in self.targets}


class Tuner:
    """Runs trials of one scenario. Raises SourceError when there is nothing to simulate or to judge."""

    def __init__(
        self, scenario: Scenario, *, seeds: int, workers: Workers, on_runs: Callable[[str], OnProgress]
    ) -> None:
        scenario = with_growth(scenario)
        base = resolve_with_saturation(scenario, at=At.BASELINE)
        server = server_model_of(base.backend)
        if server is None:
            raise SourceError(
                "this scenario names a real server and no server model: calibrate one (lmperf calibrate) and name it "
                "with --server-model FILE"
            )
        raised = resolve_with_saturation(pinned(scenario, replace(base, at=At.RAISED)))
        self._scenarios = {BASELINE: pinned(scenario, base), RAISED: pinned(scenario, raised)}
        self.answer = TuneAnswer(self._scenarios[RAISED], base, raised, seeds)
        if not self.answer.targets:
            raise SourceError(
                "no tenant in contract has per-request limits with an attainment target, so no setting is better than "
                "another: give one slo: {ttft_ms: 500, attainment: 0.99}"
            )
        self._seats = server.limits.max_num_seqs
        recipe = recipe_of(base)
        self._seeds = seeds_of(recipe, base.seed, seeds)
        self.answer.seeds = len(self._seeds)
        self._doubts = (ONE_REALISATION,) if recipe.one_realisation else tuple(too_few_seeds(seeds))
        self._workers = workers
        self._on_runs = on_runs
        self._reference: PolicyChoice | None = None
        self._cells: Cells = Cells({})

    def try_(self, setting: Setting) -> Trial:
        """Simulate ``setting`` at both loads over all seeds; a setting is simulated once."""
        for trial in self.answer.trials:
            if trial.setting.label == setting.label:
                return trial
        label = setting.label
        jobs: list[ReplicatedJob] = []
        for load, scenario in self._scenarios.items():
            plan = resolved(setting.of(scenario))
            jobs += [job_of_plan(plan, label=label, load=load, seed=seed) for seed in self._seeds]
        self.answer.notes = (*jobs[0].cell.recipe.notes, *self._doubts)
        results = self._workers.map(run_replicated, jobs, self._on_runs(label))
        self._cells = Cells({**self._cells.results, **{(r.policy_label, r.load, r.seed): r for r in results}})
        choice = replace(setting.policy, label=label)
        self._reference = self._reference or choice
        verdict = self._judge([choice] if choice == self._reference else [self._reference, choice], jobs[0])[-1]
        found = {name: (verdict.raised[name].attainment, target) for name, target in self.answer.targets.items()}
        trial = Trial(
            setting,
            verdict,
            missed=tuple(n for n, (share, target) in found.items() if share.value is not None and share.value < target),
            unsure=tuple(n for n, (share, target) in found.items() if share.interval and share.interval.low < target),
            seats=self._seats,
        )
        self.answer.trials.append(trial)
        return trial

    def _judge(self, choices: Sequence[PolicyChoice], job: ReplicatedJob) -> list[PolicyVerdict]:
        cell, raised = job.cell, self.answer.raised
        experiment = Experiment(
            recipe=cell.recipe,
            policies=choices,
            loads=[Load(label=BASELINE), Load(label=RAISED, noisy=raised.noisy)],
            seeds=self._seeds,
            server=cell.server,
            slots=cell.slots,
            cost=cell.cost,
            window_ns=cell.window_ns,
            in_contract=raised.in_contract,
            groups={planned.tenant.name: planned.group for planned in raised.tenants},
        )
        return judge_policies(experiment, self._cells, BASELINE, RAISED)


def own_setting(plan: Plan) -> Setting:
    """What the scenario itself says; without a queue, first in, first out and unlimited slots."""
    queues = plan.policy.queues
    policy = PolicyChoice(
        label=plan.policy.name if queues else "fifo",
        policy=plan.policy.name if queues else "fifo",
        options=dict(plan.policy.options) if queues else {},
    )
    return Setting(policy=policy, slots=slots_of(plan), auto=auto_of(plan))


def tune(
    tuner: Tuner,
    choices: Sequence[PolicyChoice],
    *,
    on_trial: Callable[[TuneAnswer], None] = lambda _: None,
) -> TuneAnswer:
    """All stages; an interrupt keeps the trials that are finished."""
    answer = tuner.answer
    try:
        for stage in (_policies, _slots, _weights, _queues):
            for setting in stage(answer, choices):
                tuner.try_(setting)
                on_trial(answer)
        answer.complete = True
    except KeyboardInterrupt:
        answer.interrupted = True
    return answer


def _policies(answer: TuneAnswer, choices: Sequence[PolicyChoice]) -> Iterator[Setting]:
    own = own_setting(answer.baseline)
    yield own
    for choice in choices:
        auto = own.auto if choice.slots is None else None
        yield replace(own, policy=choice, slots=choice.slots or own.slots, auto=auto)


def _best_setting(answer: TuneAnswer) -> Setting:
    best = answer.best
    assert best is not None, "the scenario's own setting is tried first"
    return best.setting


def _slots(answer: TuneAnswer, _: Sequence[PolicyChoice]) -> Iterator[Setting]:
    best = _best_setting(answer)
    for sequences in _around(best.slots.sequences, _UNLIMITED_SEQUENCES):
        for prefill in _around(best.slots.prefill_tokens, _UNLIMITED_PREFILL):
            yield replace(best, slots=Slots(sequences=sequences, prefill_tokens=prefill), auto=None)
    for rule in auto_rules(answer.scenario):
        yield replace(best, auto=rule)


def _around(value: int | None, unlimited: Sequence[int]) -> Sequence[int | None]:
    """Half of it, it, and twice as much; where it was unlimited, a few usual limits and that."""
    return (*unlimited, None) if value is None else tuple(dict.fromkeys((max(1, value // 2), value, 2 * value)))


def _weights(answer: TuneAnswer, _: Sequence[PolicyChoice]) -> Iterator[Setting]:
    """More weight for each tenant that misses its target, worst first; for the worst one when none does."""
    best = answer.best
    assert best is not None, "the scenario's own setting is tried first"
    if len({planned.group for planned in answer.raised.tenants}) < 2:
        return
    spent = {name: _budget_spent(answer, best, name) for name in answer.targets}
    order = sorted(spent, key=lambda name: -spent[name])
    names = [name for name in order if name in best.missed] or order[:1]
    groups = {planned.tenant.name: planned.group for planned in answer.raised.tenants}
    for group in dict.fromkeys(groups[name] for name in names[:3]):
        setting = _best_setting(answer)
        for factor in _WEIGHT_FACTORS:
            yield replace(setting, weights={**setting.weights, group: factor})


def _budget_spent(answer: TuneAnswer, trial: Trial, name: str) -> float:
    share = trial.verdict.raised[name].attainment.value
    return 0.0 if share is None else (1 - share) / (1 - answer.targets[name])


def _queues(answer: TuneAnswer, _: Sequence[PolicyChoice]) -> Iterator[Setting]:
    """A bound on what a noisy tenant may have waiting; where all grow, on everybody."""
    best = _best_setting(answer)
    names = answer.raised.noisy or tuple(planned.tenant.name for planned in answer.raised.tenants)
    groups = dict.fromkeys(planned.group for planned in answer.raised.tenants if planned.tenant.name in names)
    for times in _QUEUE_PER_SEQUENCE:
        most = times * (best.slots.sequences or _UNLIMITED_SEQUENCES[1])
        yield replace(best, queued=dict.fromkeys(groups, most))
