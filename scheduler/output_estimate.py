"""How long an answer will be, before that is known: an exponentially weighted moving average with factor 0.05, per tenant."""

from __future__ import annotations

from scheduler.request import Request
from tenants.tenant import Tenant

EWMA_FACTOR = 0.05
UNKNOWN_OUTPUT_TOKENS = 256


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
