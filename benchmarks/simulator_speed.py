"""How fast the simulator is: simulated requests/s on one core, everything on.

    python -m benchmarks.simulator_speed

The Azure LLM 2023 conversation trace (../shared/traces, skipped when it is not there) is dealt to three tenants by row index
and sped up to 0.9 of saturation; policy slo_aware, per-tenant histograms and a full result table. Best of five. The figures
measured of Vidur's event loop on the same rows (336 to 504 requests/s) stand beside ours.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from lmperf.compiled import state
from loadgen.offline.cell import CellJob, ReplayRecipe, figures, record_cell
from loadgen.trace.public.detect import read_public
from loadgen.workload.replay import ReplayRows
from scheduler.cost import CostModel
from scheduler.saturation import saturation
from scheduler.server_model.spec import PRESETS
from scheduler.slots import Slots
from tenants.slo import Slo
from tenants.tenant import Tenant

TRACE = (
    Path(__file__).resolve().parent.parent.parent / "shared/traces/azure-llm-2023/AzureLLMInferenceTrace_conv.csv.gz"
)
VIDUR = (336.0, 504.0)
LOAD = 0.9
REPEATS = 5
POLICIES = ("fifo", "wfq", "slo_aware", "committed", "vtc", "drr")


def job(policy: str) -> CellJob:
    rows = read_public(TRACE)
    tenants = tuple(
        Tenant(name=name, slo=Slo(ttft_ns=limit, tpot_ns=20_000_000, attainment=0.99))
        for name, limit in (("a", 500_000_000), ("b", 1_500_000_000), ("c", 10_000_000_000))
    )
    replay = ReplayRows(
        arrival_ns=rows.arrival_ns,
        prompt_tokens=np.maximum(rows.prompt_tokens, 1),
        output_tokens=np.maximum(rows.output_tokens, 1),
        tenant=np.arange(len(rows)) % 3,
    )
    recipe = ReplayRecipe(replay, tenants)
    server, slots, cost = PRESETS["h200-llama-8b"], Slots(sequences=64, prefill_tokens=2048), CostModel()
    requests = list(recipe.source(0, {}).absolute())
    rate = saturation(
        [requests[i] for i in np.random.default_rng(0).permutation(len(requests))[:5000]], server, slots, cost
    )
    offered = float((replay.prompt_tokens + 2 * replay.output_tokens).sum()) * 1e9 / int(replay.arrival_ns.max())
    speed = LOAD * rate / offered
    window = (0, round(int(replay.arrival_ns.max()) / speed) + 1)
    return CellJob(
        policy=policy,
        policy_label=policy,
        load="azure",
        seed=0,
        recipe=replace(recipe, speed=speed),
        server=server,
        slots=slots,
        cost=cost,
        window_ns=window,
    )


def main() -> None:
    if not TRACE.exists():
        print(f"skipped: {TRACE} is not there")
        return
    vidur = VIDUR
    core = "compiled" if state().compiled else "plain Python (python -m lmperf.compiled makes it faster)"
    print(
        f"Azure conversation rows at {LOAD} of saturation, one core, best of {REPEATS}; the scheduling core is {core}"
    )
    print(f"{'policy':12s} {'requests/s':>12s} {'x Vidur (336 to 504)':>22s}")
    for policy in POLICIES:
        work = job(policy)
        best = 0.0
        for _ in range(REPEATS):
            start = time.perf_counter()
            recorder = record_cell(work)
            figures(work, recorder.columns())
            best = max(best, len(recorder.columns()) / (time.perf_counter() - start))
        print(f"{policy:12s} {best:12,.0f} {best / vidur[1]:10.0f} to {best / vidur[0]:.0f}")


if __name__ == "__main__":
    main()
