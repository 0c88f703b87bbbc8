"""How the generator itself is doing: the event loop's lag and the process's share of a CPU, once a second.

A lag is how much later than asked a timer of the loop fired; what it delays is every send and every read of that moment.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Self

_PERIOD_S = 0.05
_BUSY_SHARE = 0.9
_BUSY_S = 1.0


@dataclass(frozen=True, slots=True)
class OwnLoad:
    """Loop lag in ms (mean, largest) and CPU share of one core (mean, largest over a second; 0 for less than
    one)."""

    loop_lag_mean_ms: float
    loop_lag_max_ms: float
    cpu_share_mean: float
    cpu_share_max: float

    @property
    def saturated(self) -> bool:
        """True when the process used a whole core for a second: its figures are its own, not the server's."""
        return self.cpu_share_max > _BUSY_SHARE


class Watch:
    """``async with Watch() as watch``; then ``watch.own_load()``."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._lags: tuple[float, float, int] = (0.0, 0.0, 0)
        self._cpu_max = 0.0
        self._start_wall = self._start_cpu = 0.0

    async def __aenter__(self) -> Self:
        self._start_wall, self._start_cpu = time.monotonic(), time.process_time()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def own_load(self) -> OwnLoad:
        total, largest, count = self._lags
        wall = time.monotonic() - self._start_wall
        mean = (time.process_time() - self._start_cpu) / wall if wall > 0 else 0.0
        return OwnLoad(
            loop_lag_mean_ms=total / count * 1e3 if count else 0.0,
            loop_lag_max_ms=largest * 1e3,
            cpu_share_mean=mean,
            # A busy moment is no busy second.
            cpu_share_max=max(self._cpu_max, mean if wall >= _BUSY_S else 0.0),
        )

    async def _run(self) -> None:
        last_wall, last_cpu = time.monotonic(), time.process_time()
        while True:
            due = time.monotonic() + _PERIOD_S
            await asyncio.sleep(_PERIOD_S)
            now = time.monotonic()
            total, largest, count = self._lags
            lag = max(0.0, now - due)
            self._lags = (total + lag, max(largest, lag), count + 1)
            if now - last_wall >= _BUSY_S:
                cpu = time.process_time()
                self._cpu_max = max(self._cpu_max, (cpu - last_cpu) / (now - last_wall))
                last_wall, last_cpu = now, cpu
