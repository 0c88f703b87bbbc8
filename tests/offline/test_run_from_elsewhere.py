"""A run is looked at where it was not made: what its scenario names on disk is not there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lmperf.scenario.faults import ScenarioError
from lmperf.scenario.load import scenario_from_text
from lmperf.scenario.resolve import resolve
from lmperf.wiring.header import header_plan

TEXT = """
version: 1
name: elsewhere
duration_s: 5
backend: {url: "http://127.0.0.1:1", tokenizer: /nowhere/tokenizer, ca_file: /nowhere/ca.pem}
trace: {path: /nowhere/trace.csv, format: azure_2023}
tenants:
  a: {slo: {ttft_ms: 500, attainment: 0.9}}
"""


def test_a_run_made_elsewhere_needs_none_of_its_files():
    """Tenants, promises and slots are in the header; the tokenizer, certificates and trace were needed to make the run."""
    trace = SimpleNamespace(path=Path("requests.parquet"), metadata=SimpleNamespace(scenario=TEXT))
    plan = header_plan(trace)
    assert [planned.tenant.name for planned in plan.tenants] == ["a"]
    assert plan.backend.tokenizer == "/nowhere/tokenizer"


def test_a_run_that_is_to_be_made_needs_them_all():
    with pytest.raises(ScenarioError) as caught:
        resolve(scenario_from_text(TEXT, file="x.yaml"), saturation=1000.0)
    said = str(caught.value)
    assert all(name in said for name in ("/nowhere/tokenizer", "/nowhere/ca.pem", "/nowhere/trace.csv"))
