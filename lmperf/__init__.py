"""lmperf: which queue policy keeps every tenant's SLO on a shared LLM server, at what load, and how sure are we?

This package is the front door: the command line, scenario files, and the wiring of the layers below. Importing it loads
nothing else; the names below are loaded when they are first used (see ``__init__.pyi``).
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_PUBLIC = {
    "load_scenario": "lmperf.scenario.load",
    "resolve": "lmperf.scenario.resolve",
    "Scenario": "lmperf.scenario.load",
    "ScenarioError": "lmperf.scenario.faults",
    "Plan": "lmperf.scenario.plan",
    "ExitCode": "lmperf.exit_codes",
    "Tenant": "tenants.tenant",
    "Slo": "tenants.slo",
    "Histogram": "tenants.measures.histogram",
    "Request": "scheduler.request",
    "Outcome": "scheduler.request",
    "Policy": "scheduler.policy",
    "Dispatcher": "scheduler.dispatcher",
    "DispatcherConfig": "scheduler.dispatcher_config",
    "Simulation": "scheduler.drivers.simulated",
    "ServerModelSpec": "scheduler.server_model.spec",
    "read_trace": "loadgen.trace.reader",
    "read_summary": "loadgen.summary.files",
}

__all__ = ["__version__", *sorted(_PUBLIC)]  # noqa: PLE0604 (names are computed; the stub lists them)


def __getattr__(name: str) -> object:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'lmperf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
