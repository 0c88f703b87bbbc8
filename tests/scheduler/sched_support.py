"""Small makers that the scheduler's tests share: tenants, requests, policies, dispatchers, and runs on one server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from scheduler.cost import CostModel
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.drivers.simulated import Simulation
from scheduler.events import AnyAction, AnyEvent
from scheduler.policies.build import PolicyContext, build_policy
from scheduler.policy import Policy
from scheduler.request import Outcome, Request
from scheduler.routing import Routing
from scheduler.server_model.protocol import ServerModel
from scheduler.server_model.single import SingleServer
from scheduler.slots import Slots
from tenants.slo import Slo
from tenants.tenant import Tenant

D = TypeVar("D", bound=Dispatcher)
MS = 1_000_000
S = 1_000_000_000

POLICIES: dict[str, tuple[str, dict[str, object]]] = {
    "fifo": ("fifo", {}),
    "priority": ("priority", {}),
    "wfq": ("wfq", {}),
    "drr": ("drr", {}),
    "vtc": ("vtc", {}),
    "edf": ("edf", {}),
    "slo_aware": ("slo_aware", {}),
    "slo_aware-literal": ("slo_aware", {"reading": "literal"}),
    "committed": ("committed", {"late": "keep"}),
    "committed-credit": ("committed", {"order": "credit", "late": "keep"}),
}
"""Every policy and reading, with ``late: keep`` throughout."""


def tenant(name: str, weight: float = 1.0, *, ttft_ms: float | None = 500.0, **more: object) -> Tenant:
    """A tenant whose TTFT limit holds for 99% of its requests (None: no SLO)."""
    slo = Slo() if ttft_ms is None else Slo(ttft_ns=round(ttft_ms * MS), attainment=0.99)
    return Tenant(name=name, weight=weight, slo=slo, expected_output_tokens=more.pop("expected", 10.0), **more)  # type: ignore[arg-type]


def request(number: int, name: str, at_ns: int = 0, prompt: int = 10, output: int = 10, **more: object) -> Request:
    return Request(
        id=number,
        tenant=name,
        arrival_ns=at_ns,
        prompt_tokens=prompt,
        max_tokens=output,
        target_output_tokens=output,
        **more,  # type: ignore[arg-type]
    )


def policy(which: str, tenants: Sequence[Tenant], *, cost: CostModel | None = None, **options: object) -> Policy:
    """The policy called ``which`` in ``POLICIES``, with further ``options``, for ``tenants``."""
    name, own = POLICIES[which]
    made = build_policy(name, {**own, **options}, PolicyContext(cost=cost or CostModel()))
    made.set_tenants(tenants, 0)
    return made


def drain(queue: Policy, now_ns: int = 0, step_ns: int = 0) -> list[int]:
    """Ids in the order of service, each dispatched and ended (as estimated) before the next."""
    order = []
    while (chosen := queue.select(now_ns)) is not None:
        order.append(chosen.id)
        queue.on_first_token(chosen.id, now_ns)
        queue.on_finish(chosen.id, chosen.prompt_tokens, chosen.target_output_tokens or 1, now_ns)
        now_ns += step_ns
    return order


class WatchedDispatcher(Dispatcher):
    """Tells ``before`` of each event, and ``after`` once it has been handled."""

    def __init__(self, config: DispatcherConfig) -> None:
        super().__init__(config)
        self.before: Callable[[AnyEvent], object] = lambda _: None
        self.after: Callable[[AnyEvent], object] = lambda _: None

    def handle(self, event: AnyEvent) -> list[AnyAction]:
        self.before(event)
        actions = super().handle(event)
        self.after(event)
        return actions


class WatchedPolicy:
    """A policy whose every selection goes through ``select(policy, now_ns)``."""

    def __init__(self, policy: Policy, select: Callable[[Policy, int], Request | None]) -> None:
        self._policy = policy
        self._select = select

    def select(self, now_ns: int) -> Request | None:
        return self._select(self._policy, now_ns)

    def __len__(self) -> int:
        return len(self._policy)

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)


def dispatcher(
    tenants: Sequence[Tenant],
    which: str = "fifo",
    *,
    sequences: int | None = 1,
    prefill_tokens: int | None = None,
    backends: Mapping[str, Slots] | None = None,
    cost: CostModel | None = None,
    routing: Routing | None = None,
    kind: type[D] = Dispatcher,  # type: ignore[assignment]
    **options: object,
) -> D:
    name, own = POLICIES[which]
    return kind(
        DispatcherConfig(
            tenants=tuple(tenants),
            policy=name,
            options={**own, **options},
            cost=cost or CostModel(),
            backends=dict(backends or {"a": Slots(sequences=sequences, prefill_tokens=prefill_tokens)}),
            routing=routing or Routing(),
        )
    )


def simulate(
    core: Dispatcher, replicas: Mapping[str, ServerModel], arrivals: Iterable[Request], **more: object
) -> list[Outcome]:
    """Outcomes in the order in which the requests ended."""
    outcomes: list[Outcome] = []
    Simulation(core, replicas, arrivals, outcomes.append, **more).run()  # type: ignore[arg-type]
    return outcomes


def serve(
    core: Dispatcher, arrivals: Iterable[Request], service_ns: Callable[[Request], int], servers: int = 1
) -> list[Outcome]:
    """Through ``core`` onto ``servers`` single servers, backends ``a``, ``b``, ..."""
    replicas = {chr(ord("a") + i): SingleServer(service_ns) for i in range(servers)}
    return simulate(core, replicas, arrivals)
