"""The server model that a law and limits ask for."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.server_model.batching import ContinuousBatch
from scheduler.server_model.prefix_cache import BLOCK_TOKENS, KnownHits
from scheduler.server_model.spec import ServerLimits, StepLaw
from scheduler.server_model.speculative import SpeculativeBatch


def build_server(
    law: StepLaw,
    limits: ServerLimits,
    block_tokens: int = BLOCK_TOKENS,
    *,
    cached: Mapping[int, int] | None = None,
) -> ContinuousBatch:
    """One replica. ``block_tokens``: what each of ``Request.prefix_blocks`` stands for. ``cached``: prompt tokens that are
    found in a prefix cache, by request id, where they are known instead of modelled."""
    kind = SpeculativeBatch if limits.speculative_tokens else ContinuousBatch
    return kind(law, limits, block_tokens, None if cached is None else KnownHits(cached))
