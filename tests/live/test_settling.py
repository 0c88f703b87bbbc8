"""Work that can wait is done, in order, and what it raises is not lost."""

from __future__ import annotations

import asyncio

from loadgen.live.settle import MOST, Settling


async def test_pieces_are_done_in_order_without_being_asked_for():
    done: list[int] = []
    last = asyncio.Event()
    settling = Settling(lambda error: done.append(-1), 0.004)
    for number in range(MOST - 1):
        settling.add(lambda number=number: done.append(number))
    assert done == []
    settling.add(last.set)
    await asyncio.wait_for(last.wait(), 30)
    assert done == list(range(MOST - 1))


async def test_finish_does_what_is_left_now_and_a_broken_piece_stops_no_other():
    done: list[str] = []
    errors: list[BaseException] = []
    settling = Settling(errors.append, 60)

    def broken() -> None:
        raise ValueError("broken")

    for piece in (lambda: done.append("a"), broken, lambda: done.append("b")):
        settling.add(piece)
    settling.finish()
    assert (done, [str(error) for error in errors]) == (["a", "b"], ["broken"])


async def test_a_loop_that_never_rests_leaves_no_more_than_a_bounded_backlog():
    """Pieces that come faster than slices are done as they come, oldest first."""
    done: list[int] = []
    settling = Settling(lambda error: done.append(-1), 0.004)
    for number in range(10 * MOST):
        settling.add(lambda number=number: done.append(number))
    assert done == list(range(9 * MOST))
    settling.finish()
    assert done == list(range(10 * MOST))


async def test_what_may_wait_longer_waits():
    """Two kinds: the one that may not wait does not wait for the other."""
    done: list[str] = []
    soon, late = (Settling(lambda error: done.append("error"), wait_s) for wait_s in (0.001, 3600))
    over = asyncio.Event()
    late.add(lambda: done.append("late"))
    soon.add(over.set)
    await asyncio.wait_for(over.wait(), 30)
    assert done == []
    late.finish()
    assert done == ["late"]
