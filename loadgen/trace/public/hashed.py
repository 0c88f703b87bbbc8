"""Traces with hashed prefix blocks, JSON Lines, plain or gzip.

* Mooncake (github.com/kvcache-ai/Mooncake): ``timestamp`` in ms, ``input_length``, ``output_length``, ``hash_ids`` of
512 tokens each. Equal ids at the front of two requests are a prefix that they share. * Qwen on Bailian
(github.com/alibaba-edu/qwen-bailian-usagetraces-anon): ``timestamp`` in s, blocks of 16 tokens, and ``chat_id``,
``parent_chat_id`` (-1: a root), ``turn``, ``type``. A session is what hangs on one root; a chat whose parent lies
outside the file begins its own.
"""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.trace.errors import TraceError
from loadgen.trace.public.text import json_rows, scaled_ns, tokens, whole
from loadgen.trace.rows import UNKNOWN, TraceRows, sorted_by_arrival

MOONCAKE = "mooncake"
BAILIAN = "bailian"
MOONCAKE_TITLE = "Mooncake (JSONL: timestamp, input_length, output_length, hash_ids)"
BAILIAN_TITLE = "Qwen on Bailian (JSONL: chat_id, parent_chat_id, timestamp, input_length, ...)"
MOONCAKE_BLOCK_TOKENS = 512
BAILIAN_BLOCK_TOKENS = 16

_MOONCAKE_KEYS = {"timestamp", "input_length", "output_length", "hash_ids"}
_BAILIAN_KEYS = _MOONCAKE_KEYS | {"chat_id", "parent_chat_id"}


def matches_mooncake(first: dict[str, Any]) -> bool:
    return first.keys() >= _MOONCAKE_KEYS and not first.keys() >= _BAILIAN_KEYS


def matches_bailian(first: dict[str, Any]) -> bool:
    return first.keys() >= _BAILIAN_KEYS


def read_mooncake(path: Path) -> TraceRows:
    """Raises TraceError with the row."""
    return _read(path, MOONCAKE, ns_per_unit=1_000_000, block_tokens=MOONCAKE_BLOCK_TOKENS, keys=_MOONCAKE_KEYS)


def read_bailian(path: Path) -> TraceRows:
    """Raises TraceError with the row. ``type`` is a column for tenant rules."""
    return _read(path, BAILIAN, ns_per_unit=1_000_000_000, block_tokens=BAILIAN_BLOCK_TOKENS, keys=_BAILIAN_KEYS)


def _read(path: Path, source: str, *, ns_per_unit: int, block_tokens: int, keys: set[str]) -> TraceRows:
    arrival, prompt, output, turn = array("q"), array("q"), array("q"), array("q")
    blocks: list[tuple[int, ...]] = []
    kinds: list[str] = []
    sessions: list[str] = []
    roots: dict[object, str] = {}
    for number, row in json_rows(path):
        missing = keys - row.keys()
        if missing:
            raise TraceError(path, "missing", row=number, column=min(missing))
        arrival.append(scaled_ns(path, number, "timestamp", row["timestamp"], ns_per_unit))
        prompt.append(tokens(path, number, "input_length", row["input_length"]))
        output.append(tokens(path, number, "output_length", row["output_length"]))
        ids = row["hash_ids"]
        if not isinstance(ids, list) or not all(isinstance(block, int) for block in ids):
            raise TraceError(path, "a list of whole numbers is expected", row=number, column="hash_ids")
        if prompt[-1] != UNKNOWN and (len(ids) - 1) * block_tokens >= max(prompt[-1], 1):
            problem = (
                f"{len(ids)} blocks of {block_tokens} tokens for {prompt[-1]} prompt tokens: a shorter block size?"
            )
            raise TraceError(path, problem, row=number, column="hash_ids")
        blocks.append(tuple(ids))
        if source == BAILIAN:
            root = roots.get(row["parent_chat_id"], str(row["chat_id"]))
            roots[row["chat_id"]] = root
            sessions.append(root)
            turn.append(whole(path, number, "turn", row.get("turn", 0)))
            kinds.append(str(row.get("type", "")))
    return sorted_by_arrival(
        TraceRows(
            source=source,
            arrival_ns=np.array(arrival, dtype=np.int64),
            prompt_tokens=np.array(prompt, dtype=np.int64),
            output_tokens=np.array(output, dtype=np.int64),
            session=tuple(sessions),
            turn=np.array(turn, dtype=np.int64) if turn else None,
            prefix_blocks=tuple(blocks),
            prefix_block_tokens=block_tokens,
            extra={"type": tuple(kinds)} if kinds else {},
        ),
        from_first=False,
    )
