"""The cache hit share: cached prompt tokens / prompt tokens, of the requests that state them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenants.measures.columns import UNDEFINED, StatusCode
from tenants.measures.prefix_cache import CacheHits, cache_hits
from tests.tenants.rows import S, columns, row


def test_what_is_not_stated_is_in_neither_sum():
    """100 + 300 tokens, 60 of them cached, beside a request of 1,000 that says nothing: 15%. A stated 0 counts."""
    rows = [row(0, prompt=100, cached=60), row(S, prompt=300, cached=0), row(2 * S, prompt=1_000)]
    assert cache_hits(columns(rows)) == CacheHits(requests=2, prompt_tokens=400, cached_prompt_tokens=60)
    assert cache_hits(columns(rows)).share == pytest.approx(0.15)


def test_without_a_statement_there_is_no_share():
    """None, never 0; a stated 0 is 0."""
    assert cache_hits(columns([])).share is None
    assert cache_hits(columns([row(0), row(S)])).share is None
    assert cache_hits(columns([row(0, cached=0)])).share == 0.0


def test_only_judged_rows_count_however_they_ended():
    """A request that timed out was prefilled too; warm-up and planned cancels are in no figure."""
    rows = [
        row(0, cached=10),
        row(S, cached=20, status=StatusCode.TIMED_OUT, end=2 * S),
        row(2 * S, cached=100, in_window=False),
        row(3 * S, cached=100, status=StatusCode.CANCEL_PLANNED, end=4 * S),
    ]
    assert cache_hits(columns(rows)) == CacheHits(requests=2, prompt_tokens=200, cached_prompt_tokens=30)


def test_a_share_never_exceeds_1():
    """Servers have stated more cached tokens than the prompt had, and a foreign trace may not know its prompts."""
    assert cache_hits(columns([row(0, prompt=100, cached=160)])).share == 1.0
    assert cache_hits(columns([row(0, prompt=0, cached=16)])).share is None


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(1, 2**31 - 1), st.none() | st.floats(0, 1), st.booleans()), max_size=30
    )
)
def test_the_sums_are_exact_and_those_of_tenants_add_up(cases):
    """Against whole numbers of Python, beyond what 32 bits hold."""
    stated = [(tenant, prompt, None if f is None else int(f * prompt), inside) for tenant, prompt, f, inside in cases]
    rows = columns(
        [
            row(i, tenant=tenant, prompt=prompt, cached=UNDEFINED if cached is None else cached, in_window=inside)
            for i, (tenant, prompt, cached, inside) in enumerate(stated)
        ]
    )
    for number, name in enumerate(rows.tenants):
        mine = [(p, c) for tenant, p, c, inside in stated if tenant == number and inside and c is not None]
        found = cache_hits(rows.of(name))
        assert found == CacheHits(len(mine), sum(p for p, _ in mine), sum(c for _, c in mine))
        if mine:
            assert found.share == float(Fraction(sum(c for _, c in mine), sum(p for p, _ in mine)))
    chat, batch, both = (cache_hits(each) for each in (rows.of("chat"), rows.of("batch"), rows))
    assert both.cached_prompt_tokens == chat.cached_prompt_tokens + batch.cached_prompt_tokens
