"""What a request costs, before and after the truth is known.

Cost in *cost units* = ``prompt_weight`` * prompt tokens + ``output_weight`` * output tokens (defaults 1 and 2, as in the
VTC paper, OSDI 2024: an output token costs about twice an input token). The output length is unknown at dispatch: it is
estimated per tenant by an exponentially weighted moving average with factor 0.05, and every account is corrected when the
request ends.
"""

from __future__ import annotations

import msgspec

from scheduler.request import Request
from tenants.tenant import Tenant

EWMA_FACTOR = 0.05
UNKNOWN_OUTPUT_TOKENS = 256


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


class OutputEstimate:
    """A tenant's running estimate of its output length, in tokens. Starts at the tenant's ``expected_output_tokens``, else
    at the first request's ``max_tokens`` (at most 256)."""

    __slots__ = ("_tokens",)

    def __init__(self, tenant: Tenant) -> None:
        self._tokens = tenant.expected_output_tokens

    def of(self, request: Request) -> float:
        """Expected output tokens of ``request``. Never reads its ``target_output_tokens``."""
        if self._tokens is not None:
            return self._tokens
        return float(min(request.max_tokens or UNKNOWN_OUTPUT_TOKENS, UNKNOWN_OUTPUT_TOKENS))

    def learn(self, output_tokens: int) -> None:
        """Take in the true length of one finished request."""
        if self._tokens is None:
            self._tokens = float(output_tokens)
        else:
            self._tokens += EWMA_FACTOR * (output_tokens - self._tokens)
