"""The server model in real and in virtual time: what the emulator plans is what the simulator says."""

from hypothesis import given, settings
from hypothesis import strategies as st
from test_emulator_engine import Host, Job

from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.simulated import Simulation
from scheduler.request import Request
from scheduler.routing import Routing, Rule
from scheduler.server_model.build import build_server
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.slots import Slots
from tenants.tenant import Tenant

BLOCK = 16

laws = st.builds(
    StepLaw,
    a_us=st.sampled_from([500.0, 1234.567]),
    b_us=st.sampled_from([0.0, 31.7, 500.0]),
    c_us=st.sampled_from([0.0, 7.0]),
    d_us=st.sampled_from([0.0, 0.25]),
    attended_us=st.sampled_from([0.0, 0.01]),
    offset_us=st.sampled_from([500.0, 2000.0, 3333.3]),
    stream_us=st.sampled_from([0.0, 150.0, 700.0, 5000.0]),
)
limits = st.builds(
    ServerLimits,
    max_num_seqs=st.integers(1, 5),
    max_num_batched_tokens=st.integers(20, 80),
    kv_tokens=st.sampled_from([None, 200]),
    priority_queue=st.booleans(),
    prefix_cache=st.booleans(),
    speculative_tokens=st.sampled_from([0, 0, 1, 3]),
)


@st.composite
def loads(draw):
    """Requests in order of arrival; some share the start of their prompt, some are given up, never at the end of a step (there
    both orders are right)."""
    grid_ns = draw(st.sampled_from([1, 500_000]))
    span = draw(st.sampled_from([3_000_000, 30_000_000, 100_000_000]))
    count = draw(st.integers(2, 14))
    arrivals = sorted(draw(st.integers(0, span // grid_ns)) * grid_ns for _ in range(count))
    requests = []
    for number, at_ns in enumerate(arrivals):
        prompt = draw(st.integers(1, 100))
        shared = draw(st.sampled_from([None, 0, 1]))
        cancel = draw(st.none() | st.integers(0, 20_000))
        requests.append(
            Request(
                id=number,
                tenant="t",
                arrival_ns=at_ns,
                prompt_tokens=prompt,
                target_output_tokens=draw(st.integers(1, 14)),
                prefix_blocks=() if shared is None else tuple(shared * 100 + i for i in range(-(-prompt // BLOCK))),
                cancel_after_ns=None if cancel is None else cancel * 1000 + 1,
                priority=draw(st.integers(0, 1)),
            )
        )
    return requests


def simulated(requests, law, limits, names, rule):
    """What the simulator says of each: (server, first, last, tokens)."""
    outcomes = []
    config = DispatcherConfig(
        tenants=(Tenant(name="t"),),
        policy="fifo",
        backends={name: Slots() for name in names},
        routing=Routing(rule=rule),
    )
    servers = {name: build_server(law, limits, BLOCK) for name in names}
    simulation = Simulation(Dispatcher(config), servers, requests, outcomes.append)
    placed = {}
    dispatch = simulation._dispatch

    def noted(request, backend, account):
        placed[request.id] = backend
        dispatch(request, backend, account)

    simulation._dispatch = noted
    simulation.run()
    return {
        found.request.id: (placed[found.request.id], found.first_token_ns, found.last_token_ns, found.output_tokens)
        for found in outcomes
    }


def planned(requests, law, limits):
    """What an engine in real time plans of the same."""
    host = Host(model=build_server(law, limits, BLOCK))
    jobs = [Job(one.arrival_ns, one.prompt_tokens, one.target_output_tokens) for one in requests]
    aborts = [
        (one.arrival_ns + one.cancel_after_ns, number)
        for number, one in enumerate(requests)
        if one.cancel_after_ns is not None
    ]
    made = host.run(jobs, aborts, requests)
    host.engine.close()
    assert not host.failures
    return [tuple(one.planned_ns) for one in made]


@settings(max_examples=300, deadline=None)
@given(loads(), laws, limits, st.integers(1, 3), st.sampled_from(list(Rule)))
def test_the_engines_stamps_are_the_simulators(requests, law, limits, replicas, rule):
    """Requests given up before, in and after the front end and the batch, preemption, prefix cache, drafts, several servers:
    first and last token and their number are the same, of those given up too."""
    names = [f"server{number}" for number in range(replicas)]
    found = simulated(requests, law, limits, names, rule)
    for name in names:
        mine = [one for one in requests if found[one.id][0] == name]
        expected = [found[one.id][1:] for one in mine]
        times = planned(mine, law, limits)
        assert [(*((one[0], one[-1]) if one else (None, None)), len(one)) for one in times] == expected


def test_a_stream_that_is_given_up_keeps_its_last_token():
    """Its gap to the end counts, and it has a time per token: 1 ms a step, given up half a millisecond after its third."""
    law = StepLaw(a_us=1000.0, b_us=0.0)
    request = Request(
        id=0, tenant="t", arrival_ns=0, prompt_tokens=5, target_output_tokens=9, cancel_after_ns=3_500_000
    )
    outcomes = []
    config = DispatcherConfig(tenants=(Tenant(name="t"),), policy="fifo", backends={"": Slots()})
    Simulation(Dispatcher(config), {"": build_server(law, ServerLimits())}, [request], outcomes.append).run()
    (found,) = outcomes
    assert (found.first_token_ns, found.last_token_ns, found.output_tokens) == (1_000_000, 3_000_000, 3)
    assert found.finished_ns is None
    assert found.ended_ns == 3_500_000
