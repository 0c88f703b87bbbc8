"""What one worker of a live run is told: all that the parent found out, so that no worker asks or decides anything again.

It travels pickled over the worker's own socket and is written nowhere: the wires hold resolved secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from backends.openai import Endpoint
from backends.protocol import BackendMetadata, Capabilities
from backends.wire.options import WireOptions
from lmperf.scenario.plan import Plan
from loadgen.live.calls import TenantWire
from loadgen.offline.cell import Recipe
from loadgen.trace.schema import TraceMetadata
from loadgen.workload.share import Share
from scheduler.dispatcher_config import DispatcherConfig

COLUMNS_OF_WORKERS = ".columns-*"
"""In the folder of a run: what its workers leave for the parent to take over."""

WORKER_MODULE = "lmperf.wiring.live_worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAccess:
    """The ready servers, as another process reaches them: ``urls`` by the name of each. ``api_key`` and header values are
    secrets, resolved."""

    urls: Mapping[str, str]
    api_key: str | None
    headers: Mapping[str, str]
    options: WireOptions
    metadata: BackendMetadata
    capabilities: Capabilities
    model: str
    endpoint: Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJob:
    """``run``: what the ids of all requests of this run begin with at the server. ``shared``: the queue is the parent's;
    else the worker has a dispatcher of its own. ``exactness``: what the parent found of prompt lengths, in words.
    ``tells_pace``: the parent wants to hear how fast answers came, since it moves the slots by that.
    ``metadata``: of its rows, but for the start, which is not known yet.
    """

    name: str
    share: Share
    plan: Plan
    recipe: Recipe
    growth: Mapping[str, float]
    server: ServerAccess
    wires: Mapping[str, TenantWire]
    run: str
    exactness: str
    shared: bool
    tells_pace: bool
    dispatcher: DispatcherConfig
    until_ns: int | None
    metadata: TraceMetadata
    window_ns: tuple[int, int]
    directory: Path
    connections: int

    @property
    def columns_file(self) -> Path:
        """Where the worker leaves its compact columns as it ends, for the parent to take over."""
        return self.directory / COLUMNS_OF_WORKERS.replace("*", self.name)
