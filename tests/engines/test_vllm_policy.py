"""lmperf's policies as vLLM's scheduler class: in the engine's own process, step by step, and behind its HTTP server.

The cases of the first part have no clock in them: every machine must give the same answers.
"""

import json
import urllib.error
import urllib.request

import pytest

from scheduler.request import Status
from tests.engines.support.command import ROOT, measured
from tests.engines.support.probe import Ask, Case, run_cases
from tests.engines.support.server import SERVED_NAME, engine_server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

TWO = "tenants: {a: {weight: 1}, b: {weight: 3}}"
FIFO = f"policy: fifo\n{TWO}\n"

# On this platform a block holds 128 tokens and one block is the engine's own, so 8 of them hold two and a half of these
# requests when they are done: four start, and some must be preempted.
TIGHT = {"max_num_seqs": 4, "max_model_len": 512, "num_gpu_blocks_override": 9}
MIXED = [Ask(f"{'ab'[i % 3 == 0]}{i}", "ab"[i % 3 == 0], 10 + 7 * i % 50, 3 + 5 * i % 11) for i in range(14)]
LONG = [Ask(f"{'ab'[i % 2]}{i}", "ab"[i % 2], 100, 200) for i in range(6)]
# a: 16 + 2 * 12 = 40 cost units a request; b: 40 + 2 * 6 = 52. Enough of both that neither queue runs dry.
UNEQUAL = [ask for i in range(120) for ask in (Ask(f"a{i}", "a", 16, 12), Ask(f"b{i}", "b", 40, 6))]
COST = {"a": 40.0, "b": 52.0}
NAMES = [Ask("known", "a", 10, 4), Ask("stranger", "c", 10, 4), Ask("nobody", None, 10, 4), Ask("last", "b", 10, 4)]
SHORT_LIVED = (
    "policy: {name: fifo, late: shed, margin_ms: 0}\ntenants: {a: {slo: {ttft_ms: 0.001, attainment: 0.9}}, b: {}}\n"
)


def few(sequences):
    return {"max_num_seqs": sequences, "max_model_len": 512}


def overload(policy, *, ahead=False):
    """200 steps of four slots: some fifty requests, of 240 that wait."""
    return Case(config=f"policy: {policy}\n{TWO}\n", requests=UNEQUAL, engine=few(4), steps=200, ahead=ahead)


@pytest.fixture(scope="module")
def answers(engine_python, tiny_model, tmp_path_factory):
    """All cases, in one process."""
    return run_cases(
        engine_python,
        tiny_model,
        tmp_path_factory.mktemp("probe"),
        {
            "stock": Case(config=None, requests=MIXED, engine=few(2)),
            "fifo": Case(config=FIFO, requests=MIXED, engine=few(2)),
            "stock-tight": Case(config=None, requests=LONG, engine=TIGHT),
            "fifo-tight": Case(config=FIFO, requests=LONG, engine=TIGHT),
            "wfq-tight": Case(config=f"policy: wfq\n{TWO}\n", requests=LONG, engine=TIGHT),
            "stock-tight-ahead": Case(config=None, requests=LONG, engine=TIGHT, ahead=True),
            "fifo-tight-ahead": Case(config=FIFO, requests=LONG, engine=TIGHT, ahead=True),
            "committed-tight-ahead": Case(
                config=f"policy: committed\n{TWO}\n", requests=LONG, engine=TIGHT, ahead=True
            ),
            "wfq": overload("wfq"),
            "vtc": overload("vtc"),
            "wfq-ahead": overload("wfq", ahead=True),
            "aborted": Case(
                config=FIFO, requests=MIXED, engine=few(2), abort_at={0: [MIXED[5].id], 2: [MIXED[0].id, MIXED[9].id]}
            ),
            "refused": Case(config=FIFO, requests=NAMES, engine=few(1)),
            "defaulted": Case(config=FIFO + "default_tenant: b\n", requests=NAMES, engine=few(1)),
            "shed": Case(config=SHORT_LIVED, requests=MIXED, engine=few(2)),
        },
    )


@pytest.mark.parametrize("suffix", ["", "-tight", "-tight-ahead"])
def test_fifo_is_vllms_own_order(answers, suffix):
    """Step by step, token by token: what fifo gives is what vLLM's own scheduler gives, also where memory is so tight that
    requests are preempted, and with steps planned ahead."""
    stock, fifo = answers[f"stock{suffix}"], answers[f"fifo{suffix}"]
    assert "Policy" in fifo.scheduler
    assert "Policy" not in stock.scheduler
    assert fifo.log == stock.log
    assert fifo.preemptions == stock.preemptions
    assert (stock.preemptions > 0) == ("tight" in suffix), "the case must be what it says"


@pytest.mark.parametrize("name", ["fifo-tight", "wfq-tight", "fifo-tight-ahead", "committed-tight-ahead"])
def test_a_preempted_request_loses_nothing(answers, name):
    """Every request ends with exactly the tokens that it was asked for, and the engine holds nothing any more."""
    answer = answers[name]
    assert answer.preemptions > 0
    assert answer.tokens == {ask.id: ask.tokens for ask in LONG}
    assert answer.ends == {ask.id: "length" for ask in LONG} | answer.ends
    assert len(answer.ends) == len(LONG)
    assert answer.left == []


@pytest.mark.parametrize("name", ["wfq", "vtc", "wfq-ahead"])
def test_a_weighted_overload_is_served_in_the_ratio_of_the_weights(answers, name):
    """Two tenants, always backlogged, weights 1 and 3, requests of different sizes: the cost of what was started is 1 : 3,
    within what SFQ(D) promises, (D + 1) (c_a / phi_a + c_b / phi_b) apart; and within 10% after some fifty requests."""
    served = answers[name].first_served
    cost = {tenant: COST[tenant] * sum(request.startswith(tenant) for request in served) for tenant in COST}
    assert len(served) > 40
    for tenant in COST:
        assert len([r for r in served if r.startswith(tenant)]) < 120, "both stay backlogged"
    assert abs(cost["a"] - cost["b"] / 3) <= (4 + 1) * (COST["a"] + COST["b"] / 3)
    assert cost["b"] / cost["a"] == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize("name", ["wfq", "vtc", "wfq-ahead"])
def test_a_tenants_own_requests_keep_their_order(answers, name):
    """First come, first served within a tenant."""
    served = answers[name].first_served
    for tenant in COST:
        numbers = [int(request[1:]) for request in served if request.startswith(tenant)]
        assert numbers == list(range(len(numbers)))


def test_an_aborted_request_leaves_the_queue_and_no_other_does(answers):
    """Aborted before the first step, while queued later, and while running: none runs on; all others are served whole."""
    answer = answers["aborted"]
    gone = {MIXED[5].id, MIXED[0].id, MIXED[9].id}
    others = {ask.id: ask.tokens for ask in MIXED if ask.id not in gone}
    assert {request: n for request, n in answer.tokens.items() if request not in gone} == others
    assert MIXED[5].id not in answer.tokens
    assert MIXED[9].id not in answer.tokens
    assert answer.tokens[MIXED[0].id] < MIXED[0].tokens
    assert answer.left == []


def test_a_request_of_no_known_tenant_is_refused(answers):
    """Without a default tenant it ends as an error without a token; the others are served."""
    answer = answers["refused"]
    assert answer.ends == {"stranger": "error", "nobody": "error", "known": "length", "last": "length"}
    assert answer.tokens == {"known": 4, "last": 4, "stranger": 0, "nobody": 0}
    assert answer.left == []


def test_the_default_tenant_takes_whoever_names_none(answers):
    """And whoever names one that is not known."""
    answer = answers["defaulted"]
    assert answer.ends == dict.fromkeys(["known", "stranger", "nobody", "last"], "length")


def test_what_the_policy_sheds_ends_as_an_error(answers):
    """A tenant whose limit is over before the first step gets no token and an error for every request; the other tenant is
    served; nothing is left behind."""
    answer = answers["shed"]
    assert answer.ends == {ask.id: "error" if ask.tenant == "a" else "length" for ask in MIXED}
    assert answer.tokens == {ask.id: 0 if ask.tenant == "a" else ask.tokens for ask in MIXED}
    assert answer.left == []


# -- behind HTTP -----------------------------------------------------------------------------------------------------------

USERS = """\
version: 1
name: two-tenants
duration_s: 20
judge: [0.1, 1.0]
backend: {{url: "http://{address}"}}
policy: none
thresholds: [failed < 1%]
tenants:
  a: {{users: 8, prompt: 16, output: 12, extra_body: {{vllm_xargs: {{lmperf_tenant: a}}}}}}
  b: {{users: 8, prompt: 16, output: 12, extra_body: {{vllm_xargs: {{lmperf_tenant: b}}}}}}
"""


@pytest.fixture(scope="module")
def weighted_server(engine_python, tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm-wfq")
    config = folder / "wfq.toml"
    config.write_text('policy = "wfq"\n[tenants.a]\nweight = 1\n[tenants.b]\nweight = 3\n', encoding="utf-8")
    with engine_server(
        engine_python,
        tiny_model,
        folder,
        arguments=["--max-num-seqs", "4", "--scheduler-cls", "lmperf.vllm_scheduler.PolicyScheduler"],
        environment={"PYTHONPATH": str(ROOT), "LMPERF_VLLM_CONFIG": str(config)},
    ) as server:
        yield server


def test_two_backlogged_tenants_get_tokens_in_the_ratio_of_their_weights(weighted_server, tmp_path):
    """Eight users each at four slots, so both always wait: of the tokens that the server gave, b's are three times a's."""
    scenario = tmp_path / "users.yaml"
    scenario.write_text(USERS.format(address=weighted_server.address), encoding="utf-8")
    trace = measured("run", str(scenario), folder=tmp_path).trace
    end_ns = 20 * 10**9
    tokens = {"a": 0, "b": 0}
    columns = [trace.values(name) for name in ("tenant", "status", "finished_ns", "output_tokens")]
    for tenant, status, finished_ns, output_tokens in zip(*columns, strict=True):
        # While both are backlogged: the users of the last requests send no more.
        if status == Status.OK and finished_ns <= end_ns:
            tokens[tenant] += output_tokens
    assert sum(tokens.values()) > 100 * 12, "too few requests to tell a ratio"
    assert tokens["b"] / tokens["a"] == pytest.approx(3, rel=0.15)


def test_a_request_without_a_tenant_fails_over_http(weighted_server):
    """A server error, whether it asked for a stream or not: never an empty answer that looks like a success."""
    url = f"http://{weighted_server.address}/v1/completions"
    body = {"model": SERVED_NAME, "prompt": "hello", "max_tokens": 4}

    def post(**more):
        data = json.dumps(body | more).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    with pytest.raises(urllib.error.HTTPError) as refused:
        post()
    assert refused.value.code == 500
    refused.value.close()
    assert '"error"' in post(stream=True)
    assert '"text"' in post(vllm_xargs={"lmperf_tenant": "a"})
    assert "names no tenant in vllm_xargs.lmperf_tenant" in weighted_server.log.read_text(encoding="utf-8")
