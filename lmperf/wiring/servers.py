"""The server model behind a plan's backend: a preset or a file, with the scenario's own limits and offset."""

from __future__ import annotations

import msgspec

from lmperf.scenario.plan import BackendSpec
from scheduler.server_model.spec import ServerModelError, ServerModelSpec, load_server_model


def server_model_of(backend: BackendSpec) -> ServerModelSpec | None:
    """The model at the scenario's time scale; None when the scenario names none (a real server that was never
    calibrated). Raises ServerModelError."""
    if backend.server_model is None:
        return None
    spec = unscaled_server_model(load_server_model(backend.server_model), backend)
    return msgspec.structs.replace(spec, law=spec.law.scaled(backend.time_scale))


def unscaled_server_model(spec: ServerModelSpec, backend: BackendSpec) -> ServerModelSpec:
    """``spec`` with the limits and the offset that the scenario states in place of its own. Raises ServerModelError."""
    law, limits = spec.law, spec.limits
    if backend.offset_ns is not None:
        law = msgspec.structs.replace(law, offset_us=backend.offset_ns / 1000)
    if backend.limits:
        try:
            limits = msgspec.structs.replace(limits, **backend.limits)
        except ValueError as error:
            raise ServerModelError(
                f"backend.limits, with the rest from the server model {spec.name}: {error}"
            ) from error
    return msgspec.structs.replace(spec, law=law, limits=limits)
