"""The window of a run: [start, end) of the intended arrivals that count, in ns, and the seconds that its rates are over."""

from __future__ import annotations

from tenants.measures.columns import Columns, Int64s

FOREVER_NS = 1 << 62
"""The end of a window that lasts until the run's last answer, while that is not known."""

SHORTEST_RATE_NS = 1_000_000_000
"""Arrivals within less than this make no rate: one request would be 10^9 a second."""


def window_as_run(
    window_ns: tuple[int, int], *, cut_ns: int | None, ended_ns: int, spent: bool = False
) -> tuple[int, int]:
    """The measured window of a run as it was: rates are per second of the run, not of a plan.

    One whose arrivals were cut short inside it (``cut_ns``: an interrupt, a kill) ends there; one without an end (until N
    requests are answered), or whose N requests had all been made (``spent``), lasts until the last answer, ``ended_ns``.
    """
    start, end = window_ns
    if end >= FOREVER_NS:
        end = ended_ns + 1
    elif cut_ns is not None:
        end = min(end, cut_ns)
    elif spent:
        end = min(end, ended_ns + 1)
    return (start, end) if end > start else window_ns


def rated_s(window_ns: tuple[int, int], judged: Columns) -> float:
    """Seconds that rates of the ``judged`` rows are over: the window's; of one without an end from the first of their arrivals
    until the last has ended, and a second at least."""
    start, end = window_ns
    if end >= FOREVER_NS:
        start = int(judged.arrival_ns.min(initial=FOREVER_NS))
        end = max(int(judged.end_ns.max(initial=0)), start + SHORTEST_RATE_NS)
    return (end - start) / 1e9


def is_burst(arrival_ns: Int64s, speed: float = 1.0) -> bool:
    """Whether these arrivals, played ``speed`` times as fast, lie too close together to make a rate."""
    return (int(arrival_ns.max()) - int(arrival_ns.min())) / speed < SHORTEST_RATE_NS
