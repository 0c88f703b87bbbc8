"""Several servers behind one live queue, of which one refuses connections: nothing is lost, and it comes back."""

from __future__ import annotations

import asyncio
import itertools
import time
from array import array

import msgspec
import pytest
from live_support import MS, Answer, ListSource, PlainCalls, ScriptedBackend, VirtualLoop, VirtualWakeup, request

from backends.emulator.config import EmulatorConfig
from backends.emulator.server import EmulatorServer
from backends.failover import Failover
from backends.openai import OpenAIBackend
from backends.protocol import WireResult
from loadgen.live.calls import CallMaker, LookAhead, TenantWire
from loadgen.live.engine import LiveRun
from loadgen.pacer import Pacer
from loadgen.workload.prompts import WordPrompts
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.live import LiveDriver
from scheduler.request import ArrivalKind, ErrorClass, Status
from scheduler.server_model.spec import ServerLimits, ServerModelSpec, StepLaw
from scheduler.slots import Slots
from tenants.tenant import Tenant


class Flaky(ScriptedBackend):
    """Refuses connections while it is ``down``; ``sent_first``: it dies after the request has reached it."""

    def __init__(self, clock) -> None:
        super().__init__(clock, lambda _: Answer())
        self.down = False
        self.sent_first = False
        self.refused: list[int] = []
        self.probed: list[int] = []

    async def generate(self, call, on_tokens, *, each=True):
        if not self.down:
            return await super().generate(call, on_tokens)
        self.refused.append(call.request_id)
        await asyncio.sleep(0.001)
        return WireResult(
            status=Status.FAILED,
            ended_ns=self._clock(),
            error_class=ErrorClass.REFUSED,
            sent_ns=self._clock() if self.sent_first else None,
            chunk_ns=array("q"),
        )

    async def answers(self) -> bool:
        self.probed.append(self._clock())
        return not self.down


class Bed:
    """Requests every 20 ms onto two servers with two slots each, on a virtual clock. Each takes 20 ms."""

    def __init__(self, *, count: int = 100, refusals: int = 1) -> None:
        self.loop = VirtualLoop()
        self.servers = {name: Flaky(self.loop.clock) for name in "ab"}
        self.outcomes = []
        self.failover: Failover | None = None
        self.states: list[tuple[int, bool]] = []
        self._count = count
        self._refusals = refusals

    def play(self, *events) -> None:
        """``events``: (ms, server, down)."""
        loop = self.loop

        async def main() -> None:
            source = ListSource([request(i, 20 * i) for i in range(self._count)])
            slots = Slots(sequences=2)
            config = DispatcherConfig(
                tenants=source.tenants, policy="fifo", backends=dict.fromkeys(self.servers, slots)
            )
            driver = LiveDriver(Dispatcher(config), loop.clock, loop)
            probes = {name: server.answers for name, server in self.servers.items()}
            self.failover = Failover(driver, probes, refusals=self._refusals)
            calls = PlainCalls()
            run = LiveRun(
                source,
                driver,
                self.servers,
                calls,
                loop.clock,
                ahead=LookAhead(source.absolute(), calls.make),
                pacer=Pacer(loop.clock, loop, wakeup=VirtualWakeup, monotonic=loop.clock),
                failover=self.failover,
            )
            for at_ms, name, down in events:
                loop.call_at(at_ms / 1000, setattr, self.servers[name], "down", down)
            beside = loop.create_task(self.failover.run())
            await run.run(self.outcomes.append)
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)

        try:
            loop.run_until_complete(main())
        finally:
            loop.close()

    def count(self, status: Status) -> int:
        return sum(outcome.status is status for outcome in self.outcomes)


def test_what_did_not_reach_its_server_is_served_by_the_other():
    """A server refuses for half a second: every request has its one answer, and it gets none until it is back."""
    bed = Bed()
    bed.play((501, "a", True), (1001, "a", False))
    assert sorted(o.request.id for o in bed.outcomes) == list(range(100))
    assert bed.count(Status.OK) == 100
    a, b = bed.servers["a"], bed.servers["b"]
    assert bed.failover.requeued == len(a.refused) == 1, "one refusal, and nobody tries any more"
    assert a.probed
    assert all(at_ns > 501 * MS for at_ns in a.probed)
    assert b.probed == []
    back_ns = a.probed[-1]
    gone = [o for o in bed.outcomes if a.refused and o.backend == "a" and 501 * MS < o.dispatched_ns < back_ns]
    assert gone == []
    assert any(o.backend == "a" and o.dispatched_ns >= back_ns for o in bed.outcomes), "it serves again"
    assert bed.failover.notes() == [
        "backend a refused connections and was taken out once",
        "1 requests that had not reached their backend were queued once more",
    ]


def test_a_request_goes_back_once():
    """Both refuse: the last one stays in, and the request that was refused twice has failed, as with a single server."""
    bed = Bed(count=10)
    for server in bed.servers.values():
        server.down = True
    bed.play()
    assert bed.count(Status.FAILED) == 10
    assert {o.error_class for o in bed.outcomes} == {ErrorClass.REFUSED}
    assert bed.failover.requeued == 1
    assert len(bed.servers["a"].refused) + len(bed.servers["b"].refused) == 11
    assert sum(bed.failover.is_up(name) for name in "ab") == 1


def test_what_was_sent_is_never_sent_again():
    """A server that took a request and went away may have worked on it: that request failed; the server is out."""
    bed = Bed()
    bed.servers["a"].sent_first = True
    bed.play((501, "a", True))
    assert bed.failover.requeued == 0
    assert bed.count(Status.FAILED) == 1
    assert not bed.failover.is_up("a")
    assert "; it was not back when the run ended" in bed.failover.notes()[0]


def test_refusals_count_in_a_row():
    """With three needed, an answer in between begins the count anew."""
    bed = Bed(refusals=3)
    flaps = [(100 * k + 1 + 50 * off, "a", not off) for k in range(10) for off in (0, 1)]
    bed.play(*sorted(flaps, key=lambda flap: flap[0]))
    assert bed.count(Status.OK) + bed.count(Status.FAILED) == 100
    a = bed.servers["a"]
    assert len(a.refused) >= 3
    assert len(a.calls) > 10, "answers came in between"
    refused_often = Bed(refusals=3)
    refused_often.play((101, "a", True))
    assert len(refused_often.servers["a"].refused) == 3
    assert refused_often.failover.downs == {"a": 1, "b": 0}


def test_nonsense_is_refused():
    """No refusal at all cannot mean down."""
    with pytest.raises(ValueError, match="refusals must be >= 1"):
        Bed(refusals=0).play()


class Told(LiveDriver):
    """A driver that says when a backend is down, and when it is about to be back."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.states: asyncio.Queue[tuple[str, bool, int]] = asyncio.Queue()

    def set_backend_state(self, backend: str, *, up: bool) -> None:
        before_ns = self.at()
        super().set_backend_state(backend, up=up)
        self.states.put_nowait((backend, up, before_ns if up else self.at()))


QUICK = ServerModelSpec(
    name="quick",
    law=StepLaw(a_us=2_000.0, b_us=1.0, c_us=2.0, d_us=0.0),
    limits=ServerLimits(max_num_seqs=8, max_num_batched_tokens=256),
)


class Users(ListSource):
    """Eight users who each send again as soon as they have their answer, until ``over``."""

    def __init__(self) -> None:
        super().__init__([request(i, 0, target_output_tokens=20, prompt_tokens=20) for i in range(8)])
        self.over = False
        self._ids = itertools.count(8)

    def after(self, outcome):
        if self.over:
            return None
        kind = ArrivalKind.AFTER
        again = request(next(self._ids), 0, target_output_tokens=20, prompt_tokens=20, arrival_kind=kind)
        return msgspec.structs.replace(again, arrival_ns=outcome.ended_ns)


async def test_a_server_that_is_killed_and_comes_back():
    """Two embedded servers on real sockets. One is stopped while it has requests: those that it was working on fail, all
    others are answered, by the other one; started again on its port it is found, and serves."""
    started_ns = time.monotonic_ns()

    def clock() -> int:
        return time.monotonic_ns() - started_ns

    servers = {name: EmulatorServer(EmulatorConfig(server_model=QUICK)) for name in "ab"}
    for server in servers.values():
        await server.start()
    backends = {name: OpenAIBackend(server.url, clock=clock) for name, server in servers.items()}
    slots, tenants = Slots(sequences=4), (Tenant(name="a"),)
    driver = Told(
        Dispatcher(DispatcherConfig(tenants=tenants, policy="fifo", backends=dict.fromkeys(servers, slots))), clock
    )
    failover = Failover(driver, {name: backend.answers for name, backend in backends.items()}, period_s=0.05)
    source = Users()
    wire = TenantWire(model=servers["a"].config.served_name, endpoint="completions")
    calls = CallMaker({"a": wire}, WordPrompts(seed=1, block_tokens=16))
    run = LiveRun(source, driver, backends, calls, clock, failover=failover)
    outcomes = []
    enough = asyncio.Event()
    down_ns = back_ns = 0

    def on_outcome(outcome) -> None:
        outcomes.append(outcome)
        if sum(o.backend == "a" for o in outcomes) == 20:
            enough.set()
        if back_ns and outcome.backend == "a" and outcome.dispatched_ns > back_ns:
            source.over = True

    async def kill_and_restart() -> None:
        nonlocal down_ns, back_ns
        await enough.wait()
        await servers["a"].stop()
        name, up, down_ns = await driver.states.get()
        assert (name, up) == ("a", False)
        servers["a"] = EmulatorServer(EmulatorConfig(server_model=QUICK, port=servers["a"].port))
        await servers["a"].start()
        name, up, back_ns = await driver.states.get()
        assert (name, up) == ("a", True)

    probing = asyncio.create_task(failover.run())
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(run.run(on_outcome), kill_and_restart())
    finally:
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
        for one in backends.values():
            await one.close()
        for server in servers.values():
            await server.stop()
    ids = sorted(o.request.id for o in outcomes)
    assert ids == list(range(len(ids))), "one outcome each"
    failed = [o for o in outcomes if o.status is not Status.OK]
    assert len(failed) <= slots.sequences, "at most what it had"
    assert all(o.backend == "a" and o.sent_ns is not None for o in failed), "and only what had reached it"
    assert failover.downs == {"a": 1, "b": 0}
    meanwhile = [o for o in outcomes if o.dispatched_ns is not None and down_ns < o.dispatched_ns < back_ns]
    assert {o.backend for o in meanwhile} <= {"b"}
    assert source.over, "it serves again"
