"""The engine with everything that watches it: counters, tenants, the truth file, the figures of ``/lmperf/stats``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from backends.emulator.config import EmulatorConfig
from backends.emulator.engine import Engine, Generation, TokenSink
from backends.emulator.metrics import EngineMetrics, Gauges, new_registry
from backends.emulator.stats import EmulatorStats
from backends.emulator.truth import TruthWriter
from backends.wakeup import new_wakeup
from scheduler.request import Request
from scheduler.server_model.build import build_server


class Core:
    """Made on the running loop that it works on. ``on_failure``: told when the engine cannot go on."""

    def __init__(self, config: EmulatorConfig, *, on_failure: Callable[[BaseException], None]) -> None:
        self._config = config
        self._spec = config.scaled_model
        self._model = build_server(self._spec.law, self._spec.limits)
        self._metrics = EngineMetrics()
        self._epoch_ns = time.monotonic_ns()
        self._truth = None if config.truth_path is None else TruthWriter(config.truth_path)
        self._loop = asyncio.get_running_loop()
        self._engine = Engine(
            self._model,
            clock=time.monotonic_ns,
            epoch_ns=self._epoch_ns,
            metrics=self._metrics,
            new_wakeup=lambda callback: new_wakeup(self._loop, callback),
            on_failure=on_failure,
        )
        self.registry = new_registry(self._metrics, config.served_name, self._gauges)

    @property
    def failure(self) -> BaseException | None:
        return self._engine.failure

    def model_time_ns(self, at_ns: int) -> int:
        """A monotonic time on the model's clock, which starts with the server."""
        return at_ns - self._epoch_ns

    def submit(self, request: Request, *, output_tokens: int, received_ns: int, sink: TokenSink) -> Generation:
        generation = Generation(
            request,
            output_tokens=output_tokens,
            received_ns=received_ns,
            sink=sink,
            done=self._loop.create_future(),
            keep_times=self._truth is not None,
        )
        self._engine.submit(generation)
        self._metrics.received += 1
        self._metrics.prompt_tokens += request.prompt_tokens
        tenant = self._metrics.tenant(request.tenant)
        tenant.requests += 1
        tenant.prompt_tokens += request.prompt_tokens
        return generation

    def finished(self, generation: Generation, response_id: str, client_id: str | None) -> None:
        """Every token has been handed to the sink."""
        self._ended(generation, response_id, client_id, finished=True)

    def abandon(self, generation: Generation, response_id: str, client_id: str | None) -> None:
        """The client is gone; what was generated until then is kept in the counts."""
        finished = self._engine.abort(generation.request.id) is None
        if not finished:
            self._metrics.tenant(generation.request.tenant).aborted += 1
        self._ended(generation, response_id, client_id, finished=finished)

    def _ended(self, generation: Generation, response_id: str, client_id: str | None, *, finished: bool) -> None:
        self._metrics.tenant(generation.request.tenant).generation_tokens += generation.emitted
        if self._truth is not None:
            self._truth.write(
                generation,
                response_id=response_id,
                client_id=client_id,
                tenant=generation.request.tenant,
                finished=finished,
            )

    def stats(self) -> EmulatorStats:
        metrics, gauges = self._metrics, self._gauges()
        exact = metrics.lateness_exact
        stepped = metrics.steps > 0
        return EmulatorStats(
            uptime_s=(time.monotonic_ns() - self._epoch_ns) / 1e9,
            cpu_s=gauges.cpu_s,
            steps=metrics.steps,
            lateness_p50_ns=int(exact.get_value_at_percentile(50)) if stepped else None,
            lateness_p99_ns=int(exact.get_value_at_percentile(99)) if stepped else None,
            lateness_max_ns=metrics.lateness_max_ns if stepped else None,
            requests_received=metrics.received,
            requests_running=gauges.running,
            requests_waiting=gauges.waiting,
            requests_finished=metrics.finished,
            requests_aborted=metrics.aborted,
            prompt_tokens=metrics.prompt_tokens,
            generation_tokens=metrics.generation_tokens,
            preemptions=metrics.preemptions,
            kv_tokens=self._model.kv_tokens,
            time_scale=self._config.time_scale,
            model=self._config.served_name,
            server_model=self._spec,
        )

    def _gauges(self) -> Gauges:
        capacity = self._model.kv_capacity
        return Gauges(
            running=self._model.running,
            waiting=self._engine.in_flight - self._model.running,
            kv_usage=self._model.kv_tokens / capacity if capacity else 0.0,
            cpu_s=time.process_time(),
        )

    def close(self) -> None:
        self._engine.close()
        if self._truth is not None:
            self._truth.close()
