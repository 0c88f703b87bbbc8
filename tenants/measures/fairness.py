"""How evenly the server's work is shared among tenants that want it.

Service W_i(0, t) is cost delivered to tenant i: a request's cost ``w_p * prompt + w_q * output`` tokens, spread
evenly from its first to its last token (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, section
5). The curves are piecewise linear with jumps, so every extreme lies at a breakpoint, and the figures are exact.

Service is what the server did, so *all* rows count here, those of warm-up and planned cancels too: leaving them out
would credit nobody with work that was done. Bounds in time choose the window to judge.

Entitlement is the weighted max-min fair allocation (Bertsekas and Gallager, *Data Networks*, 6.5.2): everyone gets the
lesser of its demand and its weight times one common level. Jain's index (Jain, Chiu, Hawe 1984) is taken over service /
entitlement: over plain service it would fall merely because a tenant is idle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tenants.measures.columns import NEVER, Columns
from tenants.measures.service import Floats, Service, delivery, request_cost


def max_min_allocation(demands: ArrayLike, weights: ArrayLike, capacity: float) -> Floats:
    """Weighted max-min fair shares of ``capacity`` (water-filling): ``min(demand_i, weight_i * level)`` with the
    level at which they sum to the capacity, or the demands themselves when they fit. All >= 0, weights > 0.
    """
    wanted, phi = np.asarray(demands, dtype=np.float64), np.asarray(weights, dtype=np.float64)
    if wanted.shape != phi.shape or wanted.ndim != 1:
        raise ValueError(f"one weight a demand is needed, got {wanted.shape} demands and {phi.shape} weights")
    if (wanted < 0).any() or not (phi > 0).all() or capacity < 0:
        raise ValueError("demands and capacity must be >= 0 and weights > 0")
    if wanted.sum() <= capacity:
        return wanted.copy()
    # In order of the level at which each is satisfied: the k-th level is the water's when those before it are full.
    order = np.argsort(wanted / phi, kind="stable")
    full, rest = np.cumsum(wanted[order]) - wanted[order], np.cumsum(phi[order][::-1])[::-1]
    levels = (capacity - full) / rest
    dry = levels < (wanted / phi)[order]
    # Rounding may leave no tenant short although the sum exceeds the capacity by less than an ulp.
    level = levels[int(np.argmax(dry))] if dry.any() else np.inf
    return np.minimum(wanted, phi * level)


_ROUNDING = 1e-9
"""Of the whole: what differences of running sums may leave of nothing."""


def jain(service: ArrayLike, entitlement: ArrayLike) -> float | None:
    """Jain's index ``(sum x)^2 / (n sum x^2)`` of x = service / entitlement over the tenants entitled to anything (beyond
    what rounding leaves): 1 = all alike, 1/n = one has it all. None when none is entitled, or none was served.
    """
    served, entitled = np.asarray(service, dtype=np.float64), np.asarray(entitlement, dtype=np.float64)
    owed = entitled > _ROUNDING * entitled.sum()
    x = served[owed] / entitled[owed]
    square = float((x * x).sum())
    return None if square == 0 else float(x.sum()) ** 2 / (len(x) * square)


@dataclass(frozen=True, slots=True)
class ServiceCurves:
    """``left[i, k]`` and ``right[i, k]``: cost units delivered to tenant i up to ``times_ns[k]``, without and with
    what is delivered at that very instant. Linear in between; constant outside.
    """

    tenants: tuple[str, ...]
    times_ns: NDArray[np.int64]
    left: Floats
    right: Floats

    def at(self, t_ns: int) -> Floats:
        """W_i(0, t) of every tenant, what is delivered at t included."""
        return self._between(np.array([t_ns], dtype=np.int64))[:, 0]

    def _between(self, times: NDArray[np.int64]) -> Floats:
        if len(self.times_ns) == 0:
            return np.zeros((len(self.tenants), len(times)))
        k = np.searchsorted(self.times_ns, times, side="right") - 1
        at, following = np.maximum(k, 0), np.minimum(np.maximum(k, 0) + 1, len(self.times_ns) - 1)
        span = np.maximum(self.times_ns[following] - self.times_ns[at], 1)
        part = np.where(following > at, np.clip((times - self.times_ns[at]) / span, 0.0, 1.0), 0.0)
        values = self.right[:, at] + (self.left[:, following] - self.right[:, at]) * part
        return np.where(k < 0, 0.0, values)

    def range_of_difference(self, i: int, j: int, phi: Floats, start_ns: int, end_ns: int) -> tuple[float, float]:
        """The least and largest W_i/phi_i - W_j/phi_j at any time in [start, end)."""
        inside = (self.times_ns > start_ns) & (self.times_ns < end_ns)
        ends = self._between(np.array([start_ns, end_ns], dtype=np.int64))
        # What is delivered at the end itself is no longer part of the interval, but the way up to it is.
        last = np.searchsorted(self.times_ns, end_ns)
        if last < len(self.times_ns) and self.times_ns[last] == end_ns:
            ends[:, 1] = self.left[:, last]
        difference = np.concatenate(
            [side[i] / phi[i] - side[j] / phi[j] for side in (ends, self.left[:, inside], self.right[:, inside])]
        )
        return float(difference.min()), float(difference.max())


def service_curves(columns: Columns, w_p: float = 1.0, w_q: float = 2.0) -> ServiceCurves:
    """The service curves of all tenants, over all rows."""
    served, first, last = delivery(columns)
    cost, tenant = request_cost(columns, w_p, w_q)[served], columns.tenant[served]
    times, inverse = np.unique(np.concatenate([first, last]), return_inverse=True)
    at_first, at_last = inverse[: len(first)], inverse[len(first) :]
    n, n_times = len(columns.tenants), len(times)
    slope_change, jump = np.zeros((n, n_times)), np.zeros((n, n_times))
    instant = first == last
    np.add.at(jump, (tenant[instant], at_first[instant]), cost[instant])
    lasting = ~instant
    rate = cost[lasting] / (last - first)[lasting]
    np.add.at(slope_change, (tenant[lasting], at_first[lasting]), rate)
    np.add.at(slope_change, (tenant[lasting], at_last[lasting]), -rate)
    slope, span = np.cumsum(slope_change, axis=1)[:, :-1], np.diff(times)
    flow = np.concatenate([np.zeros((n, min(n_times, 1))), np.cumsum(slope * span, axis=1)], axis=1)
    jumped = np.cumsum(jump, axis=1)
    return ServiceCurves(columns.tenants, times.astype(np.int64), flow + jumped - jump, flow + jumped)


def service_difference(curves: ServiceCurves, one: str, other: str, until_ns: int | None = None) -> float:
    """Max over t (up to ``until_ns``, itself included) of |W_i(0, t) - W_j(0, t)|, unweighted, in cost units. Once the
    arrivals have ended the difference only shows who had asked for more: pass their end.
    """
    i, j = curves.tenants.index(one), curves.tenants.index(other)
    inside = slice(None) if until_ns is None else curves.times_ns <= until_ns
    apart = [np.abs(side[i] - side[j])[inside] for side in (curves.left, curves.right)]
    if until_ns is not None:
        apart.append(np.abs(curves.at(until_ns)[[i]] - curves.at(until_ns)[[j]]))
    return float(max((a.max() for a in apart if len(a)), default=0.0))


def backlogged(columns: Columns, name: str) -> NDArray[np.int64]:
    """Maximal intervals [start, end) in ns, one a row, in which the tenant had a request waiting in the queue: from its
    arrival to its dispatch, or to its end when it was never dispatched.
    """
    rows = columns.of(name)
    order = np.argsort(rows.arrival_ns, kind="stable")
    start = rows.arrival_ns[order]
    queued, ended = rows.queue_ns[order], rows.end_ns[order]
    never = queued == NEVER
    end = np.maximum(np.where(never, ended, start + np.where(never, 0, queued)), start)
    waited = end > start
    start, end = start[waited], end[waited]
    if len(start) == 0:
        return np.empty((0, 2), dtype=np.int64)
    reach = np.maximum.accumulate(end)
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    closes = np.concatenate([opens[1:], [True]])
    return np.stack([start[opens], reach[closes]], axis=1)


def _common(a: NDArray[np.int64], b: NDArray[np.int64]) -> list[tuple[int, int]]:
    found, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        start, end = max(a[i, 0], b[j, 0]), min(a[i, 1], b[j, 1])
        if start < end:
            found.append((int(start), int(end)))
        if a[i, 1] <= b[j, 1]:
            i += 1
        else:
            j += 1
    return found


def largest_weighted_difference(columns: Columns, curves: ServiceCurves, weights: ArrayLike) -> Floats:
    """For each pair of tenants the largest ``|W_i/phi_i - W_j/phi_j|`` over any window in which both are backlogged
    throughout, as a symmetric matrix in weighted cost units; 0 where they never are.
    """
    phi, n = np.asarray(weights, dtype=np.float64), len(columns.tenants)
    waiting = [backlogged(columns, name) for name in columns.tenants]
    largest = np.zeros((n, n))
    for i in range(n):
        for j in range(i):
            for start, end in _common(waiting[i], waiting[j]):
                low, high = curves.range_of_difference(i, j, phi, start, end)
                largest[i, j] = largest[j, i] = max(largest[i, j], high - low)
    return largest


def jain_by_window(
    columns: Columns,
    weights: ArrayLike,
    *,
    window_s: float = 60.0,
    w_p: float = 1.0,
    w_q: float = 2.0,
) -> list[float | None]:
    """Jain's index of each consecutive window from the first arrival to the last service. A tenant's demand in a
    window is what it had asked for by its end and had not been given by its start; the capacity shared is what was
    served.
    """
    if len(columns) == 0:
        return []
    service = Service(columns, w_p, w_q)
    start, latest = int(columns.arrival_ns.min()), int(columns.arrival_ns.max())
    stop = max(latest, service.end_ns if service.end_ns is not None else start) + 1
    step = round(window_s * 1e9)
    ends = np.arange(start + step, stop + step, step, dtype=np.int64)
    n = len(columns.tenants)
    demanded = np.zeros(n * len(ends))
    for rows in columns.pieces():
        cell = rows.tenant.astype(np.int64) * len(ends) + (rows.arrival_ns - start) // step
        demanded += np.bincount(cell, request_cost(rows, w_p, w_q), minlength=n * len(ends))
    asked = np.cumsum(demanded.reshape(n, len(ends)), axis=1)
    given = service.at(ends)
    found = []
    before = np.zeros(n)
    for k in range(len(ends)):
        served = np.maximum(given[:, k] - before, 0.0)
        demand = np.maximum(asked[:, k] - before, 0.0)
        found.append(jain(served, max_min_allocation(demand, weights, float(served.sum()))))
        before = given[:, k]
    return found
