"""A slice of the public Azure trace on the embedded server: its own timestamps, tenants by the scenario's rule.

The same rules hold for a real engine (tests/engines/test_vllm_cpu.py).
"""

import pytest

from tests.engines.support import azure, rules
from tests.engines.support.command import measured

ROWS = 25
SPEED = 4

pytestmark = pytest.mark.skipif(azure.WHY_NOT is not None, reason=str(azure.WHY_NOT))


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """(the finished run, the rows it was given)."""
    folder = tmp_path_factory.mktemp("azure")
    scenario, rows = azure.write_scenario(
        folder, "emulated", rows=ROWS, most_prompt=1024, speed=SPEED, policy="policy: wfq\nslots: {sequences: 8}"
    )
    return measured("run", str(scenario), folder=folder), rows


def test_no_request_is_lost(replayed):
    """One row a request, all ended OK; stamps in the order of a request's life; the summary counts the same."""
    run, rows = replayed
    rules.assert_nothing_lost(run.trace, len(rows))
    rules.assert_stamps_in_order(run.trace)
    assert run.summary["total"]["statuses"]["ok"] == len(rows)


def test_every_length_and_timestamp_is_the_traces(replayed):
    """Prompt and output lengths as the server counts them; arrivals at the trace's own times over the speed factor."""
    run, rows = replayed
    rules.assert_replayed(run.trace, rows, SPEED)
    rules.assert_token_gaps_add_up(run.trace)


def test_every_row_goes_to_the_tenant_that_the_rule_names(replayed):
    """In the trace, and in the summary."""
    run, rows = replayed
    rules.assert_tenants_by_the_rule(run.trace, rows)
    summed = {tenant["tenant"]: tenant["requests"] for tenant in run.summary["tenants"]}
    assert summed == {name: run.trace.values("tenant").count(name) for name in azure.TENANTS}


def test_throughput_is_per_second_of_the_run(replayed):
    """A replay without a stated duration is as long as it took, so requests / duration is its throughput."""
    run, rows = replayed
    throughput = run.summary["total"]["throughput"]["requests_per_s"]
    assert throughput == pytest.approx(len(rows) / run.summary["duration_s"], rel=0.05)


def test_no_more_requests_are_outstanding_than_there_are_slots(replayed):
    """Eight slots: the ninth request waits in the policy's queue."""
    run, _ = replayed
    begin, end = run.trace.ints("dispatched_ns"), run.trace.ints("finished_ns")
    assert max(int(((begin <= at) & (end > at)).sum()) for at in begin) <= 8
