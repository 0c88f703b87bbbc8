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
from loadgen.report.sentences import joined
from loadgen.report.text import (
    METRIC_NAMES,
    NOTHING,
    figure,
    latency,
    latency_figure,
    percentile_of,
    rate,
    share,
    share_figure,
    signed_error,
    target,
)
from loadgen.summary.schema import Summary, TenantSummary

_TRUST = ("TTFT P50", "TTFT P99", "E2E P99", "throughput")

PAIRED_FIGURES = (("ttft", 50.0), ("ttft", 99.0), ("tpot", 50.0), ("itl", 99.0), ("e2e", 50.0), ("e2e", 99.0))


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
    on the baseline gains most. ``runs``: by label, live or simulated.
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
    return sorted(comparison.verdicts, key=lambda verdict: _rank(verdict, comparison))


def keeps_all(verdict: PolicyVerdict, comparison: Comparison) -> str:
    """Whether a policy keeps every promise to those in contract: broken if one is, kept when all are."""
    words = {judged(verdict.raised[name].attainment, comparison.targets[name]) for name in _promised(comparison)}
    return next((word for word in ("broken", "undecided", "kept") if word in words), "no_slo")


def worst_tenant(verdict: PolicyVerdict, comparison: Comparison) -> str | None:
    """Of those in contract, whose attainment is least over its target; None when nothing was promised."""
    shares = {name: verdict.raised[name].attainment.value for name in _promised(comparison)}
    known = {name: value - comparison.targets[name] for name, value in shares.items() if value is not None}
    return min(known, key=lambda name: known[name], default=None)


def _promised(comparison: Comparison) -> list[str]:
    """Of those in contract, who was promised something and made a request that it can be held to."""
    return [
        name
        for name in _contract(comparison)
        if name in comparison.targets
        and any(verdict.raised[name].attainment.value is not None for verdict in comparison.verdicts)
    ]


def _contract(comparison: Comparison) -> Sequence[str]:
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


def answer(comparison: Comparison) -> str:
    """What the comparison found, in one sentence."""
    if comparison.verdicts:
        return _best_policy(comparison)
    believed = {label: summary for label, summary in comparison.runs.items() if summary.validity.valid}
    kept = [label for label, summary in believed.items() if summary.verdict == "kept"]
    of = f"{len(comparison.runs)} run{'s' if len(comparison.runs) != 1 else ''}"
    if kept:
        return f"{len(kept)} of {of} kept every tenant's SLO: {joined(kept)}."
    closest = _closest(comparison, believed or comparison.runs)
    none = "The one run does not show" if len(comparison.runs) == 1 else f"None of the {of} shows"
    return f"{none} that every tenant kept its SLO{closest}."


def answer_of_all(comparisons: Sequence[Comparison]) -> str:
    """The same of several, each of which raises another tenant's load: who keeps what is promised whoever grows."""
    if len(comparisons) == 1:
        return answer(comparisons[0])
    best = joined([f"{ranked(each)[0].label} when {joined(each.noisy)} grows" for each in comparisons])
    if not any(_promised(each) for each in comparisons):
        return f"Best is {best}."
    sure = all(each.has_intervals for each in comparisons)
    kept = [
        verdict.label
        for verdict in comparisons[0].verdicts
        if all(_safe(verdict.label, each, sure=sure) for each in comparisons)
    ]
    if not kept:
        none = "is shown to keep every SLO" if sure else "is at every target in the one realisation simulated"
        return f"No policy {none} whichever tenant grows; best is {best}."
    verb = ("keeps" if len(kept) == 1 else "keep") if sure else ("is" if len(kept) == 1 else "are")
    what = "the SLO of all others" if sure else "at the target of all others in the one realisation simulated"
    return f"Whichever tenant grows, {joined(kept)} {verb} {what}; best is {best}."


def _safe(label: str, comparison: Comparison, *, sure: bool) -> bool:
    """Whether the policy keeps all that is promised; not ``sure``: is at it, of one realisation."""
    if not sure:
        return label in _there(comparison, _promised(comparison))
    return keeps_all(comparison.verdict_of(label), comparison) in {"kept", "no_slo"}


def _closest(comparison: Comparison, runs: Mapping[str, Summary]) -> str:
    """``; closest is X, whose least attained tenant, chat, got 97.1% of a promised 99%``, where runs can be ranked."""
    worst: dict[str, tuple[float, str, float, float]] = {}
    contract = _contract(comparison)
    for label, summary in runs.items():
        for tenant in summary.tenants:
            attained = tenant.attainment
            if tenant.tenant not in contract or attained is None or attained.share is None or attained.target is None:
                continue
            found = (attained.share - attained.target, tenant.tenant, attained.share, attained.target)
            worst[label] = min(worst.get(label, found), found)
    if not worst:
        return ""
    label = max(worst, key=lambda one: worst[one][0])
    _, name, reached, promised = worst[label]
    whose = f"whose least attained tenant in contract, {name}, got {share(reached)} of a promised {target(promised)}"
    return f"; closest is {label}, {whose}"


def _best_policy(comparison: Comparison) -> str:
    promised = _promised(comparison)
    who = "every tenant in contract" if comparison.in_contract else "every tenant"
    best = ranked(comparison)[0]
    figures = (
        [f"worst attainment {share_figure(best.worst_attainment)}"] if best.worst_attainment.value is not None else []
    )
    figures.append(
        f"mean TTFT P99 {latency_figure(_tail(best, comparison))} ms"
        if comparison.difference
        else f"P99 decay {figure(best.decay_in_contract)}"
    )
    if best.throughput_ratio.value is not None:
        percent = f"{100 * best.throughput_ratio.value:.1f}%"
        figures.append(f"{percent} of the throughput of {comparison.verdicts[0].label}")
    if not best.throughput.value:
        return f"Under {comparison.raised}, no request gets an answer under any policy."
    first = _rank(best, comparison)
    equal = [verdict.label for verdict in comparison.verdicts if _rank(verdict, comparison) == first]
    alike = 1 < len(equal) == len(comparison.verdicts)
    who_is_best = (
        "all policies come to the same" if alike else f"best {'is' if len(equal) == 1 else 'are'} {joined(equal)}"
    )
    said = f"{who_is_best} ({', '.join(figures)})"
    if not promised:
        return f"Under {comparison.raised}, {said}."
    if not comparison.has_intervals:
        return (
            f"Under {comparison.raised}, {_at_target(comparison, promised)} in the one realisation simulated; {said}."
        )
    kept = [verdict.label for verdict in comparison.verdicts if keeps_all(verdict, comparison) == "kept"]
    if not kept:
        return f"Under {comparison.raised} no policy is shown to keep the SLO of {who}; {said}."
    verb = "keeps" if len(kept) == 1 else "keep"
    return f"Under {comparison.raised}, {joined(kept)} {verb} the SLO of {who}; {said}."


def _at_target(comparison: Comparison, promised: Sequence[str]) -> str:
    """Without intervals nothing is kept or broken; which policies are at every target is still what people look for."""
    there = _there(comparison, promised)
    if not there:
        return "no policy is at every target"
    return f"{joined(there)} {'is' if len(there) == 1 else 'are'} at every target"


def _there(comparison: Comparison, promised: Sequence[str]) -> list[str]:
    return [
        verdict.label
        for verdict in comparison.verdicts
        if all((verdict.raised[name].attainment.value or 0.0) >= comparison.targets[name] for name in promised)
    ]


def _rank(verdict: PolicyVerdict, comparison: Comparison) -> tuple[bool, float, bool, float]:
    """One that answers nothing is last. Attainment decides to three decimals, since the seeds decide the rest; then the
    decay, or under a difference the tail that it comes to (a bound after all that is known)."""
    worst = verdict.worst_attainment.value
    then = _tail(verdict, comparison) if comparison.difference else verdict.decay_in_contract
    return (
        not verdict.throughput.value,
        -round(worst, 3) if worst is not None else 0.0,
        comparison.difference and then.bound,
        then.value if then.value is not None else float("inf"),
    )


def _tail(verdict: PolicyVerdict, comparison: Comparison) -> Figure:
    """TTFT P99 (ns) on the raised side, mean over those in contract."""
    tails = [verdict.raised[name].ttft_p99 for name in _contract(comparison)]
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
