"""What a comparison of policies (or runs) found, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadgen.report.comparison import (
    Comparison,
    at_targets,
    best_of,
    contract_of,
    keeps_all,
    promised_in,
    rank_of,
    ranked,
    tail_of,
)
from loadgen.report.sentences import joined
from loadgen.report.text import figure, latency_figure, share, share_figure, target
from loadgen.summary.schema import Summary

_UNDECIDED = "the one realisation simulated (undecided without an interval)"


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
    if not any(promised_in(each) for each in comparisons):
        return f"Best is {best}."
    sure = all(each.has_intervals for each in comparisons)
    kept = [
        verdict.label
        for verdict in comparisons[0].verdicts
        if all(safe_under(verdict.label, each, sure=sure) for each in comparisons)
    ]
    if not kept:
        none = "is shown to keep every SLO" if sure else "is at every target in the one realisation simulated"
        return f"No policy {none} whichever tenant grows; best is {best}."
    verb = ("keeps" if len(kept) == 1 else "keep") if sure else ("is" if len(kept) == 1 else "are")
    what = "the SLO of all others" if sure else f"at the target of all others in {_UNDECIDED}"
    return f"Whichever tenant grows, {joined(kept)} {verb} {what}; best is {best}."


def safe_under(label: str, comparison: Comparison, *, sure: bool) -> bool:
    """Whether the policy keeps all that is promised; not ``sure``: is at it, of one realisation."""
    if not sure:
        return label in at_targets(comparison)
    return keeps_all(comparison.verdict_of(label), comparison) in {"kept", "no_slo"}


def _closest(comparison: Comparison, runs: Mapping[str, Summary]) -> str:
    """``; closest is X, whose least attained tenant, chat, got 97.1% of a promised 99%``, where runs can be ranked."""
    worst: dict[str, tuple[float, str, float, float]] = {}
    contract = contract_of(comparison)
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
    promised = promised_in(comparison)
    who = "every tenant in contract" if comparison.in_contract else "every tenant"
    best = ranked(comparison)[0]
    figures = (
        [f"worst attainment {share_figure(best.worst_attainment)}"] if best.worst_attainment.value is not None else []
    )
    figures.append(
        f"mean TTFT P99 {latency_figure(tail_of(best, comparison))} ms"
        if comparison.difference
        else f"P99 decay {figure(best.decay_in_contract)}"
    )
    if best.throughput_ratio.value is not None:
        percent = f"{100 * best.throughput_ratio.value:.1f}%"
        figures.append(f"{percent} of the throughput of {comparison.verdicts[0].label}")
    if not best.throughput.value:
        return f"Under {comparison.raised}, no request gets an answer under any policy."
    equal = best_of(comparison)
    alike = 1 < len(equal) == len(comparison.verdicts)
    same = len({rank_of(verdict, comparison) for verdict in comparison.verdicts}) == 1
    none_better = "all policies come to the same" if same else "all policies are alike, to a point and 5%"
    who_is_best = none_better if alike else f"best {'is' if len(equal) == 1 else 'are'} {joined(equal)}"
    said = f"{who_is_best} ({', '.join(figures)})"
    if not promised:
        return f"Under {comparison.raised}, {said}."
    if not comparison.has_intervals:
        return f"Under {comparison.raised}, {_at_target(comparison)}; {said}."
    kept = [verdict.label for verdict in comparison.verdicts if keeps_all(verdict, comparison) == "kept"]
    if not kept:
        return f"Under {comparison.raised} no policy is shown to keep the SLO of {who}; {said}."
    verb = "keeps" if len(kept) == 1 else "keep"
    return f"Under {comparison.raised}, {joined(kept)} {verb} the SLO of {who}; {said}."


def _at_target(comparison: Comparison) -> str:
    """Without intervals nothing is kept or broken; which policies are at every target is still what people look for."""
    there = at_targets(comparison)
    if not there:
        return "no policy is at every target in the one realisation simulated"
    return f"{joined(there)} {'is' if len(there) == 1 else 'are'} at every target in {_UNDECIDED}"
