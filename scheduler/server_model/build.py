"""The server model that a law and limits ask for."""

from __future__ import annotations

from scheduler.server_model.batching import ContinuousBatch
from scheduler.server_model.prefix_cache import BLOCK_TOKENS
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.server_model.speculative import SpeculativeBatch


def build_server(law: StepLaw, limits: ServerLimits, block_tokens: int = BLOCK_TOKENS) -> ContinuousBatch:
    """One replica. ``block_tokens``: what each of ``Request.prefix_blocks`` stands for."""
    kind = SpeculativeBatch if limits.speculative_tokens else ContinuousBatch
    return kind(law, limits, block_tokens)
