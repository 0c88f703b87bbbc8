"""The dispatcher of a plan: policy, slots, tenants as the scheduling core may see them."""

from __future__ import annotations

from lmperf.scenario.plan import Plan
from loadgen.offline.cell import anonymous
from scheduler.dispatcher import DispatcherConfig
from scheduler.lateness import LateRule
from scheduler.server_model.spec import ServerModelSpec
from scheduler.slots import Slots

BACKEND = "server"


def dispatcher_config(plan: Plan, server: ServerModelSpec | None) -> DispatcherConfig:
    """``none`` is first in, first out with unlimited slots: nothing ever waits."""
    rate = server.law.prefill_rate if server is not None else LateRule().prefill_rate
    return DispatcherConfig(
        tenants=anonymous(tuple(planned.tenant for planned in plan.tenants)),
        policy=plan.policy.name if plan.policy.queues else "fifo",
        options=dict(plan.policy.options) if plan.policy.queues else {},
        cost=plan.cost,
        prefill_rate=min(rate, 1e9),
        backends={BACKEND: slots_of(plan)},
    )


def slots_of(plan: Plan) -> Slots:
    """The slots at the start."""
    return Slots(sequences=plan.slots.sequences, prefill_tokens=plan.slots.prefill_tokens)
