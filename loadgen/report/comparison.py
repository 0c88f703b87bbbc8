"""Policies (or runs) side by side: what a report needs, and what it says of them.

Two sources, either or both: *verdicts* of a simulated experiment (a baseline against a raised load, over seeds), and
*runs*, summaries by label. Where a live and a simulated run have the same policy, they stand beside each other with
signed errors. A tenant in contract is one whose load the experiment does not raise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadgen.offline.fidelity import TOTAL as ALL_TENANTS
from loadgen.offline.fidelity import FidelityRow
from loadgen.offline.verdicts import Figure, PolicyVerdict, state_hits
from loadgen.report.text import (
    METRIC_NAMES,
    NOTHING,
    latency,
    percentile_of,
    rate,
    share,
    signed_error,
)
from loadgen.summary.schema import Summary, TenantSummary

_TRUST = ("TTFT P50", "TTFT P99", "E2E P99", "throughput")

PAIRED_FIGURES = (("ttft", 50.0), ("ttft", 99.0), ("tpot", 50.0), ("itl", 99.0), ("e2e", 50.0), ("e2e", 99.0))

Rank = tuple[bool, float, bool, float]
"""See :func:`rank_of`; less is better."""

ALIKE = (0.01, 0.05)
"""A point of attainment, and a share of the decay or tail: by less two simulations of one realisation are not told apart, nor
are captured runs (``lmperf calibrate``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityTable:
    """How well a simulation reproduces a captured run. ``arrivals``: how the simulator made the arrivals that followed
    an answer, ``regenerated`` or ``recorded`` (docs/definitions). ``repeats``: the range of each figure over repeats of
    the live run, by (tenant, metric), in the rows' units.
    """

    rows: Sequence[FidelityRow]
    arrivals: str
    repeats: Mapping[tuple[str, str], tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``targets``: promised attainment by tenant. ``in_contract``: the tenants whose load is not raised; ``noisy``:
    those whose load is; ``removed``: those that only the baseline has. ``baseline``, ``raised``: the two loads in words.
    ``notes``: what makes it doubtful, sentences.
    ``difference``: the raised side differs in more than its load, so that decay tells nothing of a policy: one that is bad
    on the baseline gains most. ``runs``: by label, live or simulated. ``name``: what it is called among alternatives.
    """

    verdicts: Sequence[PolicyVerdict] = ()
    runs: Mapping[str, Summary] = field(default_factory=dict)
    fidelity: FidelityTable | None = None
    targets: Mapping[str, float] = field(default_factory=dict)
    in_contract: Sequence[str] = ()
    noisy: Sequence[str] = ()
    removed: Sequence[str] = ()
    difference: bool = False
    baseline: str = "the baseline load"
    raised: str = "the raised load"
    notes: Sequence[str] = ()
    name: str = ""

    @property
    def tenants(self) -> list[str]:
        """Every tenant, in order of appearance."""
        names = [name for verdict in self.verdicts for name in verdict.raised]
        names += [tenant.tenant for summary in self.runs.values() for tenant in summary.tenants]
        return list(dict.fromkeys(names))

    @property
    def states_hits(self) -> bool:
        """True when any of it states a cache hit share."""
        return state_hits(self.verdicts) or any(summary.total.hit_share is not None for summary in self.runs.values())

    @property
    def verdicts_by_label(self) -> dict[str, PolicyVerdict]:
        return {verdict.label: verdict for verdict in self.verdicts}

    def verdict_of(self, label: str) -> PolicyVerdict:
        """Raises KeyError for a policy that was not compared."""
        for verdict in self.verdicts:
            if verdict.label == label:
                return verdict
        raise KeyError(label)

    @property
    def has_intervals(self) -> bool:
        """False with fewer than five seeds: then no policy has a verdict."""
        return any(verdict.throughput.interval is not None for verdict in self.verdicts)


@dataclass(frozen=True, slots=True)
class Pair:
    """A live run and the simulation of the same policy, by their labels."""

    live: str
    simulated: str


def pairs_of(runs: Mapping[str, Summary]) -> list[Pair]:
    """For each live run the simulated one of the same policy and options; with the same policy alone when none has the
    same options. A simulation belongs to one live run at most.
    """
    free = [label for label, summary in runs.items() if summary.kind == "simulated"]
    pairs = []
    for label, live in runs.items():
        if live.kind == "simulated":
            continue
        same = [other for other in free if runs[other].policy == live.policy]
        same.sort(key=lambda other: (runs[other].policy_options or {}) != (live.policy_options or {}))
        if same:
            free.remove(same[0])
            pairs.append(Pair(label, same[0]))
    return pairs


def judged(found: Figure, promised: float | None) -> str:
    """A verdict on an attainment over seeds: the interval decides, as for a run; without one it is undecided."""
    if promised is None or found.value is None:
        return "no_slo"
    if found.interval is None:
        return "undecided"
    if found.interval.low >= promised:
        return "kept"
    return "broken" if found.interval.high < promised else "undecided"


def ranked(comparison: Comparison) -> list[PolicyVerdict]:
    """Best first."""
    return sorted(comparison.verdicts, key=lambda verdict: rank_of(verdict, comparison))


def best_of(comparison: Comparison) -> list[str]:
    """The policies that no other is better than, in the comparison's order; in one realisation by more than ``ALIKE``."""
    ranks = {verdict.label: rank_of(verdict, comparison) for verdict in comparison.verdicts}
    best = min(ranks.values(), default=None)
    if best is None:
        return []
    told = comparison.has_intervals
    return [label for label, rank in ranks.items() if rank == best or (not told and _alike(rank, best))]


def _alike(rank: Rank, best: Rank) -> bool:
    (mute, worst, bound, then), (mute_best, worst_best, bound_best, then_best) = rank, best
    points, share = ALIKE
    near = then <= then_best * (1 + share) and worst <= worst_best + points
    return (mute, bound) == (mute_best, bound_best) and near


def keeps_all(verdict: PolicyVerdict, comparison: Comparison) -> str:
    """Whether a policy keeps every promise to those in contract: broken if one is, kept when all are."""
    words = {judged(verdict.raised[name].attainment, comparison.targets[name]) for name in promised_in(comparison)}
    return next((word for word in ("broken", "undecided", "kept") if word in words), "no_slo")


def worst_tenant(verdict: PolicyVerdict, comparison: Comparison) -> str | None:
    """Of those in contract, whose attainment is least over its target; None when nothing was promised."""
    shares = {name: verdict.raised[name].attainment.value for name in promised_in(comparison)}
    known = {name: value - comparison.targets[name] for name, value in shares.items() if value is not None}
    return min(known, key=lambda name: known[name], default=None)


def promised_in(comparison: Comparison) -> list[str]:
    """Of those in contract, who was promised something and made a request that it can be held to."""
    return [
        name
        for name in contract_of(comparison)
        if name in comparison.targets
        and any(verdict.raised[name].attainment.value is not None for verdict in comparison.verdicts)
    ]


def contract_of(comparison: Comparison) -> Sequence[str]:
    """Those in contract; where none is named, everybody that is still there."""
    return comparison.in_contract or [name for name in comparison.tenants if name not in comparison.removed]


def fidelity_line(table: FidelityTable) -> str:
    """How far to believe a simulated answer: its errors against the captured run, over all tenants, in one line."""
    errors = {row.metric: row.error for row in table.rows if row.tenant == ALL_TENANTS}
    shown = [f"{name} {signed_error(errors[name])}" for name in _TRUST if name in errors and errors[name] is not None]
    if not shown:
        return (
            "How far the simulation is to be believed is not known: the captured run has no latencies to compare with."
        )
    return f"The simulation reproduces the captured run with errors of {', '.join(shown)} (arrivals {table.arrivals})."


def at_targets(comparison: Comparison) -> list[str]:
    """The policies under which everybody in contract is at its target; without intervals that proves nothing."""
    promised = promised_in(comparison)
    return [
        verdict.label
        for verdict in comparison.verdicts
        if all((verdict.raised[name].attainment.value or 0.0) >= comparison.targets[name] for name in promised)
    ]


def rank_of(verdict: PolicyVerdict, comparison: Comparison) -> Rank:
    """One that answers nothing is last. Attainment decides to three decimals, since the seeds decide the rest; then the
    decay, or under a difference the tail that it comes to (a bound after all that is known)."""
    worst = verdict.worst_attainment.value
    then = tail_of(verdict, comparison) if comparison.difference else verdict.decay_in_contract
    return (
        not verdict.throughput.value,
        -round(worst, 3) if worst is not None else 0.0,
        comparison.difference and then.bound,
        then.value if then.value is not None else float("inf"),
    )


def tail_of(verdict: PolicyVerdict, comparison: Comparison) -> Figure:
    """TTFT P99 (ns) on the raised side, mean over those in contract."""
    tails = [verdict.raised[name].ttft_p99 for name in contract_of(comparison)]
    known = [tail.value for tail in tails if tail.value is not None]
    return Figure(sum(known) / len(known) if known else None, bound=any(tail.bound for tail in tails))


@dataclass(frozen=True, slots=True)
class PairRow:
    """One figure of a live run and of its simulation, as text; ``error`` is signed, simulated / live - 1."""

    tenant: str
    figure: str
    live: str
    simulated: str
    error: str


def pair_rows(live: Summary, simulated: Summary) -> list[PairRow]:
    """Latencies (ms) and attainment of every tenant that both have, then the throughput."""
    rows = []
    others = {tenant.tenant: tenant for tenant in simulated.tenants}
    for tenant in live.tenants:
        other = others.get(tenant.tenant)
        if other is not None:
            rows += [_latency_row(tenant, other, metric, p) for metric, p in PAIRED_FIGURES]
            rows.append(_attainment_row(tenant, other))
    measured, predicted = (run.total.throughput.output_tokens_per_s for run in (live, simulated))
    error = predicted / measured - 1 if measured else None
    rows.append(PairRow("all", "output tokens/s", rate(measured), rate(predicted), signed_error(error)))
    return [row for row in rows if row.live != NOTHING or row.simulated != NOTHING]


def _latency_row(live: TenantSummary, simulated: TenantSummary, metric: str, p: float) -> PairRow:
    measured, predicted = percentile_of(live, metric, p), percentile_of(simulated, metric, p)
    error = None
    if measured and predicted and measured.value_ms and predicted.value_ms is not None:
        error = predicted.value_ms / measured.value_ms - 1
    name = f"{METRIC_NAMES[metric]} P{p:g}, ms"
    return PairRow(live.tenant, name, latency(measured), latency(predicted), signed_error(error))


def _attainment_row(live: TenantSummary, simulated: TenantSummary) -> PairRow:
    shares = [None if run.attainment is None else run.attainment.share for run in (live, simulated)]
    error = NOTHING
    if shares[0] is not None and shares[1] is not None:
        error = f"{100 * (shares[1] - shares[0]):+.1f} points"
    return PairRow(live.tenant, "attainment", share(shares[0]), share(shares[1]), error)
