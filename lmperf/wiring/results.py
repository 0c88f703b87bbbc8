"""The results folder of a run, live or simulated: trace, summary, histogram logs, report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmperf.exit_codes import ExitCode, worst
from lmperf.scenario.model import At
from lmperf.scenario.plan import Plan
from lmperf.wiring.dispatching import auto_of, slots_of
from loadgen.hlog import write_hlogs
from loadgen.offline.cell import slots_data
from loadgen.recorder import Recorder
from loadgen.summary.build import DEFAULT_PERCENTILES, summarise
from loadgen.summary.files import write_summary
from loadgen.summary.schema import Summary
from loadgen.summary.target import target_failed
from loadgen.trace.parts import TraceFile
from loadgen.trace.schema import TraceMetadata
from tenants.slo import Metric
from tenants.thresholds import ThresholdResult
from tenants.verdict import Verdict

_LOADS = {At.BASELINE: "the baseline load", At.RAISED: "the raised load"}


@dataclass(frozen=True, slots=True)
class RunResult:
    """``thresholds``: the scenario's own pass or fail rules, evaluated."""

    summary: Summary
    thresholds: tuple[ThresholdResult, ...]
    directory: Path | None
    interrupted: bool = False

    def exit_code(self, *, strict: bool) -> ExitCode:
        """The documented code; ``strict`` makes an undecided verdict one."""
        codes = [ExitCode.OK]
        if self.interrupted:
            codes.append(ExitCode.INTERRUPTED)
        if not self.summary.validity.valid:
            codes.append(ExitCode.INVALID)
        nothing_ok = not self.summary.total.statuses.get("ok")
        if self.target_failed is not None:
            codes.append(ExitCode.BACKEND)
        broken = self.summary.verdict == Verdict.BROKEN.value or any(not t.passed for t in self.thresholds)
        if nothing_ok or broken:
            codes.append(ExitCode.BROKEN)
        if strict and self.summary.verdict == Verdict.UNDECIDED.value:
            codes.append(ExitCode.UNDECIDED)
        return worst(codes)

    @property
    def target_failed(self) -> str | None:
        """See :func:`loadgen.summary.target.target_failed`."""
        return target_failed(self.summary)


def write_results(
    recorder: Recorder,
    plan: Plan | None,
    *,
    metadata: TraceMetadata,
    directory: Path | None,
    percentiles: tuple[float, ...] = DEFAULT_PERCENTILES,
    server: Mapping[str, Any] | None = None,
    planned: Mapping[str, int] | None = None,
    warnings: tuple[str, ...] = (),
    interrupted: bool = False,
) -> RunResult:
    """Close the recorder and write everything that a finished run leaves; without a folder only summarise. ``plan`` None:
    nothing is known but the rows."""
    recorder.close(metadata)
    summary = summarise(
        recorder,
        plan=None if plan is None else plan_as_data(plan),
        percentiles=percentiles,
        offered_per_s=None if plan is None else offered_rates(plan),
        planned=planned,
        server=server,
        warnings=warnings,
    )
    thresholds = () if plan is None else evaluate_thresholds(plan, recorder, summary)
    result = RunResult(summary, thresholds, directory, interrupted)
    if directory is not None:
        write_summary(summary, directory)
        bulk = {
            (name, metric): recorder.histogram(metric, name)
            for name in recorder.names
            for metric in (Metric.ITL, Metric.INTER_CHUNK)
            if metadata.kind == "simulated"
        }
        write_hlogs(TraceFile(directory), directory, bulk=bulk)
        from loadgen.report.curves import curves_of  # noqa: PLC0415 (templates and plots: not before the results)
        from loadgen.report.render import write_report  # noqa: PLC0415

        write_report(directory, summary, curves=curves_of(recorder), load=None if plan is None else _LOADS.get(plan.at))
    return result


def evaluate_thresholds(plan: Plan, recorder: Recorder, summary: Summary) -> tuple[ThresholdResult, ...]:
    """The scenario's thresholds over what was measured."""
    from lmperf.wiring.figures import lookup_in  # noqa: PLC0415 (only a scenario with thresholds needs it)
    from tenants.thresholds import evaluate  # noqa: PLC0415

    return tuple(evaluate(threshold, lookup_in(recorder, summary)) for threshold in plan.thresholds)


def offered_rates(plan: Plan) -> dict[str, float]:
    """Requests/s that each open-loop tenant's traffic is configured to offer."""
    return {
        planned.tenant.name: planned.traffic.arrivals.rate
        for planned in plan.tenants
        if planned.traffic is not None and planned.traffic.arrivals.rate is not None
    }


def plan_as_data(plan: Plan) -> dict[str, Any]:
    """What a summary keeps of the plan: plain data, no secret (identities hold references only)."""
    return {
        "name": plan.name,
        "description": plan.description,
        "duration_s": None if plan.duration_ns is None else plan.duration_ns / 1e9,
        "num_prompts": plan.num_prompts,
        "seed": plan.seed,
        "backend": {
            "kind": plan.backend.kind,
            "url": plan.backend.url,
            "urls": dict(plan.backend.urls),
            "server_model": plan.backend.server_model,
        },
        "policy": {"name": plan.policy.name, **plan.policy.options},
        "workers": plan.workers,
        "slots": slots_data(slots_of(plan), auto_of(plan), plan.slots.own, plan.backend.routing),
        "load": {"at": plan.at.value, "noisy": list(plan.noisy), "saturation_cost_units_per_s": plan.saturation},
        "tenants": {
            planned.tenant.name: {
                "weight": planned.tenant.weight,
                "rate_per_s": planned.traffic.arrivals.rate if planned.traffic is not None else None,
                "offered_cost_units_per_s": planned.offered,
            }
            for planned in plan.tenants
        },
    }
