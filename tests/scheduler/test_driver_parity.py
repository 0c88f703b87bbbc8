"""One core, two drivers: over the same scripted service times they dispatch the same requests at the same instants."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from sched_support import MS, POLICIES, S, dispatcher, request, serve, tenant
from virtual_loop import run_virtual

from scheduler.drivers.live import LiveDriver, NotServed
from scheduler.request import Request, Status

_SERVERS = 3


def _tenants():
    return [
        tenant("a", 1.0, ttft_ms=300.0, priority=1),
        tenant("b", 2.0, ttft_ms=800.0),
        tenant("c", 3.0, ttft_ms=2_500.0, priority=2),
    ]


def _arrivals(seed: int) -> list[Request]:
    """Every service ends at an instant of its own (distinct ns), so that no order hangs on how drivers break ties."""
    rng = np.random.default_rng(seed)
    at_ns = np.sort(rng.integers(0, 9 * S, 400))
    return [
        request(
            number,
            "abc"[rng.integers(3)],
            int(at),
            int(rng.integers(1, 300)),
            int(rng.integers(1, 60)),
            ttl_ns=3 * S if number % 4 == 0 else None,
            timeout_ns=5 * S if number % 9 == 0 else None,
        )
        for number, at in enumerate(at_ns)
    ]


def _service_ns(r: Request) -> int:
    return 40 * MS + r.prompt_tokens * 90_001 + r.target_output_tokens * 3_000_017 + r.id


def _live(core, arrivals) -> tuple[list[tuple[int, int, str]], dict[int, str]]:
    """A backend of scripted services behind the asyncio driver; its first token is its last, as SingleServer's."""
    dispatched: list[tuple[int, int, str]] = []
    ended: dict[int, str] = {}

    async def one(loop, driver, r):
        ticket = driver.submit(r)
        try:
            await ticket.granted()
        except NotServed as refusal:
            ended[r.id] = str(refusal.status)
            return
        dispatched.append((ticket.dispatched_ns, r.id, ticket.backend))
        done = loop.create_future()
        loop.call_at_ns(loop.now_ns + _service_ns(r), done.set_result, None)
        await done
        ticket.tokens(loop.now_ns, r.target_output_tokens)
        ticket.finished(Status.OK, r.prompt_tokens, r.target_output_tokens)
        ended[r.id] = "ok"

    async def main(loop):
        driver = LiveDriver(core, lambda: loop.now_ns, loop)
        tasks = []
        for r in arrivals:
            due = loop.create_future()
            loop.call_at_ns(r.arrival_ns, due.set_result, None)
            await due
            tasks.append(loop.create_task(one(loop, driver, r)))
        await asyncio.gather(*tasks)
        driver.close()

    run_virtual(main)
    return dispatched, ended


@pytest.mark.parametrize("late", ["keep", "demote", "shed"])
@pytest.mark.parametrize("which", POLICIES)
def test_live_and_simulated_runs_dispatch_in_the_same_order(which, late):
    """Same requests, same backends, same instants, same ends, with TTL, time-outs and shedding at work."""
    arrivals = _arrivals(11)
    backends = {chr(ord("a") + i): dispatcher(_tenants()).config.backends["a"] for i in range(_SERVERS)}
    live, ended = _live(dispatcher(_tenants(), which, backends=backends, late=late), arrivals)
    outcomes = serve(dispatcher(_tenants(), which, backends=backends, late=late), arrivals, _service_ns, _SERVERS)
    simulated = sorted((o.dispatched_ns, o.request.id, o.backend) for o in outcomes if o.dispatched_ns is not None)
    # A single server is non-preemptive: a total time-out after the dispatch changes nothing there, nor in the script.
    assert live == simulated
    assert ended == {o.request.id: str(o.status) for o in outcomes}
    assert len(set(ended.values())) > 1
