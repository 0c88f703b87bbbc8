"""What a trace file holds: the columns of a row, and the header that says how the run was made.

One row a request. Unknown is null, never 0. Times are int ns since the run's start; ``chunk_offsets_us`` are us from
the first token, each rounded once from its own stamp (never summed), so that the last offset equals last token - first
token within 1 us. Two columns beyond the request's stamps make a row complete: ``ended_ns`` (when the outcome was
known, the age of a request that never got there) and ``max_itl_ns`` (a simulator measures it without keeping every
gap).

The version is ``major.minor``: a minor version may add columns, which older readers ignore; a newer major is refused.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa

from loadgen.trace.errors import TraceError
from scheduler.slot_control import SlotMove

TRACE_FAMILY = "lmperf.trace"
TRACE_MAJOR = 1
TRACE_VERSION = f"{TRACE_FAMILY}/{TRACE_MAJOR}.0"

_SCHEMA_KEY = b"lmperf.schema"
_METADATA_KEY = b"lmperf.metadata"


def _field(name: str, kind: pa.DataType, *, required: bool = False) -> pa.Field[pa.DataType]:
    return pa.field(name, kind, nullable=not required)


TRACE_SCHEMA = pa.schema(
    [
        _field("request_id", pa.int64(), required=True),
        _field("tenant", pa.string(), required=True),
        _field("session_id", pa.string()),
        _field("turn", pa.int32()),
        _field("attempt", pa.int32()),
        _field("arrival_kind", pa.string(), required=True),
        _field("after_request_id", pa.int64()),
        _field("think_ns", pa.int64()),
        _field("cancel_after_ns", pa.int64()),
        _field("arrival_ns", pa.int64(), required=True),
        _field("enqueued_ns", pa.int64()),
        _field("dispatched_ns", pa.int64()),
        _field("connect_ns", pa.int64()),
        _field("sent_ns", pa.int64()),
        _field("first_token_ns", pa.int64()),
        _field("last_token_ns", pa.int64()),
        _field("finished_ns", pa.int64()),
        _field("prompt_tokens", pa.int64()),
        _field("cached_prompt_tokens", pa.int64()),
        _field("output_tokens", pa.int64()),
        _field("target_output_tokens", pa.int64()),
        _field("max_tokens", pa.int64()),
        _field("tokens_source", pa.string()),
        _field("prefix_blocks", pa.list_(pa.int64())),
        _field("chunk_offsets_us", pa.list_(pa.int64())),
        _field("chunk_tokens", pa.list_(pa.int32())),
        _field("priority", pa.int32()),
        _field("weight", pa.float64()),
        _field("deadline_ns", pa.int64()),
        _field("backend", pa.string()),
        _field("status", pa.string(), required=True),
        _field("error_class", pa.string()),
        _field("http_status", pa.int32()),
        _field("warmup", pa.bool_(), required=True),
        _field("valid", pa.bool_(), required=True),
        _field("ended_ns", pa.int64()),
        _field("max_itl_ns", pa.int64()),
    ]
)


class TraceMetadata(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The header of a trace.

    ``scenario``: the resolved scenario as YAML text, with references in place of secrets. ``load_mode``: ``open`` or
    ``closed``. ``queueing``: who queues, ``policy`` or ``target``. ``server_model``: the server model as plain data
    when one is known. ``slots``: plain data, e.g. ``{"sequences": 64, "prefill_tokens": 2048}``. ``policy``: its name
    and
    ``policy_options`` its options. ``start_monotonic_ns`` and ``start_utc`` (ISO 8601): the instant that 0 ns stands
    for, on both clocks; null for a simulated or imported trace. ``end_ns``: when the run ended. ``window_ns``: the
    measured window [start, end). ``prefix_block_tokens``: tokens in one entry of ``prefix_blocks``. ``slot_moves``: how
    a controller moved the slots, if one did.
    """

    schema: str = TRACE_VERSION
    kind: str = "live"
    scenario: str | None = None
    load_mode: str = "open"
    queueing: str = "policy"
    server_model: dict[str, object] | None = None
    slots: dict[str, object] | None = None
    policy: str | None = None
    policy_options: dict[str, object] | None = None
    start_monotonic_ns: int | None = None
    start_utc: str | None = None
    end_ns: int | None = None
    window_ns: tuple[int, int] | None = None
    prefix_block_tokens: int | None = None
    seed: int | None = None
    source: str | None = None
    slot_moves: tuple[SlotMove, ...] = ()


def with_metadata(schema: pa.Schema, metadata: TraceMetadata) -> pa.Schema:
    """``schema`` that carries ``metadata`` in its key-value header."""
    return schema.with_metadata({_SCHEMA_KEY: metadata.schema.encode(), _METADATA_KEY: msgspec.json.encode(metadata)})


def metadata_of(schema: pa.Schema, path: Path) -> TraceMetadata:
    """The header of the file at ``path``. Raises TraceError when it is not a trace of ours or of a newer major
    version.
    """
    header = schema.metadata or {}
    version = header.get(_SCHEMA_KEY)
    if version is None:
        raise TraceError(
            path,
            f"not an lmperf trace (no {TRACE_FAMILY} version in its header); `lmperf trace import` reads foreign files",
        )
    check_version(version.decode(errors="replace"), family=TRACE_FAMILY, major=TRACE_MAJOR, path=path)
    try:
        return msgspec.json.decode(header.get(_METADATA_KEY, b"{}"), type=TraceMetadata)
    except msgspec.DecodeError as error:
        raise TraceError(path, f"its header cannot be read: {error}") from error


def check_version(version: str, *, family: str, major: int, path: Path) -> None:
    """Raise TraceError unless ``version`` is ``family/<major>.<minor>`` with a major of at most ``major``."""
    name, _, number = version.partition("/")
    head = number.partition(".")[0]
    if name != family or not head.isdigit():
        raise TraceError(path, f"version {version!r} is not one of {family}/<major>.<minor>")
    if int(head) > major:
        raise TraceError(path, f"written as {version}; this lmperf reads {family}/{major}.x and older: upgrade it")
