"""What a request costs.

Cost in *cost units* = ``prompt_weight`` * prompt tokens + ``output_weight`` * output tokens (defaults 1 and 2, as in the
VTC paper, OSDI 2024: an output token costs about twice an input token). The output length is unknown at dispatch: it is
estimated (:mod:`scheduler.output_estimate`), and every account is corrected when the request ends.
"""

from __future__ import annotations

import msgspec


class CostModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cost units a token; both >= 0 and not both 0."""

    prompt_weight: float = 1.0
    output_weight: float = 2.0

    def __post_init__(self) -> None:
        if min(self.prompt_weight, self.output_weight) < 0 or self.prompt_weight + self.output_weight <= 0:
            raise ValueError(
                f"cost weights must be >= 0 and not both 0, got {self.prompt_weight} and {self.output_weight}"
            )

    def of(self, prompt_tokens: float, output_tokens: float) -> float:
        """Cost units of that many tokens."""
        return self.prompt_weight * prompt_tokens + self.output_weight * output_tokens
