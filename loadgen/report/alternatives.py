"""Alternatives of one trace (or scenario) side by side: which policies keep every target in which, and which is best where.

An alternative is a :class:`~loadgen.report.comparison.Comparison` with a name; one that lacks policies, since an interrupt came
first, stands in tables and decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import pairwise

from loadgen.report.comparison import Comparison, best_of, promised_in, tail_of
from loadgen.report.comparison_sentences import safe_under
from loadgen.report.sentences import joined

AS_CAPTURED = "the trace as captured"
"""What alternatives are of, in words."""

_VALUE = re.compile(r"(?P<key>.+)=(?P<value>-?\d+(\.\d+)?)")
_NONE = "no policy"
_NAMED = 5
"""How many alternatives a sentence names before it counts the rest."""


def policies_of(comparisons: Sequence[Comparison]) -> list[str]:
    """Every policy of any of them, in order of appearance."""
    return list(dict.fromkeys(verdict.label for each in comparisons for verdict in each.verdicts))


def tenants_of(comparisons: Sequence[Comparison]) -> list[str]:
    return list(dict.fromkeys(name for each in comparisons for name in each.tenants))


def bests_of(comparison: Comparison, policies: Collection[str]) -> list[str]:
    """Who is best in one of several, to be marked there: nobody where all are alike, or not all of ``policies`` are known."""
    best = best_of(comparison)
    return best if len(best) < len(comparison.verdicts) == len(policies) else []


def answer_in_common(comparisons: Sequence[Comparison], *, unchanged: str = "") -> str:
    """The same of the policies that all of them have, where they were not simulated under the same ones."""
    policies = policies_of(comparisons)
    common = [label for label in policies if all(label in each.verdicts_by_label for each in comparisons)]
    if common == policies:
        return answer_of_alternatives(comparisons, unchanged=unchanged)
    if not common:
        return "No policy stands in all of them, so none is called best."
    alike = [replace(each, verdicts=[each.verdict_of(label) for label in common]) for each in comparisons]
    return f"Of what stands in all of them ({joined(common)}). {answer_of_alternatives(alike, unchanged=unchanged)}"


def answer_of_alternatives(comparisons: Sequence[Comparison], *, unchanged: str = "") -> str:
    """Who keeps every target where, and who is best where, in two sentences. ``unchanged``: the name among them of what the
    others are alternatives to."""
    policies = policies_of(comparisons)
    whole = [each for each in comparisons if len(each.verdicts) == len(policies)]
    if not whole:
        return "No alternative was simulated under every policy."
    sentences = []
    if any(promised_in(each) for each in whole):
        sure = all(each.has_intervals for each in whole)

        def keepers(each: Comparison) -> str:
            kept = [label for label in policies if safe_under(label, each, sure=sure)]
            if not kept:
                return _NONE
            return "every policy" if kept == policies and len(kept) > 1 else _only(kept, policies)

        head = "Shown to keep every SLO" if sure else "At every target (one realisation: undecided)"
        sentences.append(f"{head}: {_grouped(whole, keepers, unchanged)}.")
    if len(policies) > 1:
        sentences.append(f"Best: {_grouped(whole, _best, unchanged)}.")
    if not sentences:
        tails = {each.name: tail_of(each.verdicts[0], each) for each in whole}
        known = {name: tail.value for name, tail in tails.items() if tail.value is not None and not tail.bound}
        return (
            f"TTFT P99 is least {_named(min(known, key=known.__getitem__), unchanged)}."
            if known
            else "No TTFT is known."
        )
    return " ".join(sentences)


def _only(kept: Sequence[str], policies: Sequence[str]) -> str:
    return f"only {kept[0]}" if len(kept) == 1 < len(policies) else joined(kept)


def _best(comparison: Comparison) -> str:
    if not any(verdict.throughput.value for verdict in comparison.verdicts):
        return "none, since no request gets an answer,"
    best = best_of(comparison)
    return "all alike" if len(best) == len(comparison.verdicts) > 1 else joined(best)


def _grouped(comparisons: Sequence[Comparison], say: Callable[[Comparison], str], unchanged: str) -> str:
    """``every policy as captured and under rate=1.3; only slo_aware from rate=1.6 on``."""
    groups: dict[str, list[int]] = {}
    for number, each in enumerate(comparisons):
        groups.setdefault(say(each), []).append(number)
    if len(groups) == 1:
        said = next(iter(groups))
        return f"{said} anywhere" if said == _NONE else f"{said} everywhere"
    names = [each.name for each in comparisons]
    return "; ".join(f"{said} {_where(numbers, names, unchanged)}" for said, numbers in groups.items())


def _where(numbers: Sequence[int], names: Sequence[str], unchanged: str) -> str:
    found = [names[number] for number in numbers]
    if len(found) > 1 and found == list(names[-len(found) :]) and _ascending([n for n in names if n != unchanged]):
        return f"from {found[0]} on"
    others = [name for name in found if name != unchanged]
    listed = others if len(others) <= _NAMED else [*others[: _NAMED - 1], f"{len(others) - _NAMED + 1} more"]
    return " and ".join(
        ([unchanged] if len(others) < len(found) else []) + ([f"under {joined(listed)}"] if listed else [])
    )


def _named(name: str, unchanged: str) -> str:
    return name if name == unchanged else f"under {name}"


def _ascending(names: Sequence[str]) -> bool:
    """True for growing values of one key."""
    found = [_VALUE.fullmatch(name) for name in names]
    known = [(match["key"], float(match["value"])) for match in found if match is not None]
    return (
        len(known) == len(names)
        and len({key for key, _ in known}) == 1
        and all(a < b for (_, a), (_, b) in pairwise(known))
    )
