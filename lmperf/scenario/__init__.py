"""The scenario file: tenants, what they send and were promised, a backend, and the queue policy between them.

Lives here: the YAML reader that keeps lines, the pydantic model, the checks, ``--set``, secrets, and the way to a
:class:`~lmperf.scenario.plan.Plan`. Never here: drawing from distributions, reading traces, running anything.

``load_scenario(file)`` -> :class:`Scenario` -> ``resolve(scenario, saturation=...)`` -> :class:`Plan`.
"""

from __future__ import annotations

from lmperf.scenario.dump import resolved_yaml
from lmperf.scenario.faults import Fault, ScenarioError
from lmperf.scenario.known import Known
from lmperf.scenario.load import Scenario, load_scenario, scenario_from_data, scenario_from_text
from lmperf.scenario.model import At, Growth
from lmperf.scenario.plan import Plan
from lmperf.scenario.resolve import resolve
from lmperf.scenario.secrets import Secrets, redact_argv

__all__ = [
    "At",
    "Fault",
    "Growth",
    "Known",
    "Plan",
    "Scenario",
    "ScenarioError",
    "Secrets",
    "load_scenario",
    "redact_argv",
    "resolve",
    "resolved_yaml",
    "scenario_from_data",
    "scenario_from_text",
]
