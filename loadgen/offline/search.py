"""Where a promise stops being kept: the highest load, and the fewest replicas, by bracketing and bisection.

A *point* is one load, run once a seed; all points share their seeds (common random numbers), so that two loads differ by
the load alone. At a point each tenant has its attainment over all runs, with an interval.

Attainment falls as the load grows, so three edges are looked for, each between the highest load where something still
holds and the lowest where it does not:

* the **capacity**: every tenant's attainment is at its target;
* its **low end**: every tenant's interval lies above its target (*kept*);
* its **high end**: some tenant's interval lies below its target (*broken*).

The last two are the 95% interval of the capacity by inversion of a test: the loads at which the data do not contradict
"exactly at the target" (Lehmann and Romano, *Testing Statistical Hypotheses*, 3.5). Noise may make a lower load look worse
than a higher one; then the capacity lies below the lowest load that fails.

Nothing here simulates or reads a clock: a function from load to point is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tenants.measures.intervals import Interval, clopper_pearson, t_interval, wider
from tenants.verdict import Verdict, overall

FIRST_STEP = 1.25
LARGEST_STEP = 2.0


@dataclass(frozen=True, slots=True)
class TenantRun:
    """One tenant in one run: ``met`` of ``total`` judged requests met its limits; ``cost`` of all of them in cost units.
    ``interval``: of this run alone, where one run is all there is; ``at_most``: the upper end of its share, as far as it
    proves one by itself."""

    met: int
    total: int
    cost: float = 0.0
    interval: Interval | None = None
    at_most: float | None = None


@dataclass(frozen=True, slots=True)
class Attained:
    """A tenant's attainment over all runs of a point; None without requests; ``interval`` None when it cannot be told, and
    then ``at_most`` is what the share is at most, if anything is proven: few runs may show a promise broken, never kept."""

    target: float
    share: float | None
    requests: int
    interval: Interval | None
    at_most: float | None = None

    @property
    def at_target(self) -> bool:
        """A tenant that sent nothing was failed by nobody."""
        return self.share is None or self.share >= self.target

    @property
    def verdict(self) -> Verdict:
        if self.interval is None:
            missed = self.at_most is not None and self.at_most < self.target
            return Verdict.BROKEN if missed else Verdict.UNDECIDED
        if self.interval.low >= self.target:
            return Verdict.KEPT
        return Verdict.BROKEN if self.interval.high < self.target else Verdict.UNDECIDED

    @property
    def budget_spent(self) -> float:
        """Misses over those that the target allows: above 1 it is missed."""
        return 0.0 if self.share is None else (1 - self.share) / (1 - self.target)


def attained(runs: Sequence[TenantRun], target: float) -> Attained:
    """Pooled over runs. The interval is Student's t over the runs' shares, widened to the exact binomial one of as many
    independent requests as the spread over runs says there were; with one run its own. Where there is none, the share is at
    most what every run by itself leaves possible."""
    met, total = sum(run.met for run in runs), sum(run.total for run in runs)
    if not total:
        return Attained(target, None, 0, None)
    share = met / total
    if len(runs) == 1:
        return Attained(target, share, total, runs[0].interval, _at_most(runs))
    shares = [run.met / run.total for run in runs if run.total]
    over_runs = t_interval(shares)
    if over_runs is None:
        return Attained(target, share, total, None, _at_most(runs))
    effect = 1.0
    if 0 < share < 1:
        effect = max(1.0, float(np.var(shares, ddof=1)) / len(shares) / (share * (1 - share) / total))
    exact = clopper_pearson(met / effect, total / effect)
    return Attained(target, share, total, wider(replace(over_runs.clipped(0.0, 1.0), value=share), exact))


def _at_most(runs: Sequence[TenantRun]) -> float | None:
    """The most that any run leaves possible; None where one with requests proves nothing."""
    ends = [run.at_most for run in runs if run.total]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


@dataclass(frozen=True, slots=True)
class Point:
    """What was seen at one load (or number of replicas). ``tenants``: those that were promised an attainment. ``rates``,
    ``costs``: of every tenant, requests/s and cost units/s that arrived."""

    load: float
    tenants: Mapping[str, Attained]
    rates: Mapping[str, float]
    costs: Mapping[str, float]

    @property
    def at_target(self) -> bool:
        """Every tenant is; a load so low that none sent anything shows nothing."""
        seen = any(tenant.requests for tenant in self.tenants.values())
        return seen and all(tenant.at_target for tenant in self.tenants.values())

    @property
    def verdict(self) -> Verdict:
        return overall(tenant.verdict for tenant in self.tenants.values())

    @property
    def has_interval(self) -> bool:
        """False with too few runs: then no tenant is ever shown to keep its target."""
        return any(tenant.interval is not None for tenant in self.tenants.values())

    @property
    def first_to_break(self) -> str | None:
        """The tenant that spent most of its error budget, when that is more than it has."""
        name = max(self.tenants, key=lambda each: self.tenants[each].budget_spent, default=None)
        return name if name is not None and not self.tenants[name].at_target else None


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the points found so far say. ``points`` by load. ``interrupted``: the search was stopped before its end."""

    points: tuple[Point, ...]
    interrupted: bool = False

    @property
    def failing(self) -> Point | None:
        """The lowest load at which some tenant is below its target."""
        return next((point for point in self.points if not point.at_target), None)

    @property
    def found(self) -> Point | None:
        """The capacity: the highest load below ``failing``; None when no load that was tried keeps every target."""
        return _last(self.points, below=self.failing, holds=lambda point: point.at_target)

    @property
    def low(self) -> float | None:
        """The low end of the interval; None: no load is shown to be kept (more seeds, or longer runs, would)."""
        point = _last(self.points, below=self.failing, holds=lambda point: point.verdict is Verdict.KEPT)
        return None if point is None else point.load

    @property
    def high(self) -> float | None:
        """The high end; None: no load is shown to be broken."""
        least = 0.0 if self.failing is None else self.failing.load
        return next((p.load for p in self.points if p.load >= least and p.verdict is Verdict.BROKEN), None)

    @property
    def first_to_break(self) -> str | None:
        return None if self.failing is None else self.failing.first_to_break


def _last(points: Sequence[Point], *, below: Point | None, holds: Callable[[Point], bool]) -> Point | None:
    most = math.inf if below is None else below.load
    return max((point for point in points if point.load < most and holds(point)), key=lambda p: p.load, default=None)


class LoadSearch:
    """Looks for the three edges with ``evaluate(load)``; each load is evaluated once.

    ``start``: the first load tried. ``tolerance``: an edge is known when its two loads differ by this fraction at most.
    ``least``, ``most``: no load outside is tried. ``on_point`` is told of every new state, so that nothing found is lost.
    """

    def __init__(
        self,
        evaluate: Callable[[float], Point],
        *,
        start: float = 1.0,
        tolerance: float = 0.02,
        least: float = 1e-3,
        most: float = 1e3,
        on_point: Callable[[Capacity], None] = lambda _: None,
    ) -> None:
        if not tolerance > 0:
            raise ValueError(f"the tolerance is a fraction above 0, got {tolerance}")
        if not least <= start <= most:
            raise ValueError(f"the first load lies in [{least}, {most}], got {start}")
        self._evaluate = evaluate
        self._start = start
        self._tolerance = tolerance
        self._least = least
        self._most = most
        self._on_point = on_point
        self._points: dict[float, Point] = {}

    def run(self) -> Capacity:
        """Search to the end, or until KeyboardInterrupt, which keeps what was found."""
        try:
            self._at(self._start)
            self._close(lambda point: point.at_target)
            told = any(p.has_interval and p.verdict is not Verdict.UNDECIDED for p in self._ordered())
            if told and self._state().found is not None:
                self._close_kept()
            if self._state().failing is not None:
                self._close_broken()
        except KeyboardInterrupt:
            return self._state(interrupted=True)
        return self._state()

    def _ordered(self) -> list[Point]:
        return [self._points[load] for load in sorted(self._points)]

    def _state(self, *, interrupted: bool = False) -> Capacity:
        return Capacity(tuple(self._ordered()), interrupted)

    def _at(self, load: float) -> Point:
        if load not in self._points:
            self._points[load] = self._evaluate(load)
            self._on_point(self._state())
        return self._points[load]

    def _close(self, holds: Callable[[Point], bool]) -> None:
        """Bracket the edge of ``holds``, then halve the bracket (in logarithms) until it is narrow."""
        step = FIRST_STEP
        while True:
            hi = next((point.load for point in self._ordered() if not holds(point)), None)
            below = [p.load for p in self._ordered() if holds(p) and (hi is None or p.load < hi)]
            lo = max(below, default=None)
            if lo is not None and hi is not None:
                break
            if lo is None:
                assert hi is not None, "a point holds or it does not"
                if hi <= self._least:
                    return
                self._at(max(hi / step, self._least))
            else:
                if lo >= self._most:
                    return
                self._at(min(lo * step, self._most))
            step = min(step * step, LARGEST_STEP)
        self._halve(lo, hi, holds)

    def _halve(self, lo: float, hi: float, holds: Callable[[Point], bool]) -> None:
        while hi > lo * (1 + self._tolerance):
            middle = math.sqrt(lo * hi)
            if holds(self._at(middle)):
                lo = middle
            else:
                hi = middle

    def _close_kept(self) -> None:
        """The low end. A load with few requests is not shown to be kept, so the search goes down a few steps only."""
        state = self._state()
        found = state.found
        assert found is not None, "the low end lies below a capacity"
        step = 1 + 2 * self._tolerance
        load = found.load
        for _ in range(5):
            if state.low is not None:
                break
            load = max(load / step, self._least)
            self._at(load)
            step = min(step * step, LARGEST_STEP)
            state = self._state()
        low = state.low
        if low is not None and low < found.load:
            above = min(point.load for point in self._ordered() if point.load > low)
            self._halve(low, above, lambda point: point.verdict is Verdict.KEPT)

    def _close_broken(self) -> None:
        """The high end: up from the lowest load that fails until one is shown to be broken."""
        failing = self._state().failing
        assert failing is not None, "the high end lies above a load that fails"
        step = 1 + 2 * self._tolerance
        load = failing.load
        for _ in range(5):
            if self._state().high is not None or load >= self._most:
                break
            load = min(load * step, self._most)
            self._at(load)
            step = min(step * step, LARGEST_STEP)
        high = self._state().high
        if high is not None and high > failing.load:
            below = max(point.load for point in self._ordered() if point.load < high)
            self._halve(below, high, lambda point: point.verdict is not Verdict.BROKEN)


@dataclass(frozen=True, slots=True)
class Fleet:
    """Points by number of replicas (their ``load``), all at one offered load."""

    points: tuple[Point, ...]
    interrupted: bool = False

    @property
    def count(self) -> int | None:
        """The fewest replicas with every attainment at its target, and so for every larger number that was tried."""
        return self._fewest(lambda point: point.at_target)

    @property
    def sure_count(self) -> int | None:
        """The fewest that are shown to be enough: every tenant's interval lies above its target."""
        return self._fewest(lambda point: point.verdict is Verdict.KEPT)

    def _fewest(self, holds: Callable[[Point], bool]) -> int | None:
        found = None
        for point in reversed(self.points):
            if not holds(point):
                break
            found = round(point.load)
        return found


def fewest_replicas(
    evaluate: Callable[[int], Point],
    *,
    guess: int,
    most: int,
    on_point: Callable[[Fleet], None] = lambda _: None,
) -> Fleet:
    """The fewest replicas, from a ``guess`` >= 1: up until they are enough, down by halves until they are not, then up to
    three more where the fewest are not *shown* to be enough. KeyboardInterrupt keeps what was found."""
    points: dict[int, Point] = {}

    def state(*, interrupted: bool = False) -> Fleet:
        return Fleet(tuple(points[k] for k in sorted(points)), interrupted)

    def enough(count: int) -> bool:
        if count not in points:
            points[count] = evaluate(count)
            on_point(state())
        return points[count].at_target

    try:
        high, low = min(max(guess, 1), most), 0
        while not enough(high):
            low = high
            if high >= most:
                return state()
            high = min(most, high + max(1, high // 4))
        if low == 0 and high > 1:
            # A guess by proportion is seldom far off, so look just below it first.
            low = high - max(1, high // 8)
            while low > 0 and enough(low):
                high, low = low, low - max(1, low // 4)
        low = max(low, 0)
        while high - low > 1:
            middle = (low + high) // 2
            high, low = (middle, low) if enough(middle) else (high, middle)
        for count in range(high, min(high + 3, most) + 1):
            enough(count)
            if points[count].verdict is Verdict.KEPT or not points[count].has_interval:
                break
    except KeyboardInterrupt:
        return state(interrupted=True)
    return state()
