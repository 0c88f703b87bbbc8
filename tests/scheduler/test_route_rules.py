"""The routing rules: what each chooses, against what its text says, and what none of them may change."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sched_support import POLICIES, S, request, simulate, tenant

from scheduler.cost import CostModel
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.events import Arrived, BackendState, Dispatch, Finished
from scheduler.prefix_index import PrefixIndex
from scheduler.request import Outcome, Request, Status
from scheduler.routing import Routing, Rule, routed_text
from scheduler.server_model.batching import ContinuousBatch
from scheduler.server_model.plan import Plan
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.slots import Slots

_LAW = StepLaw(a_us=4_987.013, b_us=21.017, c_us=5.011, d_us=0.037)
_BLOCK = 4
_NAMES = ("a", "b", "c")
_ROUTINGS = (
    Routing(),
    Routing(rule=Rule.ROUND_ROBIN),
    Routing(rule=Rule.SESSION),
    Routing(rule=Rule.PREFIX, slack=0.0),
    Routing(rule=Rule.PREFIX, slack=30.0),
    Routing(rule=Rule.PREFIX, slack=None),
)
_BY_TEXT = {routing.text: routing for routing in _ROUTINGS}


def core_of(routing: Routing, slots: dict[str, Slots], which: str = "fifo") -> Dispatcher:
    """Work is the prompt's length alone."""
    name, options = POLICIES[which]
    return Dispatcher(
        DispatcherConfig(
            tenants=(tenant("x"), tenant("y", 2.0)),
            policy=name,
            options=options,
            cost=CostModel(output_weight=0.0),
            backends=slots,
            routing=routing,
        )
    )


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    """Prompts that begin alike in runs of blocks, some of a session, at instants that no two share."""
    requests, at_ns = [], 0
    for number in range(draw(st.integers(1, 25))):
        at_ns += draw(st.integers(1, 12_000_000))
        prompt = draw(st.integers(1, 36))
        family, shared = draw(st.integers(1, 3)), draw(st.integers(0, 9))
        blocks = [100 * family + i for i in range(shared)] + [1000 * (number + 1)]
        requests.append(
            request(
                number,
                draw(st.sampled_from("xy")),
                at_ns,
                prompt,
                draw(st.integers(1, 12)),
                prefix_blocks=tuple(blocks[: -(-prompt // _BLOCK)]),
                session_id=draw(st.sampled_from([None, "s", "t"])),
            )
        )
    return requests


def matched(sent: list[tuple[int, ...]], blocks: tuple[int, ...]) -> int:
    """How many leading blocks were part of any of the prompts ``sent``, one after the other until one was not."""
    found = 0
    while found < len(blocks) and any(blocks[found] in prompt for prompt in sent):
        found += 1
    return found


# -- prefix ----------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(data=st.data(), workload=workloads(), slack=st.sampled_from([0.0, 10.0, 60.0, None]))
def test_prefix_goes_to_the_longest_match_within_the_slack(data, workload, slack):
    """Of those with room and at most ``slack`` more work than the least of them, the longest run of leading blocks; of
    equals the least work. So without a bound the longest match of all, and with 0 always the least work."""
    most = {name: data.draw(st.integers(1, 6)) for name in _NAMES}
    core = core_of(Routing(rule=Rule.PREFIX, slack=slack), {n: Slots(sequences=k) for n, k in most.items()})
    sent: dict[str, list[tuple[int, ...]]] = {name: [] for name in _NAMES}
    running: dict[str, dict[int, Request]] = {name: {} for name in _NAMES}

    def work(name: str) -> int:
        return sum(one.prompt_tokens for one in running[name].values())

    for arriving in workload:
        events = [Arrived(arriving.arrival_ns, arriving)]
        busy = [(name, number) for name in _NAMES for number in running[name]]
        if busy and data.draw(st.booleans()):
            name, number = data.draw(st.sampled_from(busy))
            ended = running[name].pop(number)
            events.insert(0, Finished(arriving.arrival_ns, number, Status.OK, ended.prompt_tokens, 1))
        for event in events:
            for action in core.handle(event):
                assert isinstance(action, Dispatch)
                blocks = action.request.prefix_blocks
                roomy = [name for name in _NAMES if len(running[name]) < most[name]]
                least = min(map(work, roomy))
                near = [name for name in roomy if slack is None or work(name) <= least + slack]
                longest = max(matched(sent[name], blocks) for name in near)
                best = [name for name in near if matched(sent[name], blocks) == longest]
                assert action.backend in best
                assert work(action.backend) == min(map(work, best))
                if slack is None:
                    assert longest == max(matched(sent[name], blocks) for name in roomy)
                if slack == 0.0:
                    assert work(action.backend) == least
                running[action.backend][action.request.id] = action.request
                sent[action.backend].append(blocks)


def _placed(routing: Routing, jobs: list[Request]) -> tuple[str, ...]:
    """Where each goes when none ends."""
    core = core_of(routing, {name: Slots() for name in _NAMES})
    return tuple(core.handle(Arrived(job.arrival_ns, job))[0].backend for job in jobs)


def test_each_rule_places_otherwise():
    """The comparisons here are not vacuous: five families of prompts, seven sessions, other lengths."""
    jobs = [
        request(n, "x", n, 7 + n * n % 31, prefix_blocks=(n % 5, 100 + n % 10), session_id=f"s{n % 7}")
        for n in range(60)
    ]
    apart = [routing for routing in _ROUTINGS if routing.slack != 0.0]
    assert len({_placed(routing, jobs) for routing in apart}) == len(apart) == 5


def test_a_slack_of_nothing_is_least_work_where_no_two_are_equal():
    """Prompts of 1, 2, 4, ... tokens, of which no two sums are equal: prefixes can decide nothing."""
    jobs = [request(n, "x", n, 1 << (n * 7 % 31), prefix_blocks=(n % 3, n % 2)) for n in range(31)]
    placed = _placed(Routing(), jobs)
    assert placed == _placed(Routing(rule=Rule.PREFIX, slack=0.0), jobs)
    assert placed != _placed(Routing(rule=Rule.PREFIX, slack=None), jobs)


def test_the_index_forgets_the_least_recently_sent_and_the_end_of_a_prompt_first():
    """Room for four names: of (1, 2, 3) sent before (4, 5), 3 goes; with (1, 2) sent again 5 is the next to go."""
    index = PrefixIndex(4)
    index.sent("a", (1, 2, 3))
    index.sent("a", (4, 5))
    assert [index.match("a", blocks) for blocks in ((1, 2, 3), (4, 5), (9,))] == [2, 2, 0]
    index.sent("a", (1, 2))
    index.sent("a", (6,))
    assert [index.match("a", blocks) for blocks in ((1, 2), (4, 5), (6,))] == [2, 1, 1]
    assert index.match("b", (1,)) == 0, "each server's own"
    index.forget("a")
    assert index.match("a", (1,)) == 0


def test_a_server_that_was_down_has_lost_its_longest_prefix():
    """Its cache went with it; the other's did not."""
    core = core_of(Routing(rule=Rule.PREFIX, slack=None), {"a": Slots(), "b": Slots()})

    def arrive(number: int, *blocks: int) -> str:
        (action,) = core.handle(Arrived(number, request(number, "x", number, 10, prefix_blocks=blocks)))
        return action.backend

    assert [arrive(0, 1, 2, 3), arrive(1, 7), arrive(2, 1, 2, 3)] == ["a", "b", "a"]
    core.handle(BackendState(3, "a", up=False))
    assert arrive(4, 1) == "b", "only b has room"
    core.handle(BackendState(5, "a", up=True))
    assert arrive(6, 1, 2, 3) == "b", "one block there, none at a any more"


# -- round robin, session --------------------------------------------------------------------------------------------


def test_round_robin_goes_on_behind_the_last_and_passes_by_who_has_no_room():
    """In configured order, whatever the work; a full or absent server is skipped and does not lose its place."""
    core = core_of(Routing(rule=Rule.ROUND_ROBIN), {"b": Slots(), "a": Slots(sequences=1), "c": Slots()})
    seen = [core.handle(Arrived(n, request(n, "x", n, 1 + 100 * (n == 0))))[0].backend for n in range(6)]
    assert seen == ["b", "a", "c", "b", "c", "b"]
    core.handle(BackendState(6, "c", up=False))
    assert core.handle(Arrived(7, request(7, "x", 7)))[0].backend == "b"
    core.handle(Finished(8, 1, Status.OK, 1, 1))
    assert core.handle(Arrived(9, request(9, "x", 9)))[0].backend == "a"


def _homes(names: str, **more: object) -> dict[int, str]:
    core = core_of(Routing(rule=Rule.SESSION), {name: Slots() for name in names})
    found = {}
    for number in range(200):
        keys = {key: make(number) for key, make in more.items()}  # type: ignore[operator]
        (action,) = core.handle(Arrived(number, request(number, "x", number, 10 + number, **keys)))
        found[number] = action.backend
    return found


@pytest.mark.parametrize(
    "key",
    [{"session_id": lambda n: f"s{n % 50}"}, {"prefix_blocks": lambda n: (n % 50, 1000 + n)}],
    ids=["session", "block"],
)
def test_a_session_has_one_server_and_a_new_server_takes_only_its_own(key):
    """The same for each of its requests; 50 sessions use all servers; with a fourth none moves between the other three."""
    three, four = _homes("abc", **key), _homes("abcd", **key)
    assert all(three[n] == three[n % 50] for n in three)
    assert set(three.values()) == set("abc")
    assert {n: name for n, name in four.items() if name != "d"} == {n: three[n] for n in four if four[n] != "d"}
    assert 0 < Counter(four.values())["d"] < 100


def test_a_session_is_a_tenants_own_and_does_not_wait():
    """Two tenants' sessions of one name may have two servers; a full server is not waited for; without a key, least work."""
    sessions = [f"s{n}" for n in range(20)]

    def home(who: str, session: str | None, number: int, core: Dispatcher) -> str:
        (action,) = core.handle(Arrived(number, request(number, who, number, 10, session_id=session)))
        return action.backend

    apart = core_of(Routing(rule=Rule.SESSION), {"a": Slots(), "b": Slots()})
    assert any(home("x", s, n, apart) != home("y", s, 100 + n, apart) for n, s in enumerate(sessions))
    full = core_of(Routing(rule=Rule.SESSION), {"a": Slots(sequences=1), "b": Slots(sequences=1)})
    assert {home("x", "s", n, full) for n in range(2)} == {"a", "b"}
    bare = core_of(Routing(rule=Rule.SESSION), {"a": Slots(), "b": Slots()})
    assert [home("x", None, n, bare) for n in range(4)] == ["a", "b", "a", "b"]


# -- whole simulations -----------------------------------------------------------------------------------------------


class _SingleSteps(ContinuousBatch):
    """The same engine, of which no run is longer than a step: what macro-steps must equal."""

    def plan(self, now_ns: int) -> Plan | None:
        plan = super().plan(now_ns)
        if plan is not None:
            plan.steps = 1
        return plan


def run(
    kind: type[ContinuousBatch], workload: list[Request], routing: Routing, names: str, limits: ServerLimits, which: str
) -> list[Outcome]:
    core = core_of(routing, {name: Slots(sequences=4, prefill_tokens=60) for name in names}, which)
    outcomes = simulate(core, {name: kind(_LAW, limits, _BLOCK) for name in names}, workload)
    assert core.queued == core.outstanding == 0
    return sorted(outcomes, key=lambda outcome: outcome.request.id)


_LIMITS = st.sampled_from(
    [
        ServerLimits(max_num_seqs=3, max_num_batched_tokens=24, kv_tokens=72, prefix_cache=True),
        ServerLimits(max_num_seqs=4, max_num_batched_tokens=16, prefix_cache=True),
        ServerLimits(max_num_seqs=2, max_num_batched_tokens=40, kv_tokens=120),
    ]
)


@pytest.mark.parametrize("which", ["fifo", "wfq", "vtc"])
@pytest.mark.parametrize("text", _BY_TEXT)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(workload=workloads(), limits=_LIMITS)
def test_macro_steps_are_single_steps_and_nothing_is_lost_under_every_rule(text, which, workload, limits):
    """Three replicas: every outcome, its server, its stamps and its cached tokens, is that of stepping one at a time; each
    request ends once."""
    macro = run(ContinuousBatch, workload, _BY_TEXT[text], "abc", limits, which)
    assert macro == run(_SingleSteps, workload, _BY_TEXT[text], "abc", limits, which)
    assert [outcome.request.id for outcome in macro] == [one.id for one in workload]
    assert all(outcome.status is Status.OK and outcome.backend in _NAMES for outcome in macro)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(workload=workloads(), limits=_LIMITS)
def test_on_one_replica_every_rule_is_the_same(workload, limits):
    """Between one server nothing decides: outcomes are equal to the bit."""
    first, *others = (run(ContinuousBatch, workload, routing, "a", limits, "wfq") for routing in _ROUTINGS)
    assert all(other == first for other in others)


def test_a_prefix_is_computed_once_in_the_fleet_and_on_every_replica_by_least_work():
    """Eight prompts with one prefix of 800 tokens, one after the other: the same replica seven times more, or each anew."""
    jobs = [request(n, "x", n * S, 804, 2, prefix_blocks=tuple(range(200))) for n in range(8)]
    limits = ServerLimits(max_num_seqs=4, max_num_batched_tokens=1_024, prefix_cache=True)
    slots = {name: Slots() for name in "ab"}
    found = {}
    for routing in (Routing(rule=Rule.ROUND_ROBIN), Routing(rule=Rule.PREFIX)):
        models = {name: ContinuousBatch(_LAW, limits, _BLOCK) for name in slots}
        outcomes = simulate(core_of(routing, slots), models, jobs)
        found[routing.rule] = sum(outcome.cached_prompt_tokens or 0 for outcome in outcomes)
    assert found == {Rule.ROUND_ROBIN: 6 * 800, Rule.PREFIX: 7 * 800}


# -- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "routing"),
    [
        ("least_work", Routing()),
        ("session", Routing(rule=Rule.SESSION)),
        ("prefix", Routing(rule=Rule.PREFIX, slack=8192.0)),
        ("prefix:slack=0", Routing(rule=Rule.PREFIX, slack=0.0)),
        ("prefix:slack=null", Routing(rule=Rule.PREFIX, slack=None)),
    ],
)
def test_a_routing_is_read_from_its_text(text, routing):
    assert Routing.parse(text) == routing


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prefx", "one of least_work, round_robin, prefix, session"),
        ("session:slack=3", "only prefix has a setting"),
        ("prefix:bound=3", "only prefix has a setting"),
        ("prefix:slack=much", "neither a number of cost units nor null"),
        ("prefix:slack=-1", ">= 0 cost units"),
        ("prefix:slack=inf", "or null"),
        ("prefix:slack=nan", "or null"),
    ],
)
def test_a_wrong_text_says_what_would_be_right(text, said):
    with pytest.raises(ValueError, match=said):
        Routing.parse(text)


def test_results_say_the_rule_only_where_there_is_a_choice():
    assert routed_text(1, Routing(rule=Rule.PREFIX)) == ""
    assert routed_text(2, Routing(rule=Rule.PREFIX)) == "2 servers behind one queue, routing prefix, slack 8192"
    assert (
        routed_text(4, Routing(rule=Rule.PREFIX, slack=None))
        == "4 servers behind one queue, routing prefix, no slack bound"
    )
    assert routed_text(3, Routing()) == "3 servers behind one queue, routing least_work"


def test_a_slack_beyond_all_work_is_no_bound():
    """However large a number is written."""
    for text in ("prefix:slack=1e308", "prefix:slack=null"):
        core = core_of(Routing.parse(text), {"a": Slots(), "b": Slots()})
        for number in range(4):
            core.handle(Arrived(number, request(number, "x", prompt=1000, prefix_blocks=(1,))))
        assert core.outstanding_at("a") == 4
