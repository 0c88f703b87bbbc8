"""Fairness: each policy within the bound that its docstring states, and all of them at the max-min shares in the long run.

The bounded tests drive the policy alone with random lengths and D requests outstanding; tenants stay backlogged.
"""

from __future__ import annotations

import numpy as np
import pytest
from maxmin import max_min
from sched_support import MS, S, dispatcher, policy, request, simulate, tenant

from scheduler.server_model.batching import ContinuousBatch
from scheduler.server_model.spec import ServerLimits, StepLaw

_WEIGHTS = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
_FAIR = ["wfq", "drr", "vtc", "slo_aware"]


class Backlogged:
    """Tenants that always have three requests queued; D outstanding, ended in random order after random progress.

    ``served``: per tenant the running sum of what each account in question counts, sampled after every event.
    """

    def __init__(self, which: str, seed: int, depth: int, *, exact: bool, ttft_ms: float | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        self.exact = exact
        self.depth = depth
        self.queue = policy(which, [tenant(n, w, ttft_ms=ttft_ms, expected=20.0) for n, w in _WEIGHTS.items()])
        self.next_id = 0
        self.now_ns = 0
        self.running: list = []
        self.generated: dict[int, int] = {}
        self.dispatched = dict.fromkeys(_WEIGHTS, 0.0)
        self.charged = dict.fromkeys(_WEIGHTS, 0.0)
        self.samples: list[tuple[dict[str, float], dict[str, float]]] = []
        self.mean_cost = 0.0
        for name in _WEIGHTS:
            for _ in range(3):
                self._arrive(name)

    def _arrive(self, name: str) -> None:
        output = 20 if self.exact else int(self.rng.integers(1, 60))
        new = request(self.next_id, name, self.now_ns, int(self.rng.integers(1, 100)), output)
        self.next_id += 1
        self.queue.enqueue(new, self.now_ns)

    def run(self, events: int) -> Backlogged:
        for _ in range(events):
            self.now_ns += MS
            if len(self.running) < self.depth:
                chosen = self.queue.select(self.now_ns)
                self.running.append(chosen)
                self.generated[chosen.id] = 0
                self.dispatched[chosen.tenant] += chosen.prompt_tokens + 2 * chosen.target_output_tokens
                self.charged[chosen.tenant] += chosen.prompt_tokens
                self._arrive(chosen.tenant)
            else:
                self._advance()
            self.samples.append((dict(self.dispatched), dict(self.charged)))
        return self

    def _advance(self) -> None:
        chosen = self.running[int(self.rng.integers(len(self.running)))]
        left = chosen.target_output_tokens - self.generated[chosen.id]
        tokens = int(self.rng.integers(1, left + 1))
        self.generated[chosen.id] += tokens
        self.charged[chosen.tenant] += 2 * tokens
        self.queue.on_progress(((self.queue.account_of(chosen.id), tokens),), self.now_ns)
        if tokens < left:
            return
        output = chosen.target_output_tokens
        self.queue.on_finish(chosen.id, chosen.prompt_tokens, output, self.now_ns, output)
        self.running.remove(chosen)

    def largest_difference(self, which: int, one: str, other: str) -> float:
        """Over all intervals: the range of the difference of weighted service."""
        series = [s[which][one] / _WEIGHTS[one] - s[which][other] / _WEIGHTS[other] for s in self.samples]
        return max(series) - min(series)


_PAIRS = [("a", "b"), ("a", "d"), ("b", "c"), ("c", "d")]
_LONGEST = 99 + 2 * 59


@pytest.mark.parametrize("depth", [1, 2, 8])
@pytest.mark.parametrize("seed", range(5))
def test_sfq_bound(depth, seed):
    """wfq: weighted dispatched costs differ by at most (D + 1)(c_i/phi_i + c_j/phi_j) over any interval, lengths known."""
    run = Backlogged("wfq", seed, depth, exact=True).run(3_000)
    longest = 99 + 2 * 20
    for one, other in _PAIRS:
        bound = (depth + 1) * longest * (1 / _WEIGHTS[one] + 1 / _WEIGHTS[other])
        assert run.largest_difference(0, one, other) <= bound


@pytest.mark.parametrize("depth", [1, 8])
@pytest.mark.parametrize("seed", range(5))
def test_sfq_bound_with_estimated_lengths(depth, seed):
    """wfq: with lengths guessed, the outstanding error of both is added: at most 2 * 59 units a request in flight."""
    run = Backlogged("wfq", seed, depth, exact=False).run(3_000)
    for one, other in _PAIRS:
        per_weight = 1 / _WEIGHTS[one] + 1 / _WEIGHTS[other]
        bound = (depth + 1) * _LONGEST * per_weight + 2 * depth * 2 * 59 * per_weight
        assert run.largest_difference(0, one, other) <= bound


@pytest.mark.parametrize("depth", [1, 2, 8])
@pytest.mark.parametrize("seed", range(5))
def test_vtc_bound(depth, seed):
    """vtc: weighted service differs by at most 2 max(w_p L_in, w_q M) per weight, M the tokens of D running requests."""
    run = Backlogged("vtc", seed, depth, exact=False).run(3_000)
    kv_tokens = depth * (99 + 59)
    for one, other in _PAIRS:
        bound = 2 * max(99, 2 * kv_tokens) / min(_WEIGHTS[one], _WEIGHTS[other])
        assert run.largest_difference(1, one, other) <= bound


@pytest.mark.parametrize("depth", [1, 2, 8])
@pytest.mark.parametrize("seed", range(5))
def test_drr_bound(depth, seed):
    """drr: at most one quantum and the outstanding cost of each, per weight (the mean cost never exceeds the longest)."""
    run = Backlogged("drr", seed, depth, exact=False).run(3_000)
    for one, other in _PAIRS:
        outstanding = depth * _LONGEST
        bound = _LONGEST + outstanding / _WEIGHTS[one] + outstanding / _WEIGHTS[other]
        assert run.largest_difference(1, one, other) <= bound


def test_fifo_has_no_bound():
    """The bounds above can fail: the same measure, over a flood that one tenant sent first, is larger under fifo."""
    queue = policy("fifo", [tenant("a"), tenant("b")])
    for number in range(2_000):
        queue.enqueue(request(number, "a" if number < 1_000 else "b", number, 50, 10), number)
    served = [queue.select(5_000).tenant for _ in range(1_000)]
    assert served.count("a") * 70 > 2 * (8 + 1) * _LONGEST * 2


@pytest.mark.parametrize("which", _FAIR)
@pytest.mark.parametrize("seed", range(3))
def test_weights_are_the_shares_of_backlogged_tenants(which, seed):
    """Weights 1:2:3:4 are served in that ratio, within 3%."""
    run = Backlogged(which, seed, 4, exact=False).run(20_000)
    for name, weight in _WEIGHTS.items():
        share = run.dispatched[name] / sum(run.dispatched.values())
        assert share == pytest.approx(weight / 10, rel=0.03)


@pytest.mark.parametrize("floor", [0.1, 0.5])
def test_nobody_starves_under_slo_aware(floor):
    """Even with every other tenant boosted and itself at rest, i gets at least phi_i / (sum phi / floor) of the service."""
    names = {"meek": (1.0, None), "b": (2.0, 1.0), "c": (3.0, 1.0)}
    tenants = [tenant(n, w, ttft_ms=limit, expected=20.0) for n, (w, limit) in names.items()]
    # Everyone's share is taken as within bounds, so that the others keep their full boost.
    queue = policy("slo_aware", tenants, floor=floor, share_slack=100.0)
    served = dict.fromkeys(names, 0)
    number = 0
    for name in names:
        for _ in range(20):
            queue.enqueue(request(number, name, 0), 0)
            number += 1
    for step in range(1, 6_000):
        now_ns = step * 20 * MS
        chosen = queue.select(now_ns)
        served[chosen.tenant] += 1
        queue.on_first_token(chosen.id, now_ns)
        queue.on_finish(chosen.id, 10, 20, now_ns)
        queue.enqueue(request(number, chosen.tenant, now_ns), now_ns)
        number += 1
    assert queue.snapshot()["tenants"]["b"]["priority"] == floor, "the others are boosted"
    least = 1.0 / (6.0 / floor)
    share = served["meek"] / sum(served.values())
    assert least * 0.95 <= share <= 1.3 * (1.0 / (1.0 + 5.0 / floor))


def _flooded(which: str, **options) -> list[int]:
    tenants = [tenant("meek", 1.0, ttft_ms=2_000), tenant("flood", 1.0, ttft_ms=2_000)]
    queue = policy(which, tenants, **options)
    for number in range(400):
        queue.enqueue(request(number, "flood", number), number)
    for number in range(400, 440):
        queue.enqueue(request(number, "meek", number), number)
    return [queue.select(500).id for _ in range(80)]


@pytest.mark.parametrize("which", [*_FAIR, "committed", "committed-credit"])
def test_a_flood_does_not_delay_its_neighbour(which):
    """40 requests behind a flood of 400 are served within the first 80; under fifo none is."""
    options = {"start_rate": 1.0} if which.startswith("committed") else {}
    assert sum(number >= 400 for number in _flooded(which, **options)) >= 39
    assert sum(number >= 400 for number in _flooded("fifo")) == 0


@pytest.mark.parametrize("which", _FAIR)
@pytest.mark.parametrize("seed", range(4))
def test_the_long_run_is_max_min_fair(which, seed):
    """Random offered loads above what the engine can do: each tenant's service is its weighted max-min share, within 6%."""
    rng = np.random.default_rng(seed)
    names = ["a", "b", "c", "d"]
    weights = dict(zip(names, rng.choice([1.0, 2.0, 4.0], 4), strict=True))
    offered = dict(zip(names, rng.dirichlet(np.ones(4)) * 1.5, strict=True))
    horizon_s, capacity = 120, _capacity()
    arrivals = []
    for name in names:
        count = int(offered[name] * capacity * horizon_s / (100 + 2 * 50))
        arrivals += [(int(at), name) for at in rng.uniform(0, horizon_s * S, count)]
    requests = [
        request(i, name, at, int(rng.integers(50, 151)), int(rng.integers(25, 76)))
        for i, (at, name) in enumerate(sorted(arrivals))
    ]
    tenants = [tenant(n, w, ttft_ms=None, expected=50.0) for n, w in weights.items()]
    outcomes = simulate(dispatcher(tenants, which, sequences=16), {"a": _engine()}, requests, until_ns=horizon_s * S)
    served, demand = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for outcome in outcomes:
        cost = outcome.request.prompt_tokens + 2 * outcome.request.target_output_tokens
        demand[outcome.request.tenant] += cost
        if outcome.last_token_ns is not None:
            served[outcome.request.tenant] += cost
    fair = max_min(sum(served.values()), demand, weights)
    for name in names:
        assert served[name] == pytest.approx(fair[name], rel=0.06, abs=0.01 * sum(served.values()))


def _engine() -> ContinuousBatch:
    law = StepLaw(a_us=10_000.0, b_us=50.0, c_us=100.0)
    return ContinuousBatch(law, ServerLimits(max_num_seqs=16, max_num_batched_tokens=512))


def _capacity() -> float:
    """Cost units/s of the engine with its queue never empty."""
    requests = [request(i, "a", 0, 100, 50) for i in range(400)]
    outcomes = simulate(dispatcher([tenant("a")], sequences=16), {"a": _engine()}, requests)
    return 400 * 200 / (outcomes[-1].ended_ns / 1e9)
