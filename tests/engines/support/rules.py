"""What must hold for every request of a real engine that ended well, whatever the machine's speed.

Each rule reads the trace that lmperf wrote; those of :func:`assert_agrees_with_the_server` read what the server's own
side saw (support/in_engine/witness.py), which knows nothing of lmperf.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from loadgen.trace.reader import Trace
from scheduler.request import Status, TokensSource
from tests.engines.support.azure import TENANTS, Row, tenant_of

_US = 1_000


def assert_nothing_lost(trace: Trace, requests: int) -> None:
    """One row a request, each with its own id, each ended well."""
    assert len(trace) == requests
    assert len(set(trace.values("request_id"))) == requests
    assert Counter(trace.values("status")) == {Status.OK: requests}, trace.values("error_class")
    assert set(trace.values("http_status")) == {200}


def assert_stamps_in_order(trace: Trace) -> None:
    """arrival <= enqueued <= dispatched <= sent < first token <= last token <= finished: so TTFT > 0 and TTFT <= E2E."""
    order = ("arrival_ns", "enqueued_ns", "dispatched_ns", "sent_ns", "first_token_ns", "last_token_ns", "finished_ns")
    stamps = np.array([trace.ints(name) for name in order])
    assert (stamps >= 0).all(), "a stamp is missing"
    assert (np.diff(stamps, axis=0) >= 0).all()
    assert (trace.ints("first_token_ns") > trace.ints("sent_ns")).all()
    columns = trace.columns()
    assert (columns.ttft_ns > 0).all()
    assert (columns.ttft_ns <= columns.e2e_ns).all()


def assert_token_gaps_add_up(trace: Trace) -> None:
    """The count comes from usage; every chunk's tokens are known; the gaps of a request sum to last - first token."""
    assert set(trace.values("tokens_source")) == {TokensSource.USAGE}
    output = trace.ints("output_tokens")
    assert output.tolist() == trace.ints("target_output_tokens").tolist(), "the engine was asked for these lengths"
    span_ns = trace.ints("last_token_ns") - trace.ints("first_token_ns")
    for row in range(len(trace)):
        offsets, tokens = trace.chunks(row)
        assert offsets is not None
        per_chunk = np.ones(len(offsets), dtype=np.int64) if tokens is None else tokens
        assert per_chunk.sum() == output[row], "tokens of the chunks against usage"
        assert offsets[0] == 0
        assert (np.diff(offsets) >= 0).all()
        assert abs(int(offsets[-1]) * _US - int(span_ns[row])) <= _US, "sum of ITLs against last - first"


def assert_tenants_by_the_rule(trace: Trace, rows: list[Row]) -> None:
    """Every row went to the tenant that the scenario's rule names, and to no other; every tenant has some."""
    expected = Counter(tenant_of(row.prompt_tokens) for row in rows)
    assert set(expected) == set(TENANTS), "the slice must hold rows of every tenant"
    assert Counter(trace.values("tenant")) == expected
    for tenant, prompt in zip(trace.values("tenant"), trace.values("prompt_tokens"), strict=True):
        assert tenant == tenant_of(prompt)


def assert_replayed(trace: Trace, rows: list[Row], speed: float) -> None:
    """Lengths as the server counted them, and arrivals at the trace's own times over the speed, every digit kept."""
    order = trace.ints("arrival_ns").argsort(kind="stable")
    arrival_ns = trace.ints("arrival_ns")[order]
    meant_ns = np.array([row.seconds * 1e9 / speed for row in rows])
    assert np.abs(arrival_ns - meant_ns).max() <= _US
    assert trace.ints("prompt_tokens")[order].tolist() == [row.prompt_tokens for row in rows]
    assert trace.ints("output_tokens")[order].tolist() == [row.output_tokens for row in rows]


def assert_agrees_with_the_server(trace: Trace, sightings: list[dict[str, Any]]) -> None:
    """Tenant by tenant the server counted the same tokens, and no token is stamped before the server let it go."""
    assert all(seen["status"] == 200 for seen in sightings)
    ours = sorted(
        zip(trace.values("tenant"), trace.values("prompt_tokens"), trace.values("output_tokens"), strict=True)
    )
    theirs = sorted(
        (seen["tenant"], seen["usage"]["prompt_tokens"], seen["usage"]["completion_tokens"]) for seen in sightings
    )
    assert ours == theirs
    origin_ns = trace.metadata.start_monotonic_ns
    assert origin_ns is not None
    for mine, seen in _pairs(trace, sightings):
        first, last = (int(trace.ints(name)[mine]) + origin_ns for name in ("first_token_ns", "last_token_ns"))
        assert first >= seen["first_sent_ns"], "a token stamped before the server sent it"
        assert last >= seen["last_sent_ns"]


def _pairs(trace: Trace, sightings: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Rows and sightings of the same request, where (tenant, lengths) names one request only."""
    keys = list(zip(trace.values("tenant"), trace.values("prompt_tokens"), trace.values("output_tokens"), strict=True))
    alone = {key for key, count in Counter(keys).items() if count == 1}
    seen = {(s["tenant"], s["usage"]["prompt_tokens"], s["usage"]["completion_tokens"]): s for s in sightings}
    pairs = [(row, seen[key]) for row, key in enumerate(keys) if key in alone]
    assert pairs, "no request can be told from the others"
    return pairs
