"""Outcomes to rows: the one place that knows how a request and its stamps become a line of a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loadgen.recording.stamps import ABSENT, Gaps, Stamps, gaps_of, in_order, stamps_of
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
    ("target_output_tokens", "target_output_tokens"),
    ("max_tokens", "max_tokens"),
    ("priority", "priority"),
    ("request_id", "id"),
)
_OUTCOME_COLUMNS = ("cached_prompt_tokens", "tokens_source", "backend", "status", "error_class", "http_status")
_STAMP_COLUMNS = (
    ("arrival_ns", "arrival"),
    ("enqueued_ns", "enqueued"),
    ("dispatched_ns", "dispatched"),
    ("connect_ns", "connect"),
    ("sent_ns", "sent"),
    ("first_token_ns", "first"),
    ("last_token_ns", "last"),
    ("finished_ns", "finished"),
    ("ended_ns", "ended"),
    ("prompt_tokens", "prompt_tokens"),
    ("output_tokens", "output_tokens"),
    ("max_itl_ns", "max_itl"),
)


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
        return finished(self.steps(outcomes, stamps_of(outcomes, lambda _: 0), gaps_of(outcomes)))

    def steps(self, outcomes: Sequence[Outcome], stamps: Stamps, gaps: Gaps) -> Steps[pa.RecordBatch]:
        """The same in steps of a fraction of a millisecond for some hundred rows. ``stamps``, ``gaps``: of ``outcomes``."""
        requests = [outcome.request for outcome in outcomes]
        values: dict[str, Any] = {
            column: [getattr(request, name) for request in requests] for column, name in _REQUEST_COLUMNS
        }
        yield
        for name in _OUTCOME_COLUMNS:
            values[name] = [getattr(outcome, name) for outcome in outcomes]
        missing: dict[str, NDArray[np.bool_]] = {}
        for column, name in _STAMP_COLUMNS:
            values[column] = stamped = getattr(stamps, name)
            missing[column] = stamped == ABSENT
        yield
        values["weight"] = [self._weight.get(request.tenant) for request in requests]
        limits = [self._ttft_limit.get(request.tenant) for request in requests]
        values["deadline_ns"] = [
            None if limit is None else request.arrival_ns + limit
            for request, limit in zip(requests, limits, strict=True)
        ]
        start, end = self._window
        values["warmup"] = (stamps.arrival < start) | (stamps.arrival >= end)
        values["valid"] = in_order(stamps, gaps)
        ragged: dict[str, list[Any]] = {
            "prefix_blocks": [request.prefix_blocks or None for request in requests],
            "chunk_offsets_us": [outcome.chunk_offsets_us for outcome in outcomes],
            "chunk_tokens": [outcome.chunk_tokens for outcome in outcomes],
        }
        arrays: list[pa.Array[Any]] = []
        for number, field in enumerate(self._schema):
            if number % _COLUMNS_A_STEP == 0:
                yield
            name, kind = field.name, field.type
            if name in ragged:
                arrays.append(_ragged(ragged[name], kind))
            else:
                arrays.append(pa.array(values[name], type=kind, mask=missing.get(name)))
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
