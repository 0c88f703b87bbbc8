"""Work that can wait is done, in order, and what it raises is not lost."""

from __future__ import annotations

import asyncio

from loadgen.live.settle import AT_ONCE, MOST, Settling


async def test_things_are_done_in_order_in_small_batches_without_being_asked_for():
    done: list[int] = []
    sizes: list[int] = []
    over = asyncio.Event()

    def do(batch):
        done.extend(batch)
        sizes.append(len(batch))
        if len(done) == MOST:
            over.set()

    settling = Settling(do, lambda error: done.append(-1), 0.004)
    for number in range(MOST):
        settling.add(number)
    assert done == []
    await asyncio.wait_for(over.wait(), 30)
    assert done == list(range(MOST))
    assert max(sizes) <= AT_ONCE


async def test_finish_does_what_is_left_now_and_a_broken_batch_stops_no_other():
    done: list[int] = []
    errors: list[BaseException] = []

    def do(batch):
        if 0 in batch:
            raise ValueError("broken")
        done.extend(batch)

    settling = Settling(do, errors.append, 60)
    for number in range(3 * AT_ONCE):
        settling.add(number)
    settling.finish()
    assert done == list(range(AT_ONCE, 3 * AT_ONCE))
    assert [str(error) for error in errors] == ["broken"]


async def test_a_loop_that_never_rests_leaves_no_more_than_a_bounded_backlog():
    """Things that come faster than slices are done as they come, oldest first."""
    done: list[int] = []
    settling = Settling(done.extend, lambda error: done.append(-1), 0.004)
    for number in range(10 * MOST):
        settling.add(number)
        assert number + 1 - len(done) <= MOST + AT_ONCE
    assert done == list(range(len(done)))
    settling.finish()
    assert done == list(range(10 * MOST))


async def test_what_may_wait_longer_waits():
    """Two kinds: the one that may not wait does not wait for the other."""
    done: list[str] = []
    over = asyncio.Event()
    soon = Settling(lambda batch: over.set(), lambda error: done.append("error"), 0.001)
    late = Settling(done.extend, lambda error: done.append("error"), 3600)
    late.add("late")
    soon.add("soon")
    await asyncio.wait_for(over.wait(), 30)
    assert done == []
    late.finish()
    assert done == ["late"]
