"""The grammar of pass/fail thresholds on a run, and of ``--goodput``.

    threshold  = [ tenant ":" ] measure operator number [ unit ]
    measure    = aggregate "(" metric ")" | figure
    aggregate  = "p" number | "mean" | "median" | "min" | "max"              (p99, p99.9; also "avg", "med")
    metric     = "ttft" | "backend_ttft" | "tpot" | "itl" | "inter_chunk" | "max_itl" | "e2e" | "queue_time"
               | "own_lateness"
    figure     = "attainment" | "failed"                                     (shares, 0 to 1)
               | "goodput" | "requests_per_s" | "tokens_per_s"               (per second)
               | "decay" | "rho"                                             (plain numbers)
               | "peak_vram"                                                 (bytes)
    operator   = "<" | "<=" | ">" | ">=" | "==" | "!="
    unit       = "ns" | "us" | "ms" | "s"                                    (latencies: required)
               | "%"                                                         (shares)
               | "B" | "KB" | "MB" | "GB" | "KiB" | "MiB" | "GiB"            (bytes: required)

Examples: ``p99(ttft) < 350ms``, ``chat: p95(e2e) <= 2s``, ``attainment > 0.99``, ``failed < 1%``, ``goodput > 20``.
Without a tenant the threshold is on the whole run. A figure that could not be measured fails every threshold. White
space is free between the parts.

    goodput    = { limit }        limit = ("ttft" | "tpot" | "e2e" | "max_itl") ":" milliseconds       ("e2el" is "e2e")
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from tenants.slo import Metric, Slo

_AGGREGATES = {"mean": "mean", "avg": "mean", "median": "median", "med": "median", "min": "min", "max": "max"}
_SHARES = ("attainment", "failed")
_RATES = ("goodput", "requests_per_s", "tokens_per_s")
_NUMBERS = ("decay", "rho")
_BYTES = ("peak_vram",)
_FIGURES = (*_SHARES, *_RATES, *_NUMBERS, *_BYTES)

_TIME_UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_BYTE_UNITS = {
    "B": 1.0,
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "KiB": 2.0**10,
    "MiB": 2.0**20,
    "GiB": 2.0**30,
}  # fmt: skip
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


class ThresholdError(ValueError):
    """A threshold that cannot be read. ``position``: the character (from 0) of ``text`` where it goes wrong."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        self.text, self.position, self.problem = text, position, problem
        super().__init__(f"threshold, character {position + 1}: {problem}\n  {text}\n  {' ' * position}^")


@dataclass(frozen=True, slots=True)
class Measure:
    """What is compared. Of a metric: ``aggregate`` is ``percentile`` (with ``percentile`` set), ``mean``, ``median``,
    ``min`` or ``max``, in ns. Else ``figure`` names it, and ``metric`` and ``aggregate`` are None.
    """

    figure: str | None = None
    metric: Metric | None = None
    aggregate: str | None = None
    percentile: float | None = None

    def __str__(self) -> str:
        if self.metric is None:
            return str(self.figure)
        name = f"p{self.percentile:g}" if self.percentile is not None else self.aggregate
        return f"{name}({self.metric.value})"


@dataclass(frozen=True, slots=True)
class Threshold:
    """``limit`` in the measure's own unit: ns, share, per second, bytes or a plain number. ``tenant`` None: the run."""

    text: str
    tenant: str | None
    measure: Measure
    operator: str
    limit: float


Lookup: TypeAlias = Callable[[str | None, Measure], float | None]
"""Gives the measured figure of a tenant (None: of the run) in the measure's unit; inf for a percentile that was never
reached; None for what could not be measured. May raise KeyError for an unknown tenant."""


@dataclass(frozen=True, slots=True)
class ThresholdResult:
    threshold: Threshold
    measured: float | None
    passed: bool


def evaluate(threshold: Threshold, lookup: Lookup) -> ThresholdResult:
    """Compares one threshold with what was measured; what could not be measured fails."""
    measured = lookup(threshold.tenant, threshold.measure)
    if measured is None or math.isnan(measured):
        return ThresholdResult(threshold, None, passed=False)
    return ThresholdResult(threshold, measured, _OPERATORS[threshold.operator](measured, threshold.limit))


_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9.]*")
_OPERATOR = re.compile(r"<=|>=|==|!=|<|>")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?")
_UNIT = re.compile(r"%|[A-Za-z]+")


class _Reader:
    """Reads one threshold from left to right; ``at`` is the character that is read next."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def fail(self, problem: str, position: int | None = None) -> ThresholdError:
        return ThresholdError(self.text, self.at if position is None else position, problem)

    def skip_space(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def take(self, pattern: re.Pattern[str]) -> str | None:
        self.skip_space()
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found.group()

    def measure(self) -> Measure:
        self.skip_space()
        start = self.at
        word = self.take(_WORD)
        if word is None:
            raise self.fail("expected a measure, such as p99(ttft) or attainment")
        if word in _FIGURES:
            return Measure(figure=word)
        aggregate, percentile = _AGGREGATES.get(word), None
        if aggregate is None:
            aggregate, percentile = "percentile", self._percentile(word, start)
        if self.take(re.compile(r"\(")) is None:
            raise self.fail(f"expected ( and a metric after {word}, such as {word}(ttft)")
        self.skip_space()
        metric_at = self.at
        metric = self.take(_WORD)
        if metric not in set(Metric):
            known = ", ".join(m.value for m in Metric)
            raise self.fail(f"unknown metric {metric or ''!r}; known: {known}", metric_at)
        if self.take(re.compile(r"\)")) is None:
            raise self.fail("expected ) after the metric")
        return Measure(metric=Metric(metric), aggregate=aggregate, percentile=percentile)

    def _percentile(self, word: str, start: int) -> float:
        digits = word[1:] if word[0] == "p" else ""
        if not re.fullmatch(r"\d+(\.\d+)?", digits):
            known = ", ".join((*_FIGURES, *(a for a in _AGGREGATES), "p99"))
            raise self.fail(f"unknown measure {word!r}; known: {known}", start)
        percentile = float(digits)
        if not 0 < percentile < 100:
            raise self.fail(f"a percentile lies between 0 and 100, got {digits}", start)
        return percentile

    def limit(self, measure: Measure) -> float:
        number = self.take(_NUMBER)
        if number is None:
            raise self.fail("expected a number")
        self.skip_space()
        unit_at = self.at
        unit = self.take(_UNIT)
        factor = _factor(measure, unit)
        if factor is None:
            raise self.fail(_unit_problem(measure, unit), unit_at)
        limit = float(number) * factor
        if measure.figure in _SHARES and not 0 <= limit <= 1:
            raise self.fail(f"{measure.figure} is a share: 0 to 1, or 0% to 100%; got {number}{unit or ''}", unit_at)
        return limit


def _factor(measure: Measure, unit: str | None) -> float | None:
    if measure.metric is not None:
        return _TIME_UNITS.get(unit or "")
    if measure.figure in _BYTES:
        return _BYTE_UNITS.get(unit or "")
    if unit == "%":
        return 0.01 if measure.figure in _SHARES else None
    return 1.0 if unit is None else None


def _unit_problem(measure: Measure, unit: str | None) -> str:
    got = "no unit" if unit is None else f"unit {unit!r}"
    if measure.metric is not None:
        wanted = "a time, with ns, us, ms or s"
    elif measure.figure in _BYTES:
        wanted = f"bytes, with {', '.join(_BYTE_UNITS)}"
    elif measure.figure in _SHARES:
        wanted = "a share: a plain number, or with %"
    else:
        wanted = "a plain number, without a unit"
    return f"{measure} is compared with {wanted}; got {got}"


def parse_threshold(text: str) -> Threshold:
    """Reads one threshold. Raises ThresholdError, which shows the place and what would be right there."""
    reader = _Reader(text)
    tenant = None
    # The last colon, so that a tenant's name may hold one; no measure does.
    colon = text.rfind(":")
    if colon >= 0:
        tenant = text[:colon].strip()
        if not tenant:
            raise ThresholdError(text, 0, "expected the name of a tenant before the colon")
        reader.at = colon + 1
    measure = reader.measure()
    comparison = reader.take(_OPERATOR)
    if comparison is None:
        raise reader.fail(f"expected one of {' '.join(_OPERATORS)}")
    limit = reader.limit(measure)
    reader.skip_space()
    if reader.at < len(text):
        raise reader.fail(f"nothing may follow the limit, found {text[reader.at :]!r}")
    return Threshold(text.strip(), tenant, measure, comparison, limit)


_GOODPUT = {"ttft": "ttft_ns", "tpot": "tpot_ns", "e2e": "e2e_ns", "e2el": "e2e_ns", "max_itl": "max_itl_ns"}


def parse_goodput(limits: Iterable[str], attainment: float | None = None) -> Slo:
    """Reads the words after ``--goodput`` (limits in ms) into an SLO; without ``attainment`` it counts goodput and
    promises nothing. Raises ValueError, which names the word and what would be right.
    """
    found: dict[str, int] = {}
    for word in limits:
        name, colon, number = word.partition(":")
        if not colon or name not in _GOODPUT:
            raise ValueError(f"--goodput {word!r}: expected NAME:MILLISECONDS, with a name of {', '.join(_GOODPUT)}")
        field = _GOODPUT[name]
        if field in found:
            raise ValueError(f"--goodput {word!r}: {name} is limited twice")
        if not re.fullmatch(_NUMBER, number) or not float(number) > 0:
            raise ValueError(f"--goodput {word!r}: expected milliseconds above 0 after the colon, such as {name}:200")
        found[field] = round(float(number) * 1e6)
    if not found:
        raise ValueError("--goodput needs at least one limit, such as ttft:200")
    return Slo(
        ttft_ns=found.get("ttft_ns"),
        tpot_ns=found.get("tpot_ns"),
        e2e_ns=found.get("e2e_ns"),
        max_itl_ns=found.get("max_itl_ns"),
        attainment=attainment,
    )
