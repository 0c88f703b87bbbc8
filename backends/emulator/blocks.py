"""Names of a prompt's blocks, as an engine with a prefix cache knows them: by the tokens in a block and all before it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from scheduler.server_model.prefix_cache import BLOCK_TOKENS


def block_names(ids: Sequence[int], block_tokens: int = BLOCK_TOKENS) -> tuple[int, ...]:
    """One 63-bit name for each full block of token ids; equal names at the front mean equal tokens up to there."""
    names = []
    chain = blake2b(digest_size=8)
    for start in range(0, len(ids) - block_tokens + 1, block_tokens):
        chain.update(array("q", ids[start : start + block_tokens]).tobytes())
        names.append(int.from_bytes(chain.digest(), "little") >> 1)
    return tuple(names)
