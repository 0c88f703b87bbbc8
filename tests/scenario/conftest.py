"""What the scenario tests share: a sound scenario as text, and ways to load it and to read its faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lmperf.scenario import Known, Scenario, ScenarioError, load_scenario

SOUND = """\
version: 1
duration_s: 100
backend: {kind: emulated}
policy: wfq
tenants:
  chat:
    rate: 10
    prompt: 300
    output: 150
    slo: {ttft_ms: 500, attainment: 0.99}
  batch:
    rate: 5
    prompt: 800
    output: 300
"""

KNOWN = Known(policies=["fifo", "wfq", "slo_aware"], backends=["emulated", "openai", "tgi"])

Load = Callable[..., Scenario]
Faults = Callable[..., list[str]]


@pytest.fixture
def sound() -> str:
    return SOUND


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Writes a text to a real file and loads it."""

    def load(text: str = SOUND, overrides: Sequence[str] = (), known: Known | None = KNOWN, **options) -> Scenario:
        file = tmp_path / "file.yaml"
        file.write_text(text, encoding="utf-8")
        return load_scenario(file, overrides=overrides, known=known, **options)

    return load


@pytest.fixture
def faults(load: Load, tmp_path: Path) -> Faults:
    """The faults of a scenario as people see them, with the folder taken out; it must have some."""

    def faults(*args, **options) -> list[str]:
        with pytest.raises(ScenarioError) as caught:
            load(*args, **options)
        lines = str(caught.value).replace(f"{tmp_path}/", "").splitlines()
        assert len(lines) == len(caught.value.faults), "one line a fault"
        return lines

    return faults
