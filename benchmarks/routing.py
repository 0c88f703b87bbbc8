"""What a routing rule changes for a fleet: prefix hits, first tokens and throughput of four replicas behind one queue.

    python -m benchmarks.routing [--replicas K]

The Mooncake conversation trace (FAST 2025; ../shared/traces, skipped when it is not there): an hour of long prompts with the
hashes of their blocks of 512 tokens, all of which begin with the same block. It is replayed at 1.7 and at 4 times its pace
(below and above saturation), on replicas of the preset with the prefix cache on: without slots, where each rule decides at the
arrival, as a router in front of engines does, and with the slots that a scenario has by default, where requests wait in the
queue and go where there is room. The hit share is tokens found over tokens of prompts; throughput is over the time until the
last request ended.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from lmperf.scenario.server_specs import DEFAULT_PREFILL_TOKENS, DEFAULT_SEQUENCES
from lmperf.wiring.captured import captured_run
from loadgen.workload.replay import MOONCAKE_BLOCK_TOKENS
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.simulated import Simulation
from scheduler.request import Outcome, Request, Status
from scheduler.routing import Routing, Rule
from scheduler.server_model.build import build_server
from scheduler.server_model.spec import PRESETS
from scheduler.slots import Slots
from tenants.tenant import Tenant

TRACE = Path(__file__).resolve().parents[1].parent / "shared/traces/mooncake-fast25/conversation_trace.jsonl.gz"
TENANT = Tenant(name="all")
SLOTS = {
    "no slots": Slots(),
    "default slots": Slots(sequences=DEFAULT_SEQUENCES, prefill_tokens=DEFAULT_PREFILL_TOKENS),
}
SPEEDS = (1.7, 4.0)
ROUTINGS = (
    Routing(rule=Rule.LEAST_WORK),
    Routing(rule=Rule.ROUND_ROBIN),
    Routing(rule=Rule.SESSION),
    Routing(rule=Rule.PREFIX, slack=0.0),
    Routing(rule=Rule.PREFIX),
    Routing(rule=Rule.PREFIX, slack=65_536.0),
    Routing(rule=Rule.PREFIX, slack=262_144.0),
    Routing(rule=Rule.PREFIX, slack=None),
)


def requests_of(path: Path, speed: float) -> list[Request]:
    """The whole trace as one tenant's requests."""
    recipe = replace(captured_run(path, recorded=True).recipe, tenants=(TENANT,), speed=speed)
    return list(recipe.source(0, {}).absolute())


def simulated(requests: Sequence[Request], routing: Routing, slots: Slots, replicas: int) -> list[Outcome]:
    """The outcomes of one run on equal replicas."""
    server = PRESETS["h200-llama-8b"]
    limits = msgspec.structs.replace(server.limits, prefix_cache=True)
    names = [f"server-{number}" for number in range(1, replicas + 1)]
    config = DispatcherConfig(
        tenants=(TENANT,),
        policy="fifo",
        prefill_rate=server.law.prefill_rate,
        backends=dict.fromkeys(names, slots),
        routing=routing,
    )
    models = {name: build_server(server.law, limits, MOONCAKE_BLOCK_TOKENS) for name in names}
    outcomes: list[Outcome] = []
    Simulation(Dispatcher(config), models, requests, outcomes.append).run()
    return outcomes


def row(outcomes: Sequence[Outcome]) -> str:
    """Hit share, TTFT P50 and P99, output tokens/s, the busiest replica's share of the prompt tokens."""
    served = [o for o in outcomes if o.status is Status.OK]
    if len(served) < len(outcomes):
        return f"{len(outcomes) - len(served)} of {len(outcomes)} requests were not served"
    ttft_s = np.array([(o.first_token_ns or 0) - o.request.arrival_ns for o in served]) / 1e9
    prompts = sum(o.request.prompt_tokens for o in served)
    found = sum(o.cached_prompt_tokens or 0 for o in served)
    span_s = (max(o.ended_ns for o in served) - min(o.request.arrival_ns for o in served)) / 1e9
    at: dict[str, int] = {}
    for o in served:
        at[o.backend or ""] = at.get(o.backend or "", 0) + o.request.prompt_tokens
    p50, p99 = np.percentile(ttft_s, [50, 99])
    tokens = sum(o.output_tokens or 0 for o in served) / span_s
    return f"{found / prompts:9.1%} {p50:10.3f} {p99:10.3f} {tokens:10,.0f} {max(at.values()) / prompts:10.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=4, metavar="K")
    args = parser.parse_args()
    if not TRACE.exists():
        print(f"skipped: {TRACE} is not there")
        return
    for speed in SPEEDS:
        requests = requests_of(TRACE, speed)
        for label, slots in SLOTS.items():
            print(f"\n{len(requests):,} requests at {speed:g} times their pace on {args.replicas} replicas, {label}")
            print(
                f"{'routing':24s} {'hit share':>9s} {'TTFT P50 s':>10s} {'P99 s':>10s} {'tokens/s':>10s} {'busiest':>10s}"
            )
            for routing in ROUTINGS:
                print(f"{routing.text:24s} {row(simulated(requests, routing, slots, args.replicas))}", flush=True)


if __name__ == "__main__":
    main()
