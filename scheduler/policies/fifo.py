"""First in, first out: the request that arrived first is served first, whoever sent it.

The baseline: no isolation at all. One tenant's burst delays everybody behind it by the time that the burst takes to serve.
"""

from __future__ import annotations

from typing import ClassVar

from scheduler.extensible import mypyc_attr
from scheduler.policies.base import TenantPolicy, TenantState
from tenants.tenant import Tenant


@mypyc_attr(allow_interpreted_subclasses=True)
class Fifo(TenantPolicy[TenantState]):
    """Key: (arrival, id) of the tenant's next request, which without demotion is the global order of arrival."""

    name: ClassVar[str] = "fifo"

    def _new_state(self, tenant: Tenant) -> TenantState:
        return TenantState(tenant)
