"""The cycle collector of a process that measures."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 10_000


@contextmanager
def quiet_collector() -> Iterator[None]:
    """While a run's clock goes. What is there before it stays, so no collection looks at it again; and a collection comes after
    ten thousand new objects in place of 700: a run leaves few cycles, and looking for them was 2% of a request's cost.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
