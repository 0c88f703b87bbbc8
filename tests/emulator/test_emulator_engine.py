"""The engine in virtual time: planned token times are the server model's own, however late the host wakes it."""

import asyncio
from dataclasses import dataclass

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.emulator.engine import Engine, EngineFailedError, Generation
from backends.emulator.metrics import EngineMetrics
from scheduler.calibration.observations import Observations
from scheduler.calibration.replay import replay
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.simulated import Simulation
from scheduler.request import Request
from scheduler.server_model.batching import ContinuousBatch
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.slots import Slots
from tenants.tenant import Tenant

LAW = StepLaw(a_us=1000.0, b_us=1.5, c_us=7.0, d_us=0.25, offset_us=400.0)
LIMITS = ServerLimits(max_num_seqs=3, max_num_batched_tokens=64)


@dataclass(frozen=True)
class Job:
    received_ns: int
    prompt: int
    output: int


def take_in(missing, jobs, free_from_ps, until_ps):
    """Each request has what it has missing of the front end's free time; returns those that have it all."""
    entered = []
    for i in sorted(missing):
        missing[i] -= max(0, until_ps - max(free_from_ps, jobs[i].received_ns * 1000))
        if missing[i] <= 0 and jobs[i].received_ns * 1000 <= until_ps:
            entered.append(i)
    for i in entered:
        del missing[i]
    return entered


def reference(jobs, law, limits):
    """Token times by the rules of continuous batching, one step at a time and nothing clever: the oracle."""
    a, b, c, d = (round(v * 1e6) for v in (law.a_us, law.b_us, law.c_us, law.d_us))
    work_ps, stream_ps = law.offset_ns * 1000, round(law.stream_us * 1e6)
    missing = dict.fromkeys(range(len(jobs)), work_ps)
    times = [[] for _ in jobs]
    left = [job.prompt for job in jobs]
    queue, batch, now_ps = [], [], 0
    while missing or queue or batch:
        if not queue and not batch:
            # Idle: all of the front end's time is free until the first request has had what it needs.
            entry_ps = min(max(now_ps, jobs[i].received_ns * 1000) + missing[i] for i in missing)
            queue += take_in(missing, jobs, now_ps, entry_ps)
            now_ps = max(now_ps, entry_ps)
        decoding = [i for i in batch if left[i] == 0]
        budget = limits.max_num_batched_tokens - len(decoding)
        chunks = {}
        for i in [i for i in batch if left[i]]:
            chunks[i] = min(left[i], budget)
            budget -= chunks[i]
        while queue and budget and len(batch) < limits.max_num_seqs:
            i = queue.pop(0)
            batch.append(i)
            chunks[i] = min(left[i], budget)
            budget -= chunks[i]
        resident = sum(jobs[i].prompt + len(times[i]) for i in decoding)
        start_ps = now_ps
        now_ps += a + b * sum(chunks.values()) + c * len(decoding) + d * resident
        busy_ps = min(len(decoding) * stream_ps, now_ps - start_ps - (now_ps - start_ps) // 8)
        queue += take_in(missing, jobs, start_ps + busy_ps, now_ps)
        for i, tokens in chunks.items():
            left[i] -= tokens
        for i in decoding + [i for i in chunks if left[i] == 0]:
            times[i].append(now_ps // 1000)
        batch = [i for i in batch if len(times[i]) < jobs[i].output]
    return times


class Sink:
    def __init__(self):
        self.seen = []

    def tokens(self, start, count):
        self.seen.extend(range(start, start + count))


class Host:
    """A clock that stands still between events, and one alarm that rings as late as the test says."""

    def __init__(self, lateness_ns=(), model=None, epoch_ns=0):
        self.now_ns = 0
        self.alarm_ns = None
        self.failures = []
        self.metrics = EngineMetrics()
        self._lateness = list(lateness_ns)
        self.model = model or ContinuousBatch(LAW, LIMITS)
        self.loop = asyncio.new_event_loop()
        self.engine = Engine(
            self.model,
            clock=lambda: self.now_ns,
            epoch_ns=epoch_ns,
            metrics=self.metrics,
            new_wakeup=self._new_wakeup,
            on_failure=self.failures.append,
        )

    def _new_wakeup(self, callback):
        self._callback = callback
        return self

    def arm(self, at_ns):
        self.alarm_ns = max(at_ns, self.now_ns)

    def disarm(self):
        self.alarm_ns = None

    def close(self):
        self.loop.close()

    def generation(self, number, job, request=None):
        return Generation(
            request or Request(id=number, tenant="t", arrival_ns=job.received_ns, prompt_tokens=job.prompt),
            output_tokens=job.output,
            received_ns=job.received_ns,
            sink=Sink(),
            done=self.loop.create_future(),
            keep_times=True,
        )

    def run(self, jobs, aborts=(), requests=None):
        """Submit each job when it is received and ring each alarm late; ``aborts``: (time, number) pairs; ``requests``: theirs,
        where more is asked than a number of tokens."""
        asked = requests or [None] * len(jobs)
        made = [self.generation(number, *both) for number, both in enumerate(zip(jobs, asked, strict=True))]
        script = [(job.received_ns, 0, number) for number, job in enumerate(jobs)]
        script += [(max(at_ns, jobs[number].received_ns), 1, number) for at_ns, number in aborts]
        script.sort()
        while script or self.alarm_ns is not None:
            rings_ns = None
            if self.alarm_ns is not None:
                rings_ns = self.alarm_ns + (self._lateness[0] if self._lateness else 0)
            if script and (rings_ns is None or script[0][0] <= rings_ns):
                at_ns, abort, number = script.pop(0)
                self.now_ns = max(self.now_ns, at_ns)
                if abort:
                    self.engine.abort(made[number].request.id)
                else:
                    self.engine.submit(made[number])
            else:
                if self._lateness:
                    self._lateness.pop(0)
                self.now_ns = max(self.now_ns, rings_ns)
                self.alarm_ns = None
                self._callback()
        return made


@pytest.fixture
def host():
    made = Host()
    yield made
    made.engine.close()


jobs_in_order = st.lists(
    st.builds(Job, st.integers(0, 30_000_000), st.integers(1, 150), st.integers(1, 12)), min_size=1, max_size=10
).map(lambda jobs: sorted(jobs, key=lambda job: job.received_ns))


@given(jobs_in_order, st.lists(st.integers(0, 20_000_000), max_size=60), st.sampled_from([0.0, 150.0, 600.0]))
def test_tokens_are_planned_when_the_model_says_however_late_the_host_is(jobs, lateness_ns, stream_us):
    """Steps end at absolute times: a late wake-up is caught up with and moves no later step, and a request joins the
    step that it would have joined on a host that is never late, whatever the streams leave it of the front end."""
    law = msgspec.structs.replace(LAW, stream_us=stream_us)
    host = Host(lateness_ns, ContinuousBatch(law, LIMITS))
    made = host.run(jobs)
    assert [list(one.planned_ns) for one in made] == reference(jobs, law, LIMITS)
    assert all(one.sink.seen == list(range(job.output)) for one, job in zip(made, jobs, strict=True))
    assert all(one.done.done() for one in made)
    assert all(sent >= due for one in made for sent, due in zip(one.token_ns, one.planned_ns, strict=True))
    host.engine.close()


at_once = st.lists(
    st.builds(Job, st.integers(0, 9).map(lambda at: at * 1_000_000), st.integers(1, 150), st.integers(1, 12)),
    min_size=2,
    max_size=12,
).map(lambda jobs: sorted(jobs, key=lambda job: job.received_ns))


@given(at_once, st.sampled_from([0.0, 150.0, 1500.0]))
def test_who_comes_at_one_instant_joins_one_step_in_real_time_simulated_and_replayed(jobs, stream_us):
    """The first of them must not begin a step alone; also when streams need more than a step has."""
    law = msgspec.structs.replace(LAW, stream_us=stream_us)
    host = Host(model=ContinuousBatch(law, LIMITS))
    made = host.run(jobs)
    host.engine.close()
    engine = [(one.planned_ns[0], one.planned_ns[-1]) for one in made]
    columns = ([job.received_ns for job in jobs], [job.prompt for job in jobs], [job.output for job in jobs])
    sent, prompt, output = (np.array(column, dtype=np.int64) for column in columns)
    load = Observations("at once", sent, np.zeros_like(sent), np.zeros_like(sent), prompt, output)
    replayed = replay(load, law, LIMITS).times
    outcomes = []
    config = DispatcherConfig(tenants=(Tenant(name="t"),), policy="fifo", backends={"": Slots()})
    requests = [
        msgspec.structs.replace(one.request, target_output_tokens=job.output)
        for one, job in zip(made, jobs, strict=True)
    ]
    Simulation(Dispatcher(config), {"": ContinuousBatch(law, LIMITS)}, requests, outcomes.append).run()
    outcomes.sort(key=lambda outcome: outcome.request.id)
    simulated = [(outcome.first_token_ns, outcome.last_token_ns) for outcome in outcomes]
    expected = [(times[0], times[-1]) for times in reference(jobs, law, LIMITS)]
    assert engine == expected
    assert simulated == expected
    assert list(zip(replayed.first_ns.tolist(), replayed.last_ns.tolist(), strict=True)) == expected


def test_a_late_host_takes_no_time_from_those_behind_one_that_went():
    """The alarm of the first in line rings late, and it has been given up meanwhile: what was received since has its free time
    counted from then, though the one between them enters first."""
    law = msgspec.structs.replace(LAW, offset_us=3000.0)
    host = Host([6_000_000], ContinuousBatch(law, LIMITS))
    jobs = [Job(0, 10, 2), Job(2_900_000, 10, 5), Job(4_800_000, 10, 2)]
    made = host.run(jobs, aborts=[(6_000_000, 0)])
    host.engine.close()
    assert [list(one.planned_ns) for one in made[1:]] == reference(jobs[1:], law, LIMITS)


def test_one_request_alone_follows_the_closed_form(host):
    """TTFT = offset + a + b*prompt; the gap before token k is a + c + d*(prompt + k - 1)."""
    (made,) = host.run([Job(5_000_000, 10, 4)])
    first = 5_000_000 + 400_000 + 1_000_000 + 15_000
    gaps = [1_000_000 + 7_000 + 250 * context for context in (11, 12, 13)]
    assert list(made.planned_ns) == [first, first + gaps[0], first + sum(gaps[:2]), first + sum(gaps)]


def test_the_lateness_of_each_step_is_counted():
    """From the planned end to the last write: here the alarm of the second step rings 3 ms late."""
    # The first alarm only lets the request into the engine's queue.
    host = Host([0, 0, 3_000_000])
    host.run([Job(0, 1, 2)])
    assert host.metrics.steps == 2
    assert host.metrics.lateness_max_ns == 3_000_000
    host.engine.close()


@given(jobs_in_order, st.lists(st.tuples(st.integers(0, 60_000_000), st.integers(0, 9)), max_size=8))
def test_an_aborted_request_gets_no_more_tokens_and_the_others_all_of_theirs(jobs, aborts):
    """Wherever it is (before the queue, in it, in the batch, gone) and nothing of it is left."""
    host = Host()
    aborts = [(at_ns, number) for at_ns, number in aborts if number < len(jobs)]
    made = host.run(jobs, aborts)
    earliest = {}
    for at_ns, number in aborts:
        earliest[number] = min(earliest.get(number, at_ns), at_ns)
    for number, (one, job) in enumerate(zip(made, jobs, strict=True)):
        if number not in earliest:
            assert one.emitted == job.output
        elif not one.done.done():
            cut_ns = max(earliest[number], job.received_ns)
            assert all(sent <= cut_ns for sent in one.token_ns)
    assert host.engine.in_flight == host.model.running == host.model.waiting == host.model.kv_tokens == 0
    assert not host.failures
    host.engine.close()


def test_preempted_requests_give_every_token_once():
    """A full KV cache pushes the last admitted back; what it had said is not said again."""
    limits = ServerLimits(max_num_seqs=3, max_num_batched_tokens=64, kv_tokens=60)
    host = Host(model=ContinuousBatch(LAW, limits))
    made = host.run([Job(0, 20, 25), Job(0, 20, 25), Job(0, 15, 25)])
    assert host.metrics.preemptions > 0
    assert sum(one.preemptions for one in made) == host.metrics.preemptions
    assert all(one.sink.seen == list(range(25)) for one in made)
    host.engine.close()


def test_a_failing_step_fails_every_request_and_is_told():
    """Nothing waits for ever on an engine that cannot go on, and new requests are refused."""

    class Broken(ContinuousBatch):
        def commit(self, steps, *, emitted=False):
            raise ArithmeticError("no such step")

    host = Host(model=Broken(LAW, LIMITS))
    (made,) = host.run([Job(0, 1, 2)])
    with pytest.raises(EngineFailedError, match="no such step"):
        made.done.result()
    assert [type(error) for error in host.failures] == [ArithmeticError]
    with pytest.raises(EngineFailedError):
        host.engine.submit(host.generation(9, Job(0, 1, 1)))
    host.engine.close()


def test_counters_agree_with_what_was_handed_out(host):
    """Tokens, ends and the latency histograms count the same requests; gaps = tokens - requests."""
    jobs = [Job(n * 700_000, 5 + n, 3 + n) for n in range(6)]
    made = host.run(jobs)
    families = {
        name: counts.family(name, "", {}) for name, counts in (
            ("ttft", host.metrics.first_token), ("itl", host.metrics.inter_token), ("e2e", host.metrics.end_to_end)
        )
    }  # fmt: skip
    sample = {(name, s.name.rpartition("_")[2]): s.value for name, family in families.items() for s in family.samples}
    tokens = sum(job.output for job in jobs)
    assert host.metrics.generation_tokens == tokens
    assert host.metrics.finished == len(jobs)
    assert (sample["ttft", "count"], sample["e2e", "count"]) == (6, 6)
    assert sample["itl", "count"] == tokens - 6
    assert sample["itl", "sum"] * 1e9 == pytest.approx(sum(one.planned_ns[-1] - one.planned_ns[0] for one in made))
    assert sample["ttft", "sum"] * 1e9 == pytest.approx(
        sum(one.planned_ns[0] - job.received_ns for one, job in zip(made, jobs, strict=True))
    )
