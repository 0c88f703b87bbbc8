"""Names of the prompt blocks that requests may share.

``Request.prefix_blocks`` names the first blocks of a prompt, each of ``block_tokens`` tokens (the last one may be cut
by the prompt's end). Equal names mean equal text and nothing else does, so a name is a 63-bit hash of what the block
belongs to (a tenant's shared prefix, a session) and its place in it (:mod:`scheduler.mixing`).
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from scheduler.mixing import GOLDEN, mix
from scheduler.server_model.prefix_cache import BLOCK_TOKENS

__all__ = ["BLOCK_TOKENS", "block_names", "key_of", "mix", "session_key"]


def key_of(seed: int, *names: str) -> int:
    """A 64-bit key for something named, e.g. a session of a run with this seed."""
    text = "\x00".join((str(seed), *names)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def session_key(seed: int, session_id: str) -> int:
    """The key of a conversation: its whole text follows from it."""
    return key_of(seed, "session", session_id)


def block_names(key: int, first: int, end: int) -> list[int]:
    """Names of the blocks ``first`` to ``end`` - 1 of what ``key`` stands for."""
    if end <= first:
        return []
    value = np.arange(first, end, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(key)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    value = (value ^ (value >> np.uint64(31))) >> np.uint64(1)
    names: list[int] = value.tolist()
    return names
