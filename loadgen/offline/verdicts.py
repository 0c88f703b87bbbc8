"""What an experiment says of each policy, as numbers with intervals over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.offline.cell import CellResult, TenantFigures, tenant_figures
from loadgen.offline.experiment import Cells, Experiment
from loadgen.recorder import Recorder
from loadgen.recording.window import rated_s
from tenants.measures.interference import Growth
from tenants.measures.intervals import Interval, t_interval
from tenants.measures.shares import percent_within


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over seeds; ``interval`` None with fewer than five. ``bound``: some seed's figure is only a bound."""

    value: float | None
    interval: Interval | None = None
    bound: bool = False

    def format(self, digits: int = 2) -> str:
        """``1.04 [1.02, 1.06]``; ``-`` without a value."""
        if self.value is None:
            return "-"
        text = f"{'>= ' if self.bound else ''}{self.value:.{digits}f}"
        if self.interval is None:
            return text
        return f"{text} [{self.interval.low:.{digits}f}, {self.interval.high:.{digits}f}]"

    def mean(self, scale: float, digits: int) -> str:
        """The value alone, times ``scale`` (of ns, 1e-6 gives ms): ``12,345``, ``> 12,345`` where it is a bound."""
        return "-" if self.value is None else f"{'> ' if self.bound else ''}{self.value * scale:,.{digits}f}"

    def percent(self, digits: int = 1) -> str:
        """Of an attainment, in percent: ``99.1 [98.7, 99.4]``, as :mod:`tenants.measures.shares` writes it."""
        return percent_within(self.value, self.interval, digits)


def figure(values: Iterable[float | None], *, bound: bool = False) -> Figure:
    """The mean of the replicates that have a value."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return Figure(None)
    return Figure(float(np.mean(known)), t_interval(known), bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantVerdict:
    """One tenant under one policy at one load: P50 and P99 of TTFT and E2E in ns, attainment, goodput in requests/s, and
    the share of its prompt tokens that the prefix cache held (without a value where no request states it)."""

    ttft_p50: Figure
    ttft_p99: Figure
    e2e_p50: Figure
    e2e_p99: Figure
    attainment: Figure
    goodput: Figure
    hit_share: Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVerdict:
    """One policy, baseline against one raised load. ``worst_attainment``: the least attained tenant in contract under the
    raised load (mean over seeds of the worst); ``throughput_ratio``: against the first policy of the experiment."""

    label: str
    decay_all: Figure
    decay_in_contract: Figure
    e2e_decay_all: Figure
    e2e_decay_in_contract: Figure
    rho: Figure
    rho_clipped: Figure
    worst_attainment: Figure
    mean_attainment: Figure
    throughput: Figure
    throughput_ratio: Figure
    jain: Figure
    baseline: Mapping[str, TenantVerdict]
    raised: Mapping[str, TenantVerdict]


def judge_policies(experiment: Experiment, cells: Cells, baseline: str, raised: str) -> list[PolicyVerdict]:
    """A verdict for each policy that has results at both loads, in the experiment's order."""
    found = []
    reference = {cell.seed: cell.throughput for cell in cells.of(experiment.policies[0].label, raised)}
    for choice in experiment.policies:
        after, before = cells.of(choice.label, raised), cells.of(choice.label, baseline)
        if after and before:
            found.append(_judge(experiment, cells, choice.label, (baseline, raised), reference))
    return found


def state_hits(verdicts: Iterable[PolicyVerdict]) -> bool:
    """True when any tenant states how much of its prompts the prefix cache held."""
    return any(
        side.hit_share.value is not None
        for verdict in verdicts
        for load in (verdict.baseline, verdict.raised)
        for side in load.values()
    )


def _judge(
    experiment: Experiment, cells: Cells, label: str, loads: tuple[str, str], reference: Mapping[int, float]
) -> PolicyVerdict:
    baseline, raised = loads
    contract = experiment.in_contract
    ttft = cells.growths(label, baseline, raised)
    e2e = cells.e2e_growths(label, baseline, raised)
    before, after = cells.of(label, baseline), cells.of(label, raised)
    everyone = tuple(tenant.name for tenant in experiment.recipe.tenants)
    attained = [_attainments(cell, contract, experiment.groups) for cell in after]
    return PolicyVerdict(
        label=label,
        decay_all=_decay(ttft, everyone),
        decay_in_contract=_decay(ttft, contract),
        e2e_decay_all=_decay(e2e, everyone),
        e2e_decay_in_contract=_decay(e2e, contract),
        rho=figure(_means([[g[name].rho for name in contract] for g in ttft]), bound=_censored(ttft, contract)),
        rho_clipped=figure(_means([[g[name].rho_clipped for name in contract] for g in ttft])),
        worst_attainment=figure(min(shares) if shares else None for shares in attained),
        mean_attainment=figure(float(np.mean(shares)) if shares else None for shares in attained),
        throughput=figure(cell.throughput for cell in after),
        throughput_ratio=figure(
            cell.throughput / reference[cell.seed] if reference.get(cell.seed) else None for cell in after
        ),
        jain=figure(cell.jain for cell in after),
        baseline={name: _tenant(before, name) for name in everyone},
        raised={name: _tenant(after, name) for name in everyone},
    )


def _decay(growths: Sequence[Mapping[str, Growth]], names: Sequence[str]) -> Figure:
    return figure(_means([[g[name].decay for name in names] for g in growths]), bound=_censored(growths, names))


def _means(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    known = [[value for value in row if value is not None] for row in rows]
    return [float(np.mean(row)) if row else None for row in known]


def _censored(growths: Sequence[Mapping[str, Growth]], names: Sequence[str]) -> bool:
    return any(growth[name].raised.never for growth in growths for name in names)


def _attainments(cell: CellResult, names: Sequence[str], groups: Mapping[str, str]) -> list[float]:
    """The attainment of each tenant, or of each group of tenants over all their requests."""
    met: dict[str, float] = {}
    total: dict[str, int] = {}
    for name in names:
        tenant = cell.tenants[name]
        if tenant.attainment is not None:
            group = groups.get(name, name)
            met[group] = met.get(group, 0.0) + tenant.attainment * tenant.requests
            total[group] = total.get(group, 0) + tenant.requests
    return [met[group] / total[group] for group in total if total[group]]


def _tenant(cells: Sequence[CellResult], name: str) -> TenantVerdict:
    return tenant_verdict([cell.tenants[name] for cell in cells])


def verdicts_of_run(recorder: Recorder) -> dict[str, TenantVerdict]:
    """Each tenant of one recorded run, captured or simulated, as of a single seed."""
    judged = recorder.columns().judged()
    duration_s = rated_s(recorder.window_ns, judged)
    return {
        tenant.name: tenant_verdict([tenant_figures(judged.of(tenant.name), tenant, duration_s)])
        for tenant in recorder.tenants
    }


def tenant_verdict(rows: Sequence[TenantFigures]) -> TenantVerdict:
    """One tenant's figures over seeds."""
    percentiles = {
        key: figure((getattr(row, key).at_least_ns for row in rows), bound=any(getattr(row, key).never for row in rows))
        for key in ("ttft_p50", "ttft_p99", "e2e_p50", "e2e_p99")
    }
    return TenantVerdict(
        **percentiles,
        attainment=figure(row.attainment for row in rows),
        goodput=figure(row.goodput for row in rows),
        hit_share=figure(row.hit_share for row in rows),
    )
