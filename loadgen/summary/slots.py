"""How a controller moved the slots of a run, short enough for a summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadgen.summary.schema import SlotsOverTime
from scheduler.slot_control import SlotMove

_MOST_STEPS = 600


def slots_over_time(moves: Iterable[SlotMove], end_ns: int) -> list[SlotsOverTime]:
    """One entry a backend, in the order of its first move; ``mean_sequences`` weighs each D by how long it held."""
    by_backend: dict[str, list[SlotMove]] = {}
    for move in moves:
        by_backend.setdefault(move.backend, []).append(move)
    return [_of(name, found, end_ns) for name, found in by_backend.items()]


def _of(backend: str, moves: Sequence[SlotMove], end_ns: int) -> SlotsOverTime:
    ends = [move.at_ns for move in moves[1:]] + [max(end_ns, moves[-1].at_ns)]
    held = [end - move.at_ns for move, end in zip(moves, ends, strict=True)]
    total = sum(held)
    values = [move.sequences for move in moves]
    mean = sum(value * ns for value, ns in zip(values, held, strict=True)) / total if total else float(values[-1])
    shown = _thinned(moves)
    return SlotsOverTime(
        backend=backend,
        time_s=[round(move.at_ns / 1e9, 3) for move in shown],
        sequences=[move.sequences for move in shown],
        final_sequences=values[-1],
        least_sequences=min(values),
        most_sequences=max(values),
        mean_sequences=mean,
    )


def _thinned(moves: Sequence[SlotMove]) -> Sequence[SlotMove]:
    """At most so many: of neighbours the last, so that the first and the final value stay."""
    if len(moves) <= _MOST_STEPS:
        return moves
    step = -(-(len(moves) - 1) // (_MOST_STEPS - 1))
    return [moves[0], *reversed(moves[:0:-step])]
