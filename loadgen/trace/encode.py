"""Outcomes to rows: the one place that knows how a request and its stamps become a line of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from loadgen.steps import Steps, finished
from loadgen.trace.schema import TRACE_SCHEMA
from scheduler.request import Outcome
from tenants.tenant import Tenant

_REQUEST_COLUMNS = (
    ("tenant", "tenant"),
    ("session_id", "session_id"),
    ("turn", "turn"),
    ("attempt", "attempt"),
    ("arrival_kind", "arrival_kind"),
    ("after_request_id", "after_request_id"),
    ("think_ns", "think_ns"),
    ("cancel_after_ns", "cancel_after_ns"),
    ("arrival_ns", "arrival_ns"),
    ("target_output_tokens", "target_output_tokens"),
    ("max_tokens", "max_tokens"),
    ("priority", "priority"),
    ("request_id", "id"),
)
_OUTCOME_COLUMNS = (
    "enqueued_ns",
    "dispatched_ns",
    "connect_ns",
    "sent_ns",
    "first_token_ns",
    "last_token_ns",
    "finished_ns",
    "cached_prompt_tokens",
    "output_tokens",
    "tokens_source",
    "backend",
    "status",
    "error_class",
    "http_status",
    "ended_ns",
    "max_itl_ns",
)


def stamps_in_order(outcome: Outcome) -> bool:
    """True when no stamp of ``outcome`` precedes the one before it, those of chunks included; the intended arrival may lie
    after ``enqueued`` by a timer's rounding, so it is not compared.
    """
    previous = None
    for stamp in (
        outcome.enqueued_ns,
        outcome.dispatched_ns,
        outcome.sent_ns,
        outcome.first_token_ns,
        outcome.last_token_ns,
        outcome.finished_ns,
    ):
        if stamp is None:
            continue
        if previous is not None and stamp < previous:
            return False
        previous = stamp
    offsets = outcome.chunk_offsets_us
    return offsets is None or not (offsets[1:] < offsets[:-1]).any()


_COLUMNS_A_STEP = 5


class RowEncoder:
    """Turns outcomes into record batches. ``tenants`` give weight and deadline, ``window_ns`` [start, end) marks the
    rest as warm-up (cool-down included). The detail text of an error is left out on purpose: a server may echo a key in
    it.
    """

    def __init__(self, tenants: Sequence[Tenant], window_ns: tuple[int, int], schema: pa.Schema = TRACE_SCHEMA) -> None:
        self._weight: Mapping[str, float] = {tenant.name: tenant.weight for tenant in tenants}
        self._ttft_limit: Mapping[str, int | None] = {tenant.name: tenant.slo.ttft_ns for tenant in tenants}
        self._window = window_ns
        self._schema = schema

    def encode(self, outcomes: Sequence[Outcome]) -> pa.RecordBatch:
        return finished(self.steps(outcomes))

    def steps(self, outcomes: Sequence[Outcome]) -> Steps[pa.RecordBatch]:
        """The same in steps of a fraction of a millisecond for some hundred rows."""
        requests = [outcome.request for outcome in outcomes]
        lists: dict[str, list[Any]] = {
            column: [getattr(request, name) for request in requests] for column, name in _REQUEST_COLUMNS
        }
        yield
        for name in _OUTCOME_COLUMNS:
            lists[name] = [getattr(outcome, name) for outcome in outcomes]
        yield
        lists["prompt_tokens"] = [
            outcome.request.prompt_tokens if outcome.prompt_tokens is None else outcome.prompt_tokens
            for outcome in outcomes
        ]
        lists["weight"] = [self._weight.get(request.tenant) for request in requests]
        limits = [self._ttft_limit.get(request.tenant) for request in requests]
        lists["deadline_ns"] = [
            None if limit is None else request.arrival_ns + limit
            for request, limit in zip(requests, limits, strict=True)
        ]
        start, end = self._window
        lists["warmup"] = [not start <= request.arrival_ns < end for request in requests]
        lists["valid"] = [stamps_in_order(outcome) for outcome in outcomes]
        ragged: dict[str, list[Any]] = {
            "prefix_blocks": [request.prefix_blocks or None for request in requests],
            "chunk_offsets_us": [outcome.chunk_offsets_us for outcome in outcomes],
            "chunk_tokens": [outcome.chunk_tokens for outcome in outcomes],
        }
        arrays: list[pa.Array[Any]] = []
        for number, column in enumerate(self._schema):
            if number % _COLUMNS_A_STEP == 0:
                yield
            values = ragged.get(column.name)
            arrays.append(
                pa.array(lists[column.name], type=column.type) if values is None else _ragged(values, column.type)
            )
        yield
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _ragged(values: Sequence[Any], kind: pa.DataType) -> pa.Array[Any]:
    """A list column of ``kind`` from arrays of different lengths, None for null, without an object per element."""
    missing = np.array([value is None for value in values], dtype=np.bool_)
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum([0 if value is None else len(value) for value in values], out=offsets[1:])
    present = [np.asarray(value, dtype=np.int64) for value in values if value is not None and len(value)]
    flat = np.concatenate(present) if present else np.empty(0, dtype=np.int64)
    items = pa.array(flat, type=kind.field(0).type)
    return pa.ListArray.from_arrays(pa.array(offsets, type=pa.int32()), items, mask=pa.array(missing)).cast(kind)
