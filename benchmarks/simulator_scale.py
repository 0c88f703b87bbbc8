"""Does the simulator stay flat: requests/s and peak memory of 100,000, a million and ten million requests.

    python -m benchmarks.simulator_scale [--full]      (--full: the ten million too, some ten minutes)

A policy's queue (``wfq``), three tenants below saturation, histograms per tenant and metric; requests are drawn as they arrive
and rows are not kept: the compact columns of the recorder go to a nameless file. Each size is a process of its own, so that
its peak is its own. Flat means: the resident set of a run does not depend on its length, and neither do the requests/s.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loadgen.offline.run import simulate
from loadgen.recorder import Recorder
from loadgen.workload.source import Workload
from scheduler.cost import CostModel
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.server_model.spec import PRESETS
from scheduler.slots import Slots
from tenants.slo import Metric, Slo
from tenants.tenant import Tenant
from tenants.traffic import Arrivals, Distribution, Lengths, Traffic

SIZES = (100_000, 1_000_000, 10_000_000)
RATE = 22.0
"""Requests/s of all tenants: with these lengths the queue of the preset's server stays short, so nothing grows with it."""


def tenants() -> list[tuple[Tenant, Traffic]]:
    made = []
    for name, share, prompt, output in (("chat", 0.5, 300, 150), ("rag", 0.2, 2000, 200), ("batch", 0.3, 800, 300)):
        slo = Slo(ttft_ns=1_000_000_000, tpot_ns=20_000_000, attainment=0.99)
        traffic = Traffic(
            arrivals=Arrivals(rate=share * RATE),
            prompt=Lengths(distribution=Distribution.LOGNORMAL, mean=prompt, cv=0.6),
            output=Lengths(distribution=Distribution.LOGNORMAL, mean=output, cv=0.6),
        )
        made.append((Tenant(name=name, slo=slo), traffic))
    return made


def run(requests: int) -> dict[str, float]:
    """One size, in this process."""
    traffic = tenants()
    names = tuple(tenant for tenant, _ in traffic)
    server = PRESETS["h200-llama-8b"]
    slots = {"server": Slots(sequences=64, prefill_tokens=2048)}
    config = DispatcherConfig(tenants=names, policy="wfq", cost=CostModel(), backends=slots)
    source = Workload(traffic, duration_s=None, num_prompts=requests, seed=1)
    with tempfile.TemporaryDirectory() as scratch:
        recorder = Recorder(names, (0, 1 << 62), batch_rows=4096, scratch=Path(scratch))
        started, cpu = time.perf_counter(), time.process_time()
        simulate(source, Dispatcher(config), {"server": server}, recorder)
        wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        seen = recorder.histogram(Metric.TTFT)
    return {
        "requests": seen.count,
        "requests_per_s": requests / wall_s,
        "requests_per_cpu_s": requests / cpu_s,
        "peak_mib": peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="ten million requests too")
    parser.add_argument("--requests", type=int, help="one size in this process; prints JSON")
    args = parser.parse_args()
    if args.requests is not None:
        print(json.dumps(run(args.requests)))
        return
    print(f"{'requests':>12s} {'requests/s':>12s} {'per CPU s':>12s} {'peak, MiB':>10s}")
    for size in SIZES if args.full else SIZES[:2]:
        command = [sys.executable, "-m", "benchmarks.simulator_scale", "--requests", str(size)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"{size:12,d} {found['requests_per_s']:12,.0f} {found['requests_per_cpu_s']:12,.0f} {found['peak_mib']:10,.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
