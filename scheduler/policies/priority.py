"""Strict priority: a lower class number is always served first; first in, first out inside a class.

The class is the tenant's. The number is also passed on to servers that understand it (vLLM: lower first). A higher class
that never goes idle starves the lower ones: that is what strict means. Mean waits by class follow Cobham's formulae
(Operations Research 2, 1954), which a test checks.
"""

from __future__ import annotations

from typing import ClassVar

from scheduler.extensible import mypyc_attr
from scheduler.keyed_heap import Key
from scheduler.policies.base import TenantPolicy, TenantState
from tenants.tenant import Tenant


@mypyc_attr(allow_interpreted_subclasses=True)
class Priority(TenantPolicy[TenantState]):
    name: ClassVar[str] = "priority"

    def _new_state(self, tenant: Tenant) -> TenantState:
        return TenantState(tenant)

    def _key(self, state: TenantState) -> Key:
        return (state.tenant.priority,)
