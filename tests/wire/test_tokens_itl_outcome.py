"""How many tokens a chunk held, the gaps that follow, and the join into an Outcome."""

from __future__ import annotations

import gc
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import DONE, Bench, answering, text

from backends.outcome import Ended, outcome_of, outcomes_of
from backends.protocol import WireResult
from backends.wire.response import Response
from backends.wire.tokens import tokens_per_chunk
from scheduler.request import ErrorClass, Request, Status, TokensSource
from tenants.measures import itl

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=30)
NONE = array("i")


@given(COUNTS)
def test_ids_and_running_usage_prove_the_same(counts):
    """Token ids, and the increases of a running usage, give back the counts, whatever the total says."""
    running = array("i", np.cumsum(counts).tolist())
    for total in (None, sum(counts), len(counts)):
        assert list(tokens_per_chunk(len(counts), array("i", counts), NONE, total)) == counts
        if len(counts) > 1:
            assert list(tokens_per_chunk(len(counts), NONE, running, total)) == counts


@given(COUNTS)
def test_what_is_missing_on_one_chunk_proves_nothing(counts):
    """Ids or usage on some chunks only: k is unknown, unless the total equals the number of chunks."""
    chunks = len(counts) + 1
    running = array("i", np.cumsum(counts).tolist())
    assert tokens_per_chunk(chunks, array("i", counts), running, chunks + 1) is None
    assert list(tokens_per_chunk(chunks, array("i", counts), running, chunks)) == [1] * chunks


@pytest.mark.parametrize("running", [[5, 5, 5], [0, 1, 2], [3, 2, 4]])
def test_a_usage_that_does_not_run_is_no_proof(running):
    """The total repeated on every chunk, a count that lags behind the text, one that falls."""
    assert tokens_per_chunk(3, NONE, array("i", running), 5) is None


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(1, 5)), min_size=1, max_size=40))
def test_itl_splits_every_gap_by_its_tokens(chunks):
    """k tokens after a gap are k gaps of gap/k, the first chunk gives none, and the gaps add up to last - first."""
    times = np.cumsum([gap for gap, _ in chunks]).astype(np.int64)
    tokens = np.array([k for _, k in chunks], dtype=np.int32)
    expected = [gap / k for gap, k in chunks[1:] for _ in range(k)]
    gaps = itl.itl_gaps_ns(times, tokens)
    np.testing.assert_allclose(gaps, expected, atol=0.5)
    assert abs(gaps.sum() - (times[-1] - times[0])) <= 0.5 * len(gaps)
    assert itl.max_itl_ns(times, tokens) == (gaps.max() if len(gaps) else None)


@given(st.lists(st.integers(0, 10**12), max_size=30).map(sorted))
def test_one_token_a_chunk_is_the_default(times):
    """Without counts, and with counts of one, the ITL is the gap between chunks."""
    stamps = np.array(times, dtype=np.int64)
    ones = np.ones(len(times), dtype=np.int32)
    assert list(itl.itl_gaps_ns(stamps)) == list(itl.itl_gaps_ns(stamps, ones)) == list(np.diff(stamps))


def test_a_chunk_without_a_token_gives_its_time_to_the_next():
    """Chunks at 0, 10, 30 with 1, 0, 2 tokens: two gaps of 15."""
    stamps, tokens = np.array([0, 10, 30]), np.array([1, 0, 2], dtype=np.int32)
    assert list(itl.itl_gaps_ns(stamps, tokens)) == [15, 15]


def test_counts_that_do_not_fit_are_refused():
    """One count a chunk, none negative."""
    with pytest.raises(ValueError, match="2 token counts for 3 chunks"):
        itl.itl_gaps_ns(np.arange(3), np.ones(2, dtype=np.int32))
    with pytest.raises(ValueError, match="negative"):
        itl.itl_gaps_ns(np.arange(2), np.array([1, -1], dtype=np.int32))


def request(**fields):
    return Request(**{"id": 1, "tenant": "chat", "arrival_ns": 0, "prompt_tokens": 100, **fields})


def joined(result):
    return outcome_of(request(), result, backend="b", enqueued_ns=1, dispatched_ns=2)


def wire(times, tokens, **fields):
    known = tokens is not None
    defaults = {
        "status": Status.OK,
        "ended_ns": 10**13,
        "finished_ns": 10**13 - 1,
        "chunk_ns": array("q", times),
        "chunk_tokens": array("i", tokens) if known else None,
        "tokens_known": known,
    }
    return WireResult(**{**defaults, **fields})


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=40).map(sorted))
def test_offsets_are_rounded_once(times):
    """Each offset is within half a microsecond of the truth, so the last fits last - first; the first is 0."""
    outcome = joined(wire(times, [1] * len(times)))
    offsets = outcome.chunk_offsets_us
    np.testing.assert_allclose(offsets, (np.array(times) - times[0]) / 1000, atol=0.5)
    assert (outcome.first_token_ns, outcome.last_token_ns, offsets[0]) == (times[0], times[-1], 0)
    assert abs(offsets[-1] * 1000 - (outcome.last_token_ns - outcome.first_token_ns)) <= 1000


def test_max_itl_follows_the_rule_of_the_gaps():
    """gap/k when k is known; null, with the raw gaps kept, when it is not; null for a single chunk."""
    times = [0, 9_000, 10_000]
    known, unknown, ones = joined(wire(times, [1, 9, 1])), joined(wire(times, None)), joined(wire(times, [1, 1, 1]))
    assert (known.max_itl_ns, list(known.chunk_tokens)) == (1000, [1, 9, 1])
    assert (unknown.max_itl_ns, unknown.chunk_tokens, unknown.tokens_known) == (None, None, False)
    assert list(unknown.chunk_offsets_us) == [0, 9, 10]
    assert (ones.max_itl_ns, ones.chunk_tokens, ones.tokens_known) == (9000, None, True)
    assert joined(wire([5], [3])).max_itl_ns is None


_ANSWERS = st.lists(
    st.one_of(
        st.tuples(st.lists(st.integers(0, 10**12), max_size=6).map(sorted), st.none()),
        st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 3)), max_size=6).map(
            lambda pairs: (sorted(at for at, _ in pairs), [k for _, k in pairs])
        ),
        st.lists(st.integers(0, 10**12), max_size=6).map(lambda times: (sorted(times), [1] * len(times))),
    ),
    max_size=8,
)


@given(_ANSWERS)
def test_many_are_joined_as_each_alone(answers):
    """Whatever stands beside an answer: none, one or many chunks, of known and of unknown counts."""
    results = [wire(times, tokens) for times, tokens in answers]
    together = outcomes_of([Ended(request(), result, "b", 1, 2) for result in results])
    for (times, tokens), result, outcome in zip(answers, results, together, strict=True):
        alone = joined(result)
        for name in type(outcome).__struct_fields__:
            assert np.array_equal(getattr(outcome, name), getattr(alone, name)), name
        gaps = [] if tokens is None or not times else itl.itl_gaps_ns(np.array(times), np.array(tokens, dtype=np.int32))
        assert outcome.max_itl_ns == (max(gaps) if len(gaps) else None)


def test_nothing_that_the_wire_knows_is_lost_in_the_join():
    """Every field that a wire result and an outcome share holds the same: why the answer ended, too."""
    result = wire(
        [1, 2],
        [1, 2],
        error_class=ErrorClass.SERVER_ERROR,
        detail="said",
        http_status=200,
        connect_ns=3,
        sent_ns=4,
        prompt_tokens=5,
        cached_prompt_tokens=6,
        output_tokens=7,
        tokens_source=TokensSource.USAGE,
        finish_reason="length",
    )
    outcome = joined(result)
    shared = set(WireResult.__struct_fields__) & set(type(outcome).__struct_fields__) - {"chunk_tokens"}
    assert {"finish_reason", "http_status", "cached_prompt_tokens"} <= shared
    for name in shared:
        assert getattr(result, name) not in (None, ""), f"{name} proves nothing here"
        assert getattr(outcome, name) == getattr(result, name), name


def test_the_prompt_is_what_the_server_says():
    """usage beats the request's estimate; without it the estimate stands."""
    assert joined(wire([1], [1], prompt_tokens=93)).prompt_tokens == 93
    assert joined(wire([1], [1])).prompt_tokens == 100


def test_a_failure_keeps_its_stamps_and_has_no_finish():
    """What was reached stays; what was not is null."""
    failed = joined(wire([5, 7], None, status=Status.FAILED, error_class=ErrorClass.RESET, sent_ns=3, connect_ns=0))
    assert (failed.first_token_ns, failed.last_token_ns, failed.finished_ns) == (5, 7, None)
    assert (failed.status, failed.error_class, failed.enqueued_ns, failed.dispatched_ns) == ("failed", "reset", 1, 2)
    nothing = joined(wire([], None, status=Status.FAILED, error_class=ErrorClass.REFUSED, finished_ns=None))
    assert (nothing.first_token_ns, nothing.chunk_offsets_us) == (None, None)


async def test_a_real_answer_joins(bench: Bench):
    """From the socket to the outcome."""
    result = await bench.answer(answering(text("a"), text("b", "stop"), DONE))
    outcome = joined(result)
    assert (outcome.status, len(outcome.chunk_offsets_us), outcome.tokens_source) == ("ok", 2, TokensSource.UNKNOWN)


async def test_a_request_leaves_nothing_for_the_cycle_collector(bench):
    """A run freezes the collector: what a request used must go when the request does."""
    server = await bench.server(answering(text("a"), text("b", "stop"), DONE))
    client = bench.client(server.url)
    await bench.ask(client)
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            await bench.ask(client)
        assert sum(isinstance(thing, Response) for thing in gc.get_objects()) <= 1
    finally:
        gc.enable()
