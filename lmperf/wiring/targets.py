"""The backend of a live run, ready: the embedded server started, or a server that was waited for and asked what it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from backends.emulator.config import EmulatorConfig
from backends.emulator.process import EmulatorProcess
from backends.openai import Endpoint, OpenAIBackend
from backends.probe import resolve_model, wait_ready
from backends.protocol import BackendError, BackendMetadata, CallTimeouts, Capabilities, Clock
from backends.registry import BACKENDS
from backends.wire.options import WireOptions
from lmperf.scenario.checks import EMBEDDED
from lmperf.scenario.load import Scenario
from lmperf.scenario.plan import BackendSpec, Plan, Timeouts
from lmperf.scenario.server_model import Endpoint as EndpointChoice
from lmperf.wiring.dispatching import BACKEND
from lmperf.wiring.servers import unscaled_server_model
from scheduler.server_model.spec import load_server_model

OnWait = Callable[[float, str], None]


@dataclass(frozen=True, slots=True)
class Target:
    """A ready server, or several. ``backends`` by the names that the dispatcher knows; what is asked of one (its model, its
    tokenizer) is asked of ``backend``, the first. ``emulator`` is its process when it is the embedded one."""

    backends: Mapping[str, OpenAIBackend]
    metadata: BackendMetadata
    capabilities: Capabilities
    model: str
    endpoint: Endpoint
    emulator: EmulatorProcess | None

    @property
    def backend(self) -> OpenAIBackend:
        return next(iter(self.backends.values()))


@asynccontextmanager
async def ready_target(
    plan: Plan, scenario: Scenario, clock: Clock, *, ready_timeout_s: float, on_wait: OnWait
) -> AsyncIterator[Target]:
    """The plan's backend while the block runs. Raises BackendError or EmulatorProcessError."""
    spec = plan.backend
    async with AsyncExitStack() as stack:
        emulator = None
        urls = dict(spec.urls) or {BACKEND: spec.url or ""}
        if spec.kind == EMBEDDED:
            emulator = await stack.enter_async_context(EmulatorProcess(_emulator_config(plan)))
            urls = {BACKEND: emulator.url}
        elif BACKENDS.target(spec.kind) != BACKENDS.target("openai"):
            raise BackendError(
                f"backend {spec.kind!r} cannot be load-tested over HTTP; use kind openai with its url", kind="bad_url"
            )
        options = wire_options(spec)
        api_key = _secret(scenario, scenario.model.backend.api_key)
        headers = {name: scenario.secrets.resolve(value) for name, value in scenario.model.backend.headers.items()}
        backends: dict[str, OpenAIBackend] = {}
        found: list[tuple[BackendMetadata, Capabilities]] = []
        for name, written in urls.items():
            url = scenario.secrets.resolve(written)
            await wait_ready(
                url, api_key=api_key, headers=headers, options=options, timeout_s=ready_timeout_s, on_progress=on_wait
            )
            backend = OpenAIBackend(url, api_key=api_key, headers=headers, options=options, clock=clock)
            stack.push_async_callback(backend.close)
            backends[name] = backend
            found.append((await backend.get_metadata(), await backend.capabilities()))
        metadata, capabilities = found[0]
        model = resolve_model(metadata, spec.model)
        for other, _ in found[1:]:
            resolve_model(other, model)
        yield Target(
            backends=backends,
            metadata=metadata,
            capabilities=capabilities,
            model=model,
            endpoint=_endpoint(spec.endpoint, capabilities),
            emulator=emulator,
        )


def _secret(scenario: Scenario, text: str | None) -> str | None:
    return None if text is None else scenario.secrets.resolve(text)


def _emulator_config(plan: Plan) -> EmulatorConfig:
    spec = plan.backend
    assert spec.server_model is not None, "the embedded server has a model"
    return EmulatorConfig(
        server_model=unscaled_server_model(load_server_model(spec.server_model), spec),
        time_scale=spec.time_scale,
        model_name=spec.model,
        seed=plan.seed,
    )


def wire_options(spec: BackendSpec) -> WireOptions:
    """Limits of the wire client, for what is no tenant's too; first-token and total time-outs are the dispatcher's."""
    timeouts = call_timeouts(spec.timeouts)
    return WireOptions(
        connect_timeout_s=timeouts.connect_s,
        token_timeout_s=timeouts.between_tokens_s,
        insecure=spec.insecure,
        ca_file=spec.ca_file,
        proxy=spec.proxy,
    )


def call_timeouts(timeouts: Timeouts) -> CallTimeouts:
    """What of a tenant's or the backend's time-outs is kept on the wire."""
    between_ns = timeouts.between_tokens_ns
    return CallTimeouts(
        connect_s=timeouts.connect_ns / 1e9, between_tokens_s=None if between_ns is None else between_ns / 1e9
    )


def _endpoint(choice: EndpointChoice, capabilities: Capabilities) -> Endpoint:
    """What was asked for, else chat unless the server is known not to have it."""
    if choice is EndpointChoice.CHAT:
        return "chat"
    if choice is EndpointChoice.COMPLETIONS:
        return "completions"
    return "completions" if capabilities.chat is False else "chat"
