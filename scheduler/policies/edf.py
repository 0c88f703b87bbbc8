"""Earliest deadline first: deadline = arrival + the tenant's TTFT limit; a tenant without a limit comes last, FIFO.

Optimal on one server as long as every deadline can be met (Liu and Layland, JACM 1973); in overload it collapses, since the
requests of everybody that are already late have the earliest deadlines. ``late: demote`` mends that: late requests form one
class of their own, FIFO, behind all that can still be in time.
"""

from __future__ import annotations

from typing import ClassVar

from scheduler.extensible import mypyc_attr
from scheduler.keyed_heap import Key
from scheduler.policies.base import TenantPolicy, TenantState
from tenants.tenant import Tenant

_ON_TIME, _NO_LIMIT, _LATE = 0, 1, 2


@mypyc_attr(allow_interpreted_subclasses=True)
class Edf(TenantPolicy[TenantState]):
    name: ClassVar[str] = "edf"

    def _new_state(self, tenant: Tenant) -> TenantState:
        return TenantState(tenant)

    def _key(self, state: TenantState) -> Key:
        on_time = state.queue.on_time.head
        if on_time is None:
            return (_LATE, 0)
        limit_ns = state.tenant.slo.ttft_ns
        if limit_ns is None:
            return (_NO_LIMIT, 0)
        return (_ON_TIME, on_time.arrival_ns + limit_ns)
