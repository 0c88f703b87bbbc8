"""The saturation of a scenario's server, slots and mix, from its server model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec
import numpy as np

from lmperf.scenario.load import Scenario
from lmperf.scenario.model import At, Growth
from lmperf.scenario.plan import Plan
from lmperf.scenario.resolve import resolve
from lmperf.wiring.dispatching import backends_of
from lmperf.wiring.servers import server_model_of
from lmperf.wiring.sources import SourceError, growth_of, recipe_of, trace_rows, traced_loads
from loadgen.offline.cell import DrawnRecipe, Recipe
from loadgen.signals import beside
from scheduler.cost import CostModel
from scheduler.mixing import MASK, mix
from scheduler.request import Request
from scheduler.saturation import MIN_REQUESTS, NothingServedError
from scheduler.saturation import saturation as measure
from scheduler.server_model.spec import ServerModelSpec
from scheduler.slots import Slots

_REQUESTS = 6000
_SEEDS = 20
_ANY_FIGURE = 10_000.0


def resolve_with_saturation(
    scenario: Scenario,
    *,
    at: At | None = None,
    noisy: str | None = None,
    seed: int | None = None,
    server: ServerModelSpec | None = None,
) -> Plan:
    """The plan of a scenario, its saturation measured on the server model where the scenario states none and one is
    known. ``server`` stands in for the scenario's own server model."""
    stated = scenario.model.load.saturation
    first = resolve(scenario, saturation=stated or _ANY_FIGURE, at=At.RAISED if _can_raise(scenario) else At.NONE)
    server = server or server_model_of(first.backend)
    figure = stated
    if figure is None and server is not None:
        figure = saturation_of(first, server)
    plan = resolve(scenario, saturation=figure, at=at, noisy=noisy, seed=seed)
    if not plan.needs_traced_loads or plan.trace is None:
        return plan
    tenants = tuple(planned.tenant for planned in plan.tenants)
    loads = traced_loads(trace_rows(plan.trace, tenants), tenants, plan.cost, plan.trace.speed)
    return resolve(scenario, saturation=figure, at=at, noisy=noisy, seed=seed, traced_loads=loads)


def _can_raise(scenario: Scenario) -> bool:
    """Whether the raised mix is defined: somebody is named to grow, or everybody does."""
    model = scenario.model
    grows = model.load.growth is Growth.ALL or model.load.noisy is not None
    return model.trace is None and (grows or any(t.raised_load is not None for t in model.tenants.values()))


def saturation_of(plan: Plan, server: ServerModelSpec) -> float:
    """Cost units/s of the plan's mix on ``server`` with the plan's slots."""
    slots = list(backends_of(plan).values())
    return saturation_of_servers(recipe_of(plan), server, slots, plan.cost, growth_of(plan.tenants))


def saturation_of_servers(
    recipe: Recipe,
    server: ServerModelSpec,
    slots: Sequence[Slots],
    cost: CostModel,
    growth: dict[str, float] | None = None,
) -> float:
    """Of as many servers, each with its slots: with a never-empty queue none of them needs another's work."""
    alike = Counter(slots)
    return sum(count * saturation_of_recipe(recipe, server, each, cost, growth) for each, count in alike.items())


def saturation_of_recipe(
    recipe: Recipe, server: ServerModelSpec, slots: Slots, cost: CostModel, growth: dict[str, float] | None = None
) -> float:
    """Cost units/s of a recipe's mix: its first few thousand requests, shuffled. Raises SourceError when it has
    none, or none that the server can serve."""
    requests: list[Request] = []
    block_tokens = recipe.source(0, growth or {}).block_tokens
    for seed in range(_SEEDS):
        # A short run is drawn again with other seeds until there are enough; a trace is cycled.
        if isinstance(recipe, DrawnRecipe):
            source = recipe.source(seed, growth or {})
            requests += islice(source.absolute(), _REQUESTS - len(requests))
            users = source.start_closed(0)
            requests += [r for r in users for _ in range(max(1, _REQUESTS // max(1, 20 * len(users))))]
        else:
            again = recipe.source(0, growth or {}).absolute()
            requests += _as_copy(islice(again, _REQUESTS - len(requests)), seed)
        if len(requests) >= _REQUESTS:
            break
    if not requests:
        raise SourceError("no request arrives in this scenario: give it a longer duration_s or a higher load")
    # A run of a few requests has the mix of these few.
    copies = range(1, -(-MIN_REQUESTS // len(requests)))
    requests += [request for copy in copies for request in _as_copy(tuple(requests), _SEEDS + copy)]
    order = np.random.default_rng(0).permutation(len(requests))
    try:
        return beside(lambda: measure([requests[i] for i in order], server, slots, cost, block_tokens=block_tokens))
    except NothingServedError as error:
        raise SourceError(f"{error}: shorten the requests, or give the server a larger KV cache (kv_tokens)") from error


def _as_copy(requests: Iterable[Request], copy: int) -> list[Request]:
    """The same requests once more: their prompts are others, so a prefix cache must not find those of the first."""
    return [
        msgspec.structs.replace(
            r, prefix_blocks=tuple(mix(name + (copy << 48) & MASK) >> 1 for name in r.prefix_blocks)
        )
        if copy and r.prefix_blocks
        else r
        for r in requests
    ]
