"""What a policy costs: microseconds for one enqueue + select + finish, with many requests queued over many tenants.

    python -m benchmarks.policy_cost

Prints the cost at 1,000 and at 100,000 queued requests over 1,000 tenants, best of five, and the growth between them: O(log n)
grows by less than 2. The floor beside it is one heappush + heappop on a plain heap of the same size, in the same run.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time

from scheduler.policies.build import POLICIES, PolicyContext, build_policy
from scheduler.request import Request
from tenants.slo import Slo
from tenants.tenant import Tenant

TENANTS = 1_000
ROUNDS = 5_000
REPEATS = 5


def tenants() -> list[Tenant]:
    slo = Slo(ttft_ns=500_000_000, attainment=0.99)
    return [Tenant(name=f"t{i}", weight=1 + i % 4, priority=i % 3, slo=slo) for i in range(TENANTS)]


def request(number: int, rng: random.Random) -> Request:
    return Request(
        id=number, tenant=f"t{rng.randrange(TENANTS)}", arrival_ns=number * 1000, prompt_tokens=rng.randrange(50, 2000)
    )


def policy_us(name: str, queued: int) -> float:
    """Best of five: us for one enqueue, select and finish with ``queued`` requests waiting."""
    policy = build_policy(name, {}, PolicyContext())
    policy.set_tenants(tenants(), 0)
    rng = random.Random(0)
    for number in range(queued):
        policy.enqueue(request(number, rng), number * 1000)
    numbers = itertools.count(queued)
    best = float("inf")
    for _ in range(REPEATS):
        fresh = [request(next(numbers), rng) for _ in range(ROUNDS)]
        start = time.perf_counter()
        for one in fresh:
            now_ns = one.arrival_ns
            policy.enqueue(one, now_ns)
            chosen = policy.select(now_ns)
            assert chosen is not None
            policy.on_first_token(chosen.id, now_ns)
            policy.on_finish(chosen.id, chosen.prompt_tokens, 100, now_ns)
        best = min(best, (time.perf_counter() - start) / ROUNDS * 1e6)
    assert len(policy) == queued
    return best


def floor_us(queued: int) -> float:
    heap = [(random.random(), i) for i in range(queued)]
    heapq.heapify(heap)
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        for i in range(ROUNDS):
            heapq.heappush(heap, (random.random(), i))
            heapq.heappop(heap)
        best = min(best, (time.perf_counter() - start) / ROUNDS * 1e6)
    return best


def main() -> None:
    print(f"us for one enqueue + select + first token + finish, {TENANTS:,} tenants, best of {REPEATS}")
    print(f"{'policy':12s} {'1,000 queued':>14s} {'100,000 queued':>16s} {'growth':>8s}")
    for name in ["(heap)", *POLICIES.names()]:
        small, large = (floor_us(n) if name == "(heap)" else policy_us(name, n) for n in (1_000, 100_000))
        print(f"{name:12s} {small:14.2f} {large:16.2f} {large / small:8.2f}")


if __name__ == "__main__":
    main()
