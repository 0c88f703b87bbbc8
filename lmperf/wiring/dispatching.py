"""The dispatcher of a plan: policy, slots, tenants as the scheduling core may see them."""

from __future__ import annotations

from lmperf.scenario.plan import Plan
from loadgen.offline.cell import anonymous
from scheduler.auto_rule import AutoRule, control_of
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.lateness import LateRule
from scheduler.server_model.spec import ServerModelSpec
from scheduler.slot_control import SlotControl
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
        backends=starting_slots(plan),
        routing=plan.backend.routing,
    )


def backends_of(plan: Plan) -> dict[str, Slots]:
    """The slots that the scenario states, by the name of each backend."""
    return dict(plan.slots.own) or {BACKEND: slots_of(plan)}


def starting_slots(plan: Plan) -> dict[str, Slots]:
    """The same, within the bounds of what moves them."""
    control = control_of_plan(plan)
    return backends_of(plan) if control is None else dict(control.slots)


def auto_of(plan: Plan) -> AutoRule | None:
    """What moves the slots, if anything."""
    slots = plan.slots
    if slots.auto is None:
        return None
    return AutoRule(follows=slots.auto, least=slots.least, most=slots.most)


def control_of_plan(plan: Plan) -> SlotControl | None:
    """A controller of its own for each caller."""
    rule = auto_of(plan)
    return None if rule is None else control_of(rule, [p.tenant for p in plan.tenants], backends_of(plan))


def slots_of(plan: Plan) -> Slots:
    """The slots at the start."""
    return Slots(sequences=plan.slots.sequences, prefill_tokens=plan.slots.prefill_tokens)
