"""A slice of a public trace that a small engine can serve: real timestamps and lengths, rows chosen, none changed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

TRACE = Path(__file__).resolve().parents[4] / "shared" / "traces" / "azure-llm-2023" / "AzureLLMInferenceTrace_code.csv"
THRESHOLDS = (120, 400)
TENANTS = ("short", "middle", "long")
_SKIP_S = 188.5
"""From here on the rows come steadily; before, there are gaps of minutes."""
WHY_NOT = None if TRACE.is_file() else f"the public trace is not at {TRACE}"


@dataclass(frozen=True, slots=True)
class Row:
    """``seconds``: from the first row of the slice."""

    seconds: float
    prompt_tokens: int
    output_tokens: int


def write_slice(target: Path, *, rows: int, most_prompt: int, most_output: int, skip_s: float = 0.0) -> list[Row]:
    """The first ``rows`` rows after ``skip_s`` that fit, as a file of the same format; what it holds."""
    header, *lines = TRACE.read_text(encoding="utf-8").splitlines()
    start = _time(lines[0].split(",")[0])
    chosen, found = [], []
    for line in lines:
        stamp, prompt, output = line.split(",")
        seconds = _time(stamp) - start
        if seconds >= skip_s and int(prompt) <= most_prompt and 1 < int(output) <= most_output:
            chosen.append(line)
            found.append((seconds, int(prompt), int(output)))
        if len(chosen) == rows:
            break
    target.write_text("\n".join([header, *chosen]) + "\n", encoding="utf-8")
    return [Row(seconds - found[0][0], prompt, output) for seconds, prompt, output in found]


def write_scenario(
    folder: Path, backend: str, *, rows: int, most_prompt: int, speed: float, policy: str = "policy: none"
) -> tuple[Path, list[Row]]:
    """A scenario that replays a slice with three tenants, told apart by the prompt's length, on ``backend`` (YAML).

    Its SLOs are so wide that only lost requests break them, on however slow a machine.
    """
    chosen = write_slice(folder / "slice.csv", rows=rows, most_prompt=most_prompt, most_output=24, skip_s=_SKIP_S)
    scenario = folder / "azure.yaml"
    scenario.write_text(
        f"""\
version: 1
name: azure-slice
backend: {backend}
{policy}
trace:
  path: slice.csv
  speed: {speed:g}
  tenants: {{by: prompt_tokens, order: [{", ".join(TENANTS)}], thresholds: [{", ".join(map(str, THRESHOLDS))}]}}
thresholds: [failed < 1%]
tenants:
  short: {{weight: 2, slo: {{ttft_ms: 120000, attainment: 0.5}}}}
  middle: {{slo: {{ttft_ms: 120000, attainment: 0.5}}}}
  long: {{slo: {{ttft_ms: 120000, attainment: 0.5}}}}
""",
        encoding="utf-8",
    )
    return scenario, chosen


def tenant_of(prompt_tokens: int) -> str:
    """What the scenario's rule says: a prompt below the first threshold is of the first tenant, and so on."""
    return TENANTS[sum(prompt_tokens >= threshold for threshold in THRESHOLDS)]


def _time(stamp: str) -> float:
    """Seven digits are one more than Python's datetime takes; the last stands for 100 ns."""
    return datetime.fromisoformat(f"{stamp[:-1]}+00:00").timestamp() + int(stamp[-1]) * 1e-7
