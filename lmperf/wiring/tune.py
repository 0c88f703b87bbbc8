"""Which policy, slots, weights and admission limits keep the promises best: a small search that ends in a table.

A coordinate search, each stage around the best of what came before it: policies, then slots (sequences and prefill tokens,
halved and doubled, and sequences that move by themselves), then the weights of the tenants that miss most, then a limit on the
noisy tenants' queues. Every trial is simulated at the baseline and at the raised load with the same seeds, and offers the same
load. The best is found by

1. how many tenants in contract are below their target under the raised load, then how many are not shown to be at it
   (their interval reaches below);
2. where some are below: the attainment of the worst, to three decimals (the seeds decide the rest);
3. throughput, since attainment beyond a promise is worth none; what is within 1% of the best counts as the best;
4. P99 decay in contract, where below 1 is not better than 1, and what is within 0.1 of the least counts as the least: where
   those who keep their promise are harmed least, they are the farthest from losing it;
5. of those that are left, one that no other of them beats in attainment, decay and throughput alike (as the table rounds
   them), so that the recommendation never stands beside what is better in everything;
6. the order in which they were tried.

So the scenario's own setting wins where nothing does better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lmperf.scenario.load import Scenario
from lmperf.scenario.model import At
from lmperf.scenario.plan import Plan
from lmperf.wiring.confirm import job_of_plan
from lmperf.wiring.dispatching import auto_of, slots_of
from lmperf.wiring.saturation import resolve_with_saturation
from lmperf.wiring.servers import server_model_of
from lmperf.wiring.sources import SourceError
from lmperf.wiring.variants import (
    auto_rules,
    pinned,
    resolved,
    under_policy,
    with_growth,
    with_queue_limits,
    with_slots,
    with_weights,
)
from loadgen.offline.cell import slots_data
from loadgen.offline.experiment import BASELINE, RAISED, Cells, Experiment, Load, OnProgress, PolicyChoice
from loadgen.offline.replicas import ReplicatedJob, run_replicated
from loadgen.offline.verdicts import Figure, PolicyVerdict, judge_policies
from loadgen.offline.workers import Workers
from scheduler.auto_rule import AutoRule, Follows
from scheduler.slots import Slots

_SAME_THROUGHPUT, _SAME_DECAY = 0.01, 0.1
_WEIGHT_FACTORS = (2.0, 4.0)
_QUEUE_PER_SEQUENCE = (1, 4)
_UNLIMITED_PREFILL = (1024, 2048, 4096)
_UNLIMITED_SEQUENCES = (32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What one trial sets; weights are factors and queue limits requests, by group of tenants. ``auto``: what moves the
    slots, which start at ``slots``; None: they are fixed."""

    policy: PolicyChoice
    slots: Slots
    auto: AutoRule | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Distinct for distinct settings."""
        sequences = _or_all(self.slots.sequences) if self.auto is None else _moved(self.auto)
        parts = [self.policy.label, f"D={sequences}", f"X={_or_all(self.slots.prefill_tokens)}"]
        parts += [f"{name} weight x{factor:g}" for name, factor in self.weights.items()]
        parts += [f"{name} queue <= {most}" for name, most in self.queued.items()]
        return ", ".join(parts)

    def of(self, scenario: Scenario) -> Scenario:
        """The scenario under this setting."""
        variant = under_policy(scenario, replace(self.policy, slots=None))
        variant = with_queue_limits(with_slots(variant, self.slots, self.auto), self.queued)
        return with_weights(variant, self.weights) if self.weights else variant

    def data(self) -> dict[str, object]:
        """Plain data, for files."""
        return {
            "policy": self.policy.policy,
            "options": dict(self.policy.options),
            "slots": slots_data(self.slots, self.auto, {}),
            "weight_factors": dict(self.weights),
            "max_queued": dict(self.queued),
        }


def _moved(rule: AutoRule) -> str:
    return f"auto by {'TPOT' if rule.follows is Follows.TPOT else 'waiting'} ({rule.least} to {rule.most})"


def _or_all(limit: int | None) -> str:
    return "all" if limit is None else str(limit)


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting and what the simulation says of it. ``missed``: tenants in contract below their target. ``unsure``:
    those whose interval (there is one from five seeds on) reaches below it."""

    setting: Setting
    verdict: PolicyVerdict
    missed: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[float, ...]:
        """How far the promises are from being kept; less is better."""
        worst = self.verdict.worst_attainment.value or 0.0
        return len(self.missed), len(self.unsure), -round(worst, 3) if self.missed else 0.0

    @property
    def throughput(self) -> float:
        return self.verdict.throughput_ratio.value or 0.0

    @property
    def decay(self) -> float:
        """In contract, at least 1; infinite when nothing can be said."""
        decay = self.verdict.decay_in_contract.value
        return math.inf if decay is None else max(1.0, decay)


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The best, as this module's text says; the first tried among equals."""
    if not trials:
        return None
    least = min(trial.broken for trial in trials)
    left = [trial for trial in trials if trial.broken == least]
    most = max(trial.throughput for trial in left)
    left = [trial for trial in left if trial.throughput >= most - _SAME_THROUGHPUT]
    mildest = min(trial.decay for trial in left)
    return efficient([trial for trial in left if trial.decay <= mildest + _SAME_DECAY])[0]


def efficient(trials: Sequence[Trial]) -> list[Trial]:
    """The trade-off: trials that no other beats in worst attainment, decay and throughput alike."""
    axes = [_axes(trial) for trial in trials]
    return [
        trial
        for trial, own in zip(trials, axes, strict=True)
        if not any(other != own and all(o >= s for o, s in zip(other, own, strict=True)) for other in axes)
    ]


def _axes(trial: Trial) -> tuple[float, float, float]:
    """Throughput, decay (negative), worst attainment: more is better; rounded, so that noise makes no difference."""
    worst = trial.verdict.worst_attainment.value or 0.0
    return round(trial.throughput, 2), -round(trial.decay, 2), round(worst, 3)


@dataclass(slots=True)
class TuneAnswer:
    """``trials`` in the order tried, the scenario's own setting first. ``notes``: what makes them doubtful, sentences."""

    scenario: Scenario
    baseline: Plan
    raised: Plan
    seeds: int
    trials: list[Trial] = field(default_factory=list)
    interrupted: bool = False
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
        if server_model_of(base.backend) is None:
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
        self._seeds = range(base.seed, base.seed + seeds)
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
        self.answer.notes = jobs[0].cell.recipe.notes
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
