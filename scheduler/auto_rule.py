"""Which controller moves the slots, and within what bounds, as plain data; and the controller of that rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from scheduler.auto_slots import AutoSlots
from scheduler.slot_control import SlotControl
from scheduler.slots import Slots
from scheduler.waiting_slots import WaitingSlots
from tenants.tenant import Tenant


class Follows(StrEnum):
    """What an automatic number of slots follows: the tenants' TPOT limits, or the engine's own waiting count."""

    TPOT = "tpot"
    WAITING = "waiting"


class AutoRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``sequences`` moves within [least, most]."""

    follows: Follows = Follows.TPOT
    least: int = 40
    most: int = 128

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"auto slots: 1 <= least <= most, got {self.least} and {self.most}")


def usual_rule(follows: Follows) -> AutoRule:
    """With the bounds that hold where none are stated: 40 to 128 by TPOT limits, around the peak that the policy study
    found; waiting counts tell where to stop and need none."""
    least, most = (1, 1024) if follows is Follows.WAITING else (40, 128)
    return AutoRule(follows=follows, least=least, most=most)


def control_of(rule: AutoRule, tenants: Iterable[Tenant], slots: Mapping[str, Slots], now_ns: int = 0) -> SlotControl:
    """A controller that starts from ``slots`` (unlimited ones start at 64); ask it for its own to start with."""
    if rule.follows is Follows.WAITING:
        return WaitingSlots(slots, rule.least, rule.most, now_ns)
    return AutoSlots(tenants, slots, rule.least, rule.most, now_ns)
