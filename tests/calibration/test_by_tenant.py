"""Held-out errors of each tenant, and how many of its promises a prediction keeps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from calibration_loads import PLAIN_LAW, PLAIN_LIMITS, captured, workload

from scheduler.calibration.by_tenant import ATTAINED, tenant_errors
from scheduler.calibration.calibrate import calibrate
from scheduler.calibration.replay import replay
from tenants.slo import Slo
from tenants.tenant import Tenant

MS = 1_000_000
CHAT = Tenant(name="chat", slo=Slo(ttft_ns=60 * MS, tpot_ns=9 * MS, attainment=0.9))
BULK = Tenant(name="bulk", slo=Slo(e2e_ns=900 * MS, attainment=0.5))


def two_tenants(seed, n=120, rate=12.0):
    """Every third request is the second tenant's; some waited in a queue of ours before they were sent."""
    seen = captured(workload(seed, n, rate=rate), PLAIN_LAW, PLAIN_LIMITS)
    waited = np.where(np.arange(n) % 5 == 0, 30 * MS, 0)
    tenant = (np.arange(n) % 3 == 0).astype(np.int64)
    return dataclasses.replace(seen, tenants=(CHAT, BULK), tenant=tenant, waited_ns=waited)


def keeps(slo, ttft, tpot, e2e):
    pairs = ((ttft, slo.ttft_ns), (tpot, slo.tpot_ns), (e2e, slo.e2e_ns))
    return all(limit is None or value <= limit for value, limit in pairs)


def share(seen, slo, number):
    rows = [i for i in range(len(seen)) if seen.tenant[i] == number]
    met = 0
    for i in rows:
        ttft = int(seen.first_ns[i] - seen.sent_ns[i] + seen.waited_ns[i])
        e2e = int(seen.last_ns[i] - seen.sent_ns[i] + seen.waited_ns[i])
        met += keeps(slo, ttft, (e2e - ttft) / (int(seen.output_tokens[i]) - 1), e2e)
    return met / len(rows)


def test_each_tenant_has_the_errors_of_its_own_requests():
    """Against percentiles and shares of its rows alone, counted one by one; the wait before sending counts as captured."""
    seen = two_tenants(2)
    simulated = replay(seen, PLAIN_LAW.scaled(1.3), PLAIN_LIMITS).times
    found = tenant_errors(seen, simulated)
    assert list(found) == ["chat", "bulk"]
    for number, tenant in enumerate((CHAT, BULK)):
        mine = seen.tenant == number
        for name, p in (("ttft_p50", 50), ("ttft_p99", 99)):
            before, after = (np.percentile((one.first_ns - one.sent_ns)[mine], p) for one in (seen, simulated))
            assert found[tenant.name][name] == pytest.approx(after / before - 1)
        before, after = (np.mean((one.last_ns - one.sent_ns)[mine]) for one in (seen, simulated))
        assert found[tenant.name]["e2e_mean"] == pytest.approx(after / before - 1)
        difference = share(simulated, tenant.slo, number) - share(seen, tenant.slo, number)
        assert found[tenant.name][ATTAINED] == pytest.approx(difference)
        assert difference < 0, "a slower server keeps fewer"


def test_what_is_not_known_is_not_told():
    """No share where nothing is promised, or where a promise is of the longest gap; no table for one tenant without any."""
    seen = two_tenants(2)
    gap = Tenant(name="chat", slo=Slo(ttft_ns=60 * MS, max_itl_ns=MS, attainment=0.9))
    free = dataclasses.replace(seen, tenants=(gap, Tenant(name="bulk")))
    assert all(ATTAINED not in errors for errors in tenant_errors(free, seen).values())
    alone = dataclasses.replace(seen, tenants=(Tenant(name="one"),), tenant=np.zeros(len(seen), dtype=np.int64))
    assert tenant_errors(alone, seen) == {}
    assert tenant_errors(dataclasses.replace(seen, tenant=None), seen) == {}


@pytest.mark.parametrize("seeds", [(2,), (1, 2, 3)])
def test_a_calibration_keeps_them_in_its_file(seeds):
    """Of every capture that was held out, or of the second half of the only one."""
    seen = [two_tenants(seed) for seed in seeds]
    found = calibrate(seen, limits=PLAIN_LIMITS, evaluations=10, bootstrap=10, refits=0)
    assert found.spec.fit["held_out_tenants"] == {held.capture: held.tenants for held in found.held_out}
    assert len(found.held_out) == len(seeds)
    for held in found.held_out:
        assert set(held.tenants) == {"chat", "bulk"}
        assert set(held.tenants["chat"]) == {"ttft_p50", "ttft_p99", "tpot_mean", "tpot_p99", "e2e_mean", ATTAINED}
