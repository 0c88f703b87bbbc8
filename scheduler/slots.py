"""How much may be outstanding at one backend, in two dimensions.

``sequences`` (D): requests dispatched and not ended. ``prefill_tokens`` (X): prompt tokens dispatched and not prefilled.
The policy's next request passes while *fewer than* X are outstanding, so one request may exceed X and a long prompt is never
stuck; otherwise it waits and is never overtaken. Without X the prompts of a burst pile up in the engine's own queue, where
the policy can no longer help.
"""

from __future__ import annotations

import msgspec


class Slots(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None means unlimited; limits are >= 1."""

    sequences: int | None = None
    prefill_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("sequences", "prefill_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"slots: {name} must be >= 1 or null (unlimited), got {value}")
