"""Rules of the generator's watch over itself: it warns of a core that was busy for a second, and of nothing shorter."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from loadgen.live import watch


@pytest.mark.parametrize(
    ("wall_s", "cpu_s", "saturated"), [(0.2, 0.2, False), (0.99, 0.99, False), (1.2, 1.2, True), (1.2, 0.6, False)]
)
async def test_only_a_whole_busy_second_is_warned_of(monkeypatch, wall_s, cpu_s, saturated):
    now = SimpleNamespace(wall=5.0, cpu=1.0)
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=lambda: now.wall, process_time=lambda: now.cpu))
    async with watch.Watch() as own:
        now.wall, now.cpu = 5.0 + wall_s, 1.0 + cpu_s
        load = own.own_load()
    assert load.saturated is saturated
    assert load.cpu_share_mean == pytest.approx(cpu_s / wall_s)
