"""The answer of ``lmperf tune``, for people (a table, a sentence) and as data (tune.json)."""

from __future__ import annotations

from collections.abc import Sequence

from lmperf.wiring.tune import TuneAnswer
from lmperf.wiring.tune_ranking import Trial, efficient
from loadgen.fitted_table import FittedTable
from loadgen.offline.verdicts import Figure
from tenants.measures.shares import promised

SCHEMA = "lmperf.tune/1.1"


def trials_table(name: str, trials: Sequence[Trial], best: Trial | None, seeds: int) -> FittedTable:
    """A row a trial, in the order tried. ``name``: of the scenario."""
    front = efficient(trials)
    known = any(trial.verdict.worst_attainment.interval is not None for trial in trials)
    over_seeds = f" [95% interval over {seeds} seeds]" if known else ""
    table = FittedTable(
        f"{name}: what each setting keeps under the raised load{over_seeds}",
        ("", "setting"),
        ("worst attained %", "missed", "decay", "rho", "throughput"),
        caption="> recommended, * on the trade-off: no other setting is better in attainment, decay and throughput alike.\n"
        "D: sequences (auto: moved within these bounds while it runs), X: prefill tokens outstanding; missed: tenants in "
        "contract below target; throughput: against row 1",
    )
    for trial in trials:
        verdict = trial.verdict
        mark = ">" if trial is best else "*" if trial in front else ""
        table.add_row(
            mark,
            trial.setting.label,
            verdict.worst_attainment.percent(),
            str(len(trial.missed)),
            verdict.decay_in_contract.format(2),
            verdict.rho.format(2),
            verdict.throughput_ratio.format(3),
        )
    return table


def recommendation(answer: TuneAnswer) -> str:
    """The best setting and what it is predicted to keep, in one sentence."""
    best = answer.best
    if best is None:
        return "no trial was finished, so nothing is recommended"
    attained = "; ".join(
        f"{name} {found.percent(2)}% (target {promised(answer.targets[name])}%)"
        for name, found in answer.attained(best).items()
    )
    kept = "every tenant in contract is at its target" if not best.missed else f"{', '.join(best.missed)} still miss"
    own = " (the scenario's own)" if best is answer.trials[0] else ""
    doubt = best.doubt and f" {best.doubt}"
    stopped = "" if answer.complete else "; the search did not come to its end"
    return f"recommended: {best.setting.label}{own}: {kept} under the raised load: {attained}{stopped}.{doubt}"


# -- data ------------------------------------------------------------------------------------------------------------


def answer_data(answer: TuneAnswer, command: str) -> dict[str, object]:
    """tune.json; it can be written after every trial. ``command``: what was typed, without secrets."""
    best, front = answer.best, efficient(answer.trials)
    return {
        "schema": SCHEMA,
        "command": command,
        "scenario": answer.raised.name,
        "seeds": answer.seeds,
        "targets": answer.targets,
        **({"routing": answer.raised.routed} if answer.raised.routed else {}),
        **({"notes": list(answer.notes)} if answer.notes else {}),
        "interrupted": answer.interrupted,
        "complete": answer.complete,
        "recommendation": None
        if best is None
        else {
            "setting": best.setting.data(),
            "label": best.setting.label,
            "sentence": recommendation(answer),
            **({"doubt": best.doubt} if best.doubt else {}),
            "attainment": {name: _figure(found) for name, found in answer.attained(best).items()},
        },
        "trials": [_trial(trial, efficient=trial in front) for trial in answer.trials],
    }


def _trial(trial: Trial, *, efficient: bool) -> dict[str, object]:
    verdict = trial.verdict
    return {
        "label": trial.setting.label,
        "setting": trial.setting.data(),
        "on_the_trade_off": efficient,
        "missed": list(trial.missed),
        "worst_attainment": _figure(verdict.worst_attainment),
        "decay_in_contract": _figure(verdict.decay_in_contract),
        "rho": _figure(verdict.rho),
        "throughput_ratio": _figure(verdict.throughput_ratio),
        "throughput_tokens_per_s": _figure(verdict.throughput),
    }


def _figure(found: Figure) -> dict[str, float | None]:
    interval = found.interval
    return {
        "value": found.value,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
    }
