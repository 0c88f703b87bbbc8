"""The max-min oracle itself: by hand, and by what defines the allocation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from maxmin import max_min

_AMOUNT = st.floats(0.01, 100)


@pytest.mark.parametrize(
    ("capacity", "demands", "weights", "shares"),
    [
        (10, {"a": 1, "b": 2}, {"a": 1, "b": 1}, {"a": 1, "b": 2}),
        (10, {"a": 20, "b": 20}, {"a": 1, "b": 3}, {"a": 2.5, "b": 7.5}),
        (10, {"a": 2, "b": 20, "c": 20}, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 4, "c": 4}),
        (12, {"a": 1, "b": 4, "c": 50}, {"a": 1, "b": 1, "c": 2}, {"a": 1, "b": 11 / 3, "c": 22 / 3}),
    ],
)
def test_by_hand(capacity, demands, weights, shares):
    assert max_min(capacity, demands, weights) == pytest.approx(shares)


@given(capacity=_AMOUNT, tenants=st.lists(st.tuples(_AMOUNT, _AMOUNT), min_size=1, max_size=6))
def test_by_definition(capacity, tenants):
    """All is used or all demand is met; whoever is short has the highest share per weight."""
    demands = {str(i): demand for i, (demand, _) in enumerate(tenants)}
    weights = {str(i): weight for i, (_, weight) in enumerate(tenants)}
    shares = max_min(capacity, demands, weights)
    assert sum(shares.values()) == pytest.approx(min(capacity, sum(demands.values())))
    top = max(shares[n] / weights[n] for n in shares)
    for name, share in shares.items():
        assert share <= demands[name] * (1 + 1e-9)
        if share < demands[name] * (1 - 1e-9):
            assert share / weights[name] == pytest.approx(top)
