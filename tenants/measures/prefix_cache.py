"""What the server's prefix cache gave: the cache hit share, cached prompt tokens over prompt tokens.

It is over the requests that state their cached tokens, however they ended. One that does not (a server that keeps no cache or
says nothing of it, a request that never ran) is left out of both sums: unknown is not 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tenants.measures.columns import Columns


@dataclass(frozen=True, slots=True)
class CacheHits:
    """Sums over the ``requests`` that state their cached tokens, in tokens."""

    requests: int
    prompt_tokens: int
    cached_prompt_tokens: int

    @property
    def share(self) -> float | None:
        """0 to 1; None when no request states it."""
        return self.cached_prompt_tokens / self.prompt_tokens if self.requests else None


def cache_hits(columns: Columns) -> CacheHits:
    """Over the judged rows of ``columns``. A prompt of unknown length counts as not stated, and cached tokens beyond the
    prompt's own are not counted."""
    requests = prompts = found = 0
    for rows in columns.pieces():
        cached, prompt = rows.cached_prompt_tokens, rows.prompt_tokens
        stated = rows.counted() & (cached >= 0) & (prompt > 0)
        prompt = prompt[stated]
        requests += len(prompt)
        prompts += int(prompt.sum())
        found += int(np.minimum(cached[stated], prompt).sum())
    return CacheHits(requests, prompts, found)
