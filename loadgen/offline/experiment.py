"""Policies x loads x seeds, simulated over all cores, and what they say of each policy: decay, interference, attainment.

Definitions are those of docs/definitions.md. Every run of a seed shares the victims' arrivals and lengths (one stream a
tenant), so decay and rho compare like with like. Seeds are the replicates of every interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from loadgen.offline.cell import CellJob, CellResult, Recipe, run_cell
from loadgen.offline.workers import Workers
from scheduler.auto_rule import AutoRule
from scheduler.cost import CostModel
from scheduler.routing import Routing
from scheduler.server_model.spec import ServerModelSpec
from scheduler.slots import Slots
from tenants.measures.interference import Growth

BASELINE = "baseline"
RAISED = "raised"

OnProgress = Callable[[int, int], None]
"""``on_progress(done, total)`` cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """One row of a comparison: a policy with its options, and slots of its own if they differ from the scenario's;
    ``auto``: what moves them, if not what the scenario says."""

    label: str
    policy: str
    options: Mapping[str, object] = field(default_factory=dict)
    slots: Slots | None = None
    auto: AutoRule | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One level of load: ``growth`` by tenant over the recipe; ``noisy``: the tenants that it raises."""

    label: str
    growth: Mapping[str, float] = field(default_factory=dict)
    noisy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is compared. ``loads``: "baseline" first, then the raised ones. ``in_contract``: tenants that no load raises.
    ``auto``, ``backends``, ``routing``: as in a job; ``auto`` holds for choices without slots of their own.
    ``groups``: tenants whose requests are pooled when the least attained one is looked for, by a common name.
    ``scratch``: as in a job."""

    recipe: Recipe
    policies: Sequence[PolicyChoice]
    loads: Sequence[Load]
    seeds: Sequence[int]
    server: ServerModelSpec
    slots: Slots
    cost: CostModel
    window_ns: tuple[int, int]
    in_contract: tuple[str, ...]
    groups: Mapping[str, str] = field(default_factory=dict)
    auto: AutoRule | None = None
    backends: Mapping[str, Slots] = field(default_factory=dict)
    routing: Routing = field(default_factory=Routing)
    scratch: Path | None = None

    def jobs(self) -> Iterator[CellJob]:
        """Every cell, seeds outermost, so that an interrupted experiment has whole seeds."""
        for seed in self.seeds:
            for load in self.loads:
                for choice in self.policies:
                    yield CellJob(
                        policy=choice.policy,
                        options=choice.options,
                        policy_label=choice.label,
                        load=load.label,
                        seed=seed,
                        growth=load.growth,
                        recipe=self.recipe,
                        server=self.server,
                        slots=choice.slots or self.slots,
                        auto=choice.auto or (self.auto if choice.slots is None else None),
                        backends={name: choice.slots or slots for name, slots in self.backends.items()},
                        routing=self.routing,
                        cost=self.cost,
                        window_ns=self.window_ns,
                        scratch=self.scratch,
                    )


@dataclass(frozen=True, slots=True)
class Cells:
    """Results by (policy label, load label, seed). ``interrupted``: some are missing."""

    results: Mapping[tuple[str, str, int], CellResult]
    interrupted: bool = False

    def of(self, policy: str, load: str) -> list[CellResult]:
        """A policy's results at a load, by seed."""
        found = [(seed, cell) for (p, where, seed), cell in self.results.items() if (p, where) == (policy, load)]
        return [cell for _, cell in sorted(found, key=lambda item: item[0])]

    def growths(self, policy: str, baseline: str, raised: str) -> list[dict[str, Growth]]:
        """TTFT P99 at both loads, by tenant, one entry a seed that has both."""
        return self._growths(policy, baseline, raised, "ttft_p99")

    def e2e_growths(self, policy: str, baseline: str, raised: str) -> list[dict[str, Growth]]:
        """E2E P99 at both loads, by tenant, one entry a seed that has both."""
        return self._growths(policy, baseline, raised, "e2e_p99")

    def _growths(self, policy: str, baseline: str, raised: str, figure: str) -> list[dict[str, Growth]]:
        before = {cell.seed: cell for cell in self.of(policy, baseline)}
        return [
            {
                name: Growth(getattr(before[cell.seed].tenants[name], figure), getattr(tenant, figure))
                for name, tenant in cell.tenants.items()
            }
            for cell in self.of(policy, raised)
            if cell.seed in before
        ]


def run_experiment(
    experiment: Experiment, *, processes: int | None = None, on_progress: OnProgress | None = None
) -> Cells:
    """Simulate every cell over ``processes`` (default: all cores). An interrupt keeps what is finished, and is told."""
    jobs = list(experiment.jobs())
    results: dict[tuple[str, str, int], CellResult] = {}
    try:
        with Workers(processes) as workers:
            for index, result in workers.results(run_cell, jobs):
                job = jobs[index]
                results[job.policy_label, job.load, job.seed] = result
                if on_progress is not None:
                    on_progress(len(results), len(jobs))
    except KeyboardInterrupt:
        return Cells(results, interrupted=True)
    return Cells(results)
