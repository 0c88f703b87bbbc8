"""When a request is late: it can no longer meet its tenant's TTFT limit, whatever the policy does.

A request is late from the instant after ``arrival + ttft_limit - margin - prompt_tokens / prefill_rate``. What a policy then
does is its ``late`` option: ``keep`` it in its place, ``demote`` it behind its own tenant's others, or ``shed`` it.
Demotion does more for attainment than the choice of the fair queue: a late request that is served in its place only makes
the next ones late too. The margin is there because a request that *just* can meet its limit rarely does.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from scheduler.request import Request


class Late(StrEnum):
    KEEP = "keep"
    DEMOTE = "demote"
    SHED = "shed"


class LateRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``margin_ns`` >= 0 is kept free before the limit; ``prefill_rate`` in tokens/s (1/b of the server model)."""

    mode: Late = Late.KEEP
    margin_ns: int = 50_000_000
    prefill_rate: float = 40_000.0

    def __post_init__(self) -> None:
        if self.margin_ns < 0 or self.prefill_rate <= 0:
            raise ValueError(
                f"lateness: margin must be >= 0 and prefill_rate > 0, got {self.margin_ns} ns and {self.prefill_rate}"
            )

    def late_after_ns(self, request: Request, ttft_limit_ns: int) -> int:
        """The last instant at which ``request`` is still on time."""
        prefill_ns = round(request.prompt_tokens * 1e9 / self.prefill_rate)
        return request.arrival_ns + ttft_limit_ns - self.margin_ns - prefill_ns
