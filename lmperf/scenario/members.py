"""The tenants of a scenario one by one: each with its traffic at the load it is said to offer, before any scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lmperf.scenario.faults import Fault, Path
from lmperf.scenario.known import Known
from lmperf.scenario.lengths_file import LengthsFileError, read_columns
from lmperf.scenario.load import Scenario
from lmperf.scenario.tenant_model import TenantModel
from lmperf.scenario.traffic_specs import arrivals_of, process_of, traffic_of
from lmperf.scenario.view import View, tenant_names
from loadgen.workload.demand import mean_tokens
from tenants.traffic import Process, Traffic

AMOUNTS_OF_SATURATION = ("load", "share", "raised_load")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One tenant. ``traffic`` stands at ``rate`` (requests/s; None: closed loop, trace, or not said in requests);
    ``mean_prompt`` and ``mean_output`` are tokens of a request, None where a trace has them.
    """

    name: str
    group: str
    model: TenantModel
    path: Path
    traced: bool
    traffic: Traffic | None
    rate: float | None
    mean_prompt: float | None = None
    mean_output: float | None = None


def members_of(scenario: Scenario) -> tuple[list[Member], list[Fault]]:
    """Every tenant, in the order of the file, and what is wrong with files that lengths come from."""
    view = View(scenario.document, Known(), traffic=True)
    members: list[Member] = []
    faults: list[Fault] = []
    for group, model in scenario.model.tenants.items():
        path: Path = ("tenants", group)
        try:
            columns = _file_columns(scenario, path, model)
            traffic, rate = _traffic(scenario, model, columns, traced=group in view.traced)
            described = traffic is not None and group not in view.traced
            means = mean_tokens(traffic) if traffic is not None and described else (None, None)
        except LengthsFileError as error:
            faults.append(scenario.document.fault((*path, "lengths_file"), str(error)))
            continue
        members.extend(
            Member(
                name=name,
                group=group,
                model=model,
                path=path,
                traced=group in view.traced,
                traffic=traffic,
                rate=rate,
                mean_prompt=means[0],
                mean_output=means[1],
            )
            for name in tenant_names(group, model.count)
        )
    return members, faults


def _file_columns(
    scenario: Scenario, path: Path, model: TenantModel
) -> tuple[Sequence[int] | None, Sequence[int] | None]:
    source = model.lengths_file
    if source is None:
        return None, None
    folder = scenario.document.folder_of((*path, "lengths_file", "path"))
    return read_columns(folder / source.path, (source.prompt, source.output))


def _traffic(
    scenario: Scenario,
    model: TenantModel,
    columns: tuple[Sequence[int] | None, Sequence[int] | None],
    *,
    traced: bool,
) -> tuple[Traffic | None, float | None]:
    process = process_of(model, traced=traced)
    amounts = (model.rate, model.load, model.share, model.users)
    if not traced and process is not Process.STEPS and all(amount is None for amount in amounts):
        return None, None
    arrivals = arrivals_of(model.arrivals, process, rate=model.rate, users=model.users, think_s=model.think_s)
    timeouts = model.timeouts
    default = scenario.model.backend.timeouts
    given = set() if timeouts is None else timeouts.model_fields_set
    first = timeouts.first_token_s if timeouts is not None and "first_token_s" in given else default.first_token_s
    total = timeouts.total_s if timeouts is not None and "total_s" in given else default.total_s
    traffic = traffic_of(model, arrivals, file_columns=columns, first_token_timeout_s=first, timeout_s=total)
    return traffic, mean_step_rate(arrivals.steps) if process is Process.STEPS else model.rate


def mean_step_rate(steps: Sequence[tuple[float, float]]) -> float:
    """The mean over the run of piecewise constant rates that start at fractions of it."""
    ends = [*(start for start, _ in steps), 1.0]
    return sum(rate * (end - start) for (_, rate), (start, end) in zip(steps, pairwise(ends), strict=True))
