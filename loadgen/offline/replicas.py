"""One simulated run on k equal replicas behind one queue, and what it says of each tenant's promise.

The dispatcher sends each request to the replica with the least outstanding work; every replica has the slots, and its own
copy of the server model. With one replica the run is the cell of :mod:`loadgen.offline.cell`, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from loadgen.offline.cell import CellJob, CellResult, figures, record_cell
from loadgen.offline.search import TenantRun
from loadgen.recorder import Recorder
from tenants.measures.attainment import attainment
from tenants.measures.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedJob:
    """``one_realisation``: no other seed gives another run, so its interval comes from blocks of its own time.
    ``few_seeds``: too few for an interval over them, so it is asked what the run proves by itself."""

    cell: CellJob
    replicas: int = 1
    one_realisation: bool = False
    few_seeds: bool = False

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"a server has at least 1 replica, got {self.replicas}")


def record_replicated(job: ReplicatedJob) -> Recorder:
    """Simulate one run and keep all of it. Where the cell has several servers, each replica is all of them."""
    cell = job.cell
    if job.replicas > 1:
        slots = [of for _ in range(job.replicas) for of in (cell.backends.values() or (cell.slots,))]
        cell = replace(cell, backends={f"server-{number}": of for number, of in enumerate(slots, 1)})
    return record_cell(cell)


def run_replicated(job: ReplicatedJob) -> CellResult:
    """The figures that comparisons of policies need."""
    return figures(job.cell, record_replicated(job).columns())


def promises_of_run(job: ReplicatedJob) -> Mapping[str, TenantRun]:
    """What a search for a capacity needs: each tenant's requests, those that met its limits, and their cost."""
    cell = job.cell
    columns = record_replicated(job).columns()
    judged = columns.judged()
    found = {}
    for tenant in cell.recipe.tenants:
        rows = judged.of(tenant.name)
        share = attainment(rows, tenant.slo)
        cost = (
            cell.cost.prompt_weight * float(rows.prompt_tokens.clip(min=0).sum())
            + cell.cost.output_weight * float(rows.output_tokens.clip(min=0).sum())
        )  # fmt: skip
        interval = upper = None
        if (job.one_realisation or job.few_seeds) and tenant.slo.has_limits:
            evidence = Evidence.of(tenant.name, [columns])
            _, interval = evidence.attainment(tenant.slo)
            upper = interval or evidence.share_at_most(tenant.slo)
        found[tenant.name] = TenantRun(
            met=share.met,
            total=share.total,
            cost=cost,
            interval=interval if job.one_realisation else None,
            at_most=None if upper is None else upper.high,
        )
    return found
