"""What can be set of each policy beside ``late`` (``policy: {name: ..., OPTION: ...}``)."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class NoOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy without options of its own."""


class Reading(StrEnum):
    BOOST = "boost"
    LITERAL = "literal"


class SloAwareOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``window_s`` of observation, ``epoch_s`` between recomputations, ``floor`` of the priority (0 < floor <= 1),
    ``min_samples`` before an observation counts, ``share_slack`` on a tenant's fair share (>= 1)."""

    reading: Reading = Reading.BOOST
    window_s: float = 60.0
    epoch_s: float = 0.25
    floor: float = 0.1
    min_samples: int = 5
    share_slack: float = 1.05

    def __post_init__(self) -> None:
        if not 0 < self.floor <= 1:
            raise ValueError(f"slo_aware: floor must be in (0, 1], got {self.floor}")
        if self.window_s <= 0 or self.epoch_s <= 0:
            raise ValueError(f"slo_aware: window_s and epoch_s must be > 0, got {self.window_s} and {self.epoch_s}")
        if self.min_samples < 1 or self.share_slack < 1:
            raise ValueError(
                f"slo_aware: min_samples and share_slack must be >= 1, got {self.min_samples} and {self.share_slack}"
            )


class Order(StrEnum):
    DEADLINE = "deadline"
    CREDIT = "credit"


class CommittedOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``order`` among tenants with credit; ``horizon_s``: how much credit (and how much old service) is remembered;
    ``start_rate``: C in cost units/s until it is learnt: start low."""

    order: Order = Order.DEADLINE
    horizon_s: float = 30.0
    start_rate: float = 12_000.0

    def __post_init__(self) -> None:
        if self.horizon_s <= 0 or self.start_rate <= 0:
            raise ValueError(
                f"committed: horizon_s and start_rate must be > 0, got {self.horizon_s}, {self.start_rate}"
            )
