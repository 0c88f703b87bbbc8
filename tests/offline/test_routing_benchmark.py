"""What the routing benchmark says of a fleet, on the beginning of the Mooncake conversation trace."""

from __future__ import annotations

import pytest

from benchmarks.routing import TRACE, requests_of, row, simulated
from scheduler.request import Status
from scheduler.routing import Routing, Rule
from scheduler.slots import Slots

pytestmark = pytest.mark.skipif(not TRACE.exists(), reason="the Mooncake trace is not there")


def test_prefixes_are_found_more_often_where_they_are_looked_for():
    """1,500 requests on four replicas: each is served once with the tokens that it asked for, and routing by prefix finds at
    least half as much again as the least work does."""
    requests = requests_of(TRACE, 1.7)[:1_500]
    found = {}
    for routing in (Routing(), Routing(rule=Rule.PREFIX, slack=65_536.0)):
        outcomes = simulated(requests, routing, Slots(), 4)
        assert sorted(o.request.id for o in outcomes) == [one.id for one in requests]
        assert all(o.status is Status.OK and o.output_tokens == o.request.target_output_tokens for o in outcomes)
        assert {o.backend for o in outcomes} == {f"server-{n}" for n in range(1, 5)}
        found[routing.rule] = sum(o.cached_prompt_tokens for o in outcomes)
        assert f"{found[routing.rule] / sum(one.prompt_tokens for one in requests):.1%}" in row(outcomes)
    assert found[Rule.PREFIX] > 1.5 * found[Rule.LEAST_WORK] > 0
