"""One simulated run on k equal replicas behind one queue, and what it says of each tenant's promise.

The dispatcher sends each request to the replica with the least outstanding work; every replica has the slots, and its own
copy of the server model. With one replica the run is the cell of :mod:`loadgen.offline.cell`, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from loadgen.offline.cell import CellJob, CellResult, anonymous, figures, metadata_of, record_cell
from loadgen.offline.run import simulate
from loadgen.offline.search import TenantRun
from loadgen.recorder import Recorder
from scheduler.auto_slots import AutoSlots
from scheduler.dispatcher import Dispatcher, DispatcherConfig
from scheduler.events import SlotsChanged
from tenants.measures.attainment import attainment
from tenants.measures.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedJob:
    """``one_realisation``: no other seed gives another run, so its interval comes from blocks of its own time."""

    cell: CellJob
    replicas: int = 1
    one_realisation: bool = False

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"a server has at least 1 replica, got {self.replicas}")


class _EverywhereSlots(AutoSlots):
    """One decision for all replicas: they share a queue, and so the TPOT that it leads to."""

    names: tuple[str, ...] = ()

    def control(self, now_ns: int, *, queued: bool) -> list[SlotsChanged]:
        return [
            SlotsChanged(now_ns, name, change.sequences, change.prefill_tokens)
            for change in super().control(now_ns, queued=queued)
            for name in self.names
        ]


def record_replicated(job: ReplicatedJob) -> Recorder:
    """Simulate one run and keep all of it."""
    if job.replicas == 1:
        return record_cell(job.cell)
    cell = job.cell
    tenants = anonymous(cell.recipe.tenants)
    names = tuple(f"server-{number}" for number in range(1, job.replicas + 1))
    config = DispatcherConfig(
        tenants=tenants,
        policy=cell.policy,
        options=dict(cell.options),
        cost=cell.cost,
        prefill_rate=min(cell.server.law.prefill_rate, 1e9),
        backends=dict.fromkeys(names, cell.slots),
    )
    recorder = Recorder(tenants, cell.window_ns, metadata=metadata_of(cell), batch_rows=4096)
    source = cell.recipe.source(cell.seed, cell.growth)
    auto = None
    if cell.auto is not None:
        least, most = cell.auto
        start, prefill = cell.slots.sequences or least, cell.slots.prefill_tokens
        auto = _EverywhereSlots(cell.recipe.tenants, start, least, most, prefill_tokens=prefill)
        auto.names = names
    simulate(source, Dispatcher(config), dict.fromkeys(names, cell.server), recorder, auto=auto)
    return recorder


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
        interval = None
        if job.one_realisation and tenant.slo.has_limits:
            _, interval = Evidence.of(tenant.name, [columns]).attainment(tenant.slo)
        found[tenant.name] = TenantRun(met=share.met, total=share.total, cost=cost, interval=interval)
    return found
