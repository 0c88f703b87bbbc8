"""The work that a server did for each tenant: what a request costs, when it is delivered, and how much by a given time.

A request's cost is spread evenly from its first to its last token (see :mod:`tenants.measures.fairness`). What all
tenants have been given by a time is piecewise linear with jumps, with two breakpoints a request. The breakpoints are
worked through in order of time, some thousands at once, so that nothing grows with tenants times requests.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tenants.measures.columns import NEVER, Columns, Int64s, StatusCode

Floats = NDArray[np.float64]

_CELLS_AT_ONCE = 1 << 16
_LEAST_AT_ONCE = 256
_MOST_AT_ONCE = 1 << 14


def delivery(columns: Columns) -> tuple[NDArray[np.bool_], Int64s, Int64s]:
    """Which rows were served at all, and the times of their first and last token. A stream that broke off has no
    TPOT: its tokens are taken to have come until its end.
    """
    served = columns.ttft_ns != NEVER
    first = columns.arrival_ns[served] + columns.ttft_ns[served]
    tpot, tokens = columns.tpot_ns[served], columns.output_tokens[served]
    whole = (columns.status[served] == StatusCode.OK) & (tpot != NEVER)
    gap = np.where(whole, np.maximum(tpot, 0), 0) * np.maximum(tokens - 1, 0)
    last = np.where(whole, first + gap, np.maximum(columns.end_ns[served], first))
    return served, first, last


def request_cost(columns: Columns, w_p: float = 1.0, w_q: float = 2.0) -> Floats:
    """Cost units of each row; an unknown token count (below 0) adds nothing."""
    cost: Floats = w_p * np.maximum(columns.prompt_tokens, 0) + w_q * np.maximum(columns.output_tokens, 0)
    return cost.astype(np.float64)


class Service:
    """What was delivered to the tenants of ``columns``, over all rows. ``end_ns``: the last delivery; None without one."""

    def __init__(self, columns: Columns, w_p: float = 1.0, w_q: float = 2.0) -> None:
        self._n = len(columns.tenants)
        first, last = np.empty(len(columns), dtype=np.int64), np.empty(len(columns), dtype=np.int64)
        tenant, cost = np.empty(len(columns), dtype=np.int32), np.empty(len(columns))
        n = 0
        for rows in columns.pieces():
            served, starts, ends = delivery(rows)
            mine = slice(n, n + len(starts))
            first[mine], last[mine], tenant[mine] = starts, ends, rows.tenant[served]
            cost[mine] = request_cost(rows, w_p, w_q)[served]
            n += len(starts)
        self._first, self._last, self._tenant, self._cost = first[:n], last[:n], tenant[:n], cost[:n]
        self.end_ns = int(self._last.max()) if len(self._last) else None

    def at(self, times_ns: Int64s) -> Floats:
        """Cost units delivered to each tenant (row) by each of ``times_ns`` (ascending), what is delivered at that very
        instant included.
        """
        given = np.zeros((self._n, len(times_ns)))
        sweep: _Sweep | None = None
        answered = 0
        for times, slope_change, jump in self._breakpoints():
            if sweep is None:
                sweep = _Sweep(self._n, int(times[0]))
                answered = int(np.searchsorted(times_ns, times[0]))
            until = max(answered, int(np.searchsorted(times_ns, times[-1])))
            given[:, answered:until] = sweep.advance(times, slope_change, jump, times_ns[answered:until])
            answered = until
        if sweep is not None:
            given[:, answered:] = sweep.total[:, None]
        return given

    def _breakpoints(self) -> Iterator[tuple[Int64s, Floats, Floats]]:
        """(times, by how much the rate of each tenant changes there, what it is given at once there), in order."""
        by_first, by_last = _order(self._first), _order(self._last)
        firsts, lasts = self._first[by_first], self._last[by_last]
        step = min(max(_CELLS_AT_ONCE // max(self._n, 1), _LEAST_AT_ONCE), _MOST_AT_ONCE)
        # Every breakpoint of one time belongs to one stretch; the last stretch ends with the last of all.
        ends = np.unique(np.concatenate([firsts[step - 1 :: step], lasts[step - 1 :: step], lasts[-1:]]))
        first_bounds = [0, *np.searchsorted(firsts, ends, side="right").tolist()]
        last_bounds = [0, *np.searchsorted(lasts, ends, side="right").tolist()]
        del firsts, lasts
        for k in range(len(ends)):
            starting = by_first[first_bounds[k] : first_bounds[k + 1]]
            ending = by_last[last_bounds[k] : last_bounds[k + 1]]
            yield self._stretch(starting, ending)

    def _stretch(self, starting: NDArray[np.int32], ending: NDArray[np.int32]) -> tuple[Int64s, Floats, Floats]:
        times = np.unique(np.concatenate([self._first[starting], self._last[ending]]))
        slope_change, jump = np.zeros((self._n, len(times))), np.zeros((self._n, len(times)))
        at_once = self._first[starting] == self._last[starting]
        instant, begun = starting[at_once], starting[~at_once]
        ended = ending[self._first[ending] != self._last[ending]]
        np.add.at(jump, (self._tenant[instant], np.searchsorted(times, self._first[instant])), self._cost[instant])
        np.add.at(slope_change, (self._tenant[begun], np.searchsorted(times, self._first[begun])), self._rate(begun))
        np.add.at(slope_change, (self._tenant[ended], np.searchsorted(times, self._last[ended])), -self._rate(ended))
        return times, slope_change, jump

    def _rate(self, rows: NDArray[np.int32]) -> Floats:
        """Cost units per ns of requests that last."""
        rate: Floats = self._cost[rows] / (self._last[rows] - self._first[rows])
        return rate


def _order(times: Int64s) -> NDArray[np.int32]:
    """The places of ``times``, ascending; fewer than 2^31 requests, and both orders are held at once."""
    return np.argsort(times, kind="stable").astype(np.int32)


class _Sweep:
    """The state at one breakpoint, which moves on in time. ``total``: what each tenant has been given by then."""

    def __init__(self, n: int, time_ns: int) -> None:
        self._time_ns = time_ns
        self._slope, self._flow, self._jumped, self.total = (np.zeros(n) for _ in range(4))

    def advance(self, times: Int64s, slope_change: Floats, jump: Floats, asked_ns: Int64s) -> Floats:
        """Move over ``times`` to the last of them; what was delivered at each of ``asked_ns``, none of which lies before
        this state or at or after the last of ``times``.
        """
        passed = np.concatenate(([self._time_ns], times))
        slope = _running(self._slope, slope_change)
        flow = _running(self._flow, slope[:, :-1] * np.diff(passed))
        jumped = _running(self._jumped, jump)
        right = flow + jumped
        left = right[:, 1:] - jump
        right[:, 0] = self.total
        k = np.searchsorted(passed, asked_ns, side="right") - 1
        part = np.clip((asked_ns - passed[k]) / np.maximum(passed[k + 1] - passed[k], 1), 0.0, 1.0)
        found: Floats = right[:, k] + (left[:, k] - right[:, k]) * part
        self._time_ns = int(times[-1])
        self._slope, self._flow, self._jumped, self.total = (x[:, -1].copy() for x in (slope, flow, jumped, right))
        return found


def _running(start: Floats, changes: Floats) -> Floats:
    """``start`` and then the running sums, from left to right."""
    return np.cumsum(np.concatenate([start[:, None], changes], axis=1), axis=1)
