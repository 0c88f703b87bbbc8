"""Whatever a server sends, however it is cut: no exception, one meaning (``make fuzz`` goes on where this stops)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.wire_properties import HEADS, SEEDS, check

PIECES = st.one_of(
    st.sampled_from(SEEDS), st.binary(max_size=40), st.sampled_from([b"\r", b"\n", b"data:", b"\xff", b"0"])
)
BODIES = st.one_of(
    st.lists(PIECES, max_size=6).map(b"".join),
    # Mostly tokens, as streams are.
    st.tuples(st.integers(2, 40).map(lambda n: SEEDS[0] * n), st.lists(PIECES, max_size=3).map(b"".join)).map(b"".join),
)


@pytest.fixture(scope="module")
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@settings(max_examples=400)
@given(
    head=st.integers(0, len(HEADS)),
    body=BODIES,
    places=st.lists(st.integers(0, 4096), max_size=6),
)
def test_any_bytes_cut_anywhere_mean_the_same(loop, head, body, places):
    """Whole, in random segments and byte by byte, a response comes to the same status, fault, chunks, counts and text."""
    check(head, body, places, loop)
