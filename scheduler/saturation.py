"""Saturation: the cost units/s that a server sustains with a never-empty queue.

All requests are queued at t = 0 and served first in, first out through the scenario's slots. The rate is taken between the
instants at which a tenth and nine tenths of them have been dispatched, so that neither filling nor draining the batch
counts. It is a property of the server, the slots and the mix, measured once and the same for every policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from scheduler.cost import CostModel
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.simulated import Simulation
from scheduler.request import ArrivalKind, Outcome, Request
from scheduler.server_model.build import build_server
from scheduler.server_model.prefix_cache import BLOCK_TOKENS
from scheduler.server_model.spec import ServerModelSpec
from scheduler.slots import Slots
from tenants.tenant import Tenant

MIN_REQUESTS = 500


class NothingServedError(ValueError):
    """The server can serve no request of the mix; the message says why for one of them."""


def saturation(
    requests: Sequence[Request],
    server: ServerModelSpec,
    slots: Slots,
    cost: CostModel,
    *,
    block_tokens: int = BLOCK_TOKENS,
) -> float:
    """Cost units/s. ``requests``: some thousands of the mix, already shuffled; only their lengths, tenants and prefix blocks
    (of ``block_tokens`` each) are used.

    Raises ValueError for fewer than 500 requests, which would measure the edges, and NothingServedError.
    """
    if len(requests) < MIN_REQUESTS:
        raise ValueError(f"saturation needs at least {MIN_REQUESTS} requests of the mix, got {len(requests)}")
    queued = [
        msgspec.structs.replace(
            request,
            id=number,
            arrival_ns=0,
            arrival_kind=ArrivalKind.ABSOLUTE,
            cancel_after_ns=None,
            ttl_ns=None,
            first_token_timeout_ns=None,
            timeout_ns=None,
        )
        for number, request in enumerate(requests)
    ]
    tenants = tuple(Tenant(name=name) for name in sorted({request.tenant for request in queued}))
    config = DispatcherConfig(tenants=tenants, policy="fifo", cost=cost, backends={"server": slots})
    outcomes: list[Outcome] = []
    model = build_server(server.law, server.limits, block_tokens)
    Simulation(Dispatcher(config), {"server": model}, queued, outcomes.append).run()
    served = [o for o in outcomes if o.dispatched_ns is not None and o.finished_ns is not None]
    if not served:
        raise NothingServedError(f"the server cannot serve any request of the mix; the first: {outcomes[0].detail}")
    dispatched = sorted(o.dispatched_ns for o in served if o.dispatched_ns is not None)
    start_ns, end_ns = dispatched[len(dispatched) // 10], dispatched[len(dispatched) * 9 // 10]
    if end_ns <= start_ns:
        start_ns, end_ns = 0, max(o.ended_ns for o in served)
    done = sum(
        cost.of(o.request.prompt_tokens, o.output_tokens or 0) for o in served if start_ns < o.ended_ns <= end_ns
    )
    return done * 1e9 / (end_ns - start_ns)
