"""A suggestion is made only where it is nearly certain, and then everywhere the same."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lmperf.scenario.faults import one_of
from tenants.nearest import nearest
from tenants.registry import Registry, RegistryError

POLICIES = ("fifo", "priority", "wfq", "drr", "vtc", "edf", "slo_aware", "committed", "none")


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("slo-aware", "slo_aware"),
        ("SLO_Aware", "slo_aware"),
        ("prioritty", "priority"),
        ("wfqq", "wfq"),
        ("fif", "fifo"),
        ("wqf", "wfq"),
    ],
)
def test_a_slip_of_the_finger_is_recognised(wrong, meant):
    assert nearest(wrong, POLICIES) == meant


@pytest.mark.parametrize("wrong", ["nope", "fair", "lifo", "sjf", "round_robin", "x", ""])
def test_another_word_is_not_bent_to_a_known_one(wrong):
    assert nearest(wrong, POLICIES) is None
    assert "did you mean" not in one_of(wrong, POLICIES)
    with pytest.raises(RegistryError) as caught:
        Registry(group="lmperf.nothing", what="policy", builtins=dict.fromkeys(POLICIES, "a:b")).target(wrong)
    assert "did you mean" not in str(caught.value)
    assert "known: " in str(caught.value)


def test_nobody_guesses_on_their_own():
    """difflib is asked in one place."""
    root = Path(__file__).resolve().parents[2]
    asking = [
        str(path.relative_to(root))
        for package in ("tenants", "scheduler", "backends", "loadgen", "lmperf")
        for path in (root / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import) and any(name.name == "difflib" for name in node.names)
    ]
    assert asking == ["tenants/nearest.py"]
