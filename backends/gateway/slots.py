"""The slots of a gateway's upstreams while it runs: as configured, or moved by a controller, also across reloads.

A reload that changes tenants or the policy leaves D where the controller had it; one that changes the rule goes on from
there; one that changes an upstream's slots starts from what it states.

A controller that raises is told of at once (log, readiness, metrics) and stops there: D stays as it is, requests are served
on. The next reload starts it anew.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial

import msgspec

from backends.gateway.config import ConfigError, GatewayConfig
from backends.gateway.logs import event, where
from backends.gateway.upstreams import Upstreams
from backends.protocol import BackendError, Clock
from backends.slot_loop import SlotLoop
from scheduler.auto_rule import control_of
from scheduler.drivers.live import LiveDriver
from scheduler.request import Outcome
from scheduler.slot_control import SlotControl, SlotMove
from scheduler.slots import Slots


class GatewaySlots:
    """``starting`` is what the dispatcher is made with; then ``start``, and ``observe`` every outcome."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._control = _control(config, _stated(config), 0)
        self._earlier: list[SlotMove] = []
        self._driver: LiveDriver | None = None
        self._upstreams: Upstreams | None = None
        self._clock: Clock | None = None
        self._task: asyncio.Task[None] | None = None
        self._unread: set[str] = set()
        self._failed = False

    @property
    def controlled(self) -> bool | None:
        """Whether the controller runs; None when the slots are as configured. False from the moment it failed."""
        return None if self._control is None else not self._failed

    @property
    def starting(self) -> dict[str, Slots]:
        return _stated(self._config) if self._control is None else dict(self._control.slots)

    @property
    def moves(self) -> tuple[SlotMove, ...]:
        """How the slots went since the start."""
        return (*self._earlier, *(() if self._control is None else self._control.moves))

    async def start(self, driver: LiveDriver, upstreams: Upstreams, clock: Clock) -> None:
        """Raises ConfigError when an upstream that is up does not tell the waiting count that the rule needs."""
        self._driver, self._upstreams, self._clock = driver, upstreams, clock
        if self._control is not None and self._control.reads_waiting:
            for server in upstreams:
                if server.up:
                    try:
                        await upstreams.waiting(server.name)
                    except BackendError as error:
                        raise ConfigError(f"upstream {server.name!r}: {error}") from error
        self._begin()

    def observe(self, outcome: Outcome) -> None:
        if self._control is None or self._failed:
            return
        try:
            self._control.observe(outcome)
        except Exception as error:  # noqa: BLE001 (a fault of the controller is none of the request that it was told of)
            self._broke(error)
            self._end()

    def change(self, config: GatewayConfig) -> list[str]:
        """Follow another configuration (one that was checked); what changed, in words."""
        old, self._config = self._config, config
        driver = self._driver
        assert driver is not None, "changes come to a gateway that runs"
        stated = _stated(config)
        changed = [f"slots of {name}" for name, slots in stated.items() if slots != _stated(old)[name]]
        if config.auto != old.auto or self._failed:
            changed.append("auto slots")
        if not changed:
            if self._control is not None:
                self._control.set_tenants(config.tenants)
            return []
        if self._control is not None:
            self._earlier += self._control.moves
            if changed == ["auto slots"]:
                kept = self._control.slots
                stated = stated if config.auto is None else dict(kept)
        self._failed = False
        self._control = _control(config, stated, driver.at())
        for name, slots in (stated if self._control is None else self._control.slots).items():
            driver.set_slots(name, slots.sequences, slots.prefill_tokens)
        self._end()
        self._begin()
        return changed

    def status(self) -> dict[str, object] | None:
        """For the status page; None when the slots are as configured."""
        if self._config.auto is None or self._control is None:
            return None
        last = {name: self._control.sequences(name) for name in self._control.slots}
        return {"rule": msgspec.to_builtins(self._config.auto), "now": last, "failed": self._failed}

    async def close(self) -> None:
        task = self._task
        self._end()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    def _begin(self) -> None:
        if self._control is None:
            return
        driver, upstreams, clock = self._driver, self._upstreams, self._clock
        if driver is None or upstreams is None or clock is None:
            raise RuntimeError("the gateway's slots were not started")
        looks = {server.name: partial(self._look, upstreams, server.name) for server in upstreams}
        self._task = asyncio.create_task(SlotLoop(driver, self._control, clock, looks).run())
        self._task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None and task is self._task:
            self._broke(error)

    def _broke(self, error: BaseException) -> None:
        self._failed = True
        event("slot_control_failed", level=logging.ERROR, exception=type(error).__name__, at=where(error))

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look(self, upstreams: Upstreams, name: str) -> int:
        try:
            waiting = await upstreams.waiting(name)
        except BackendError as error:
            if name not in self._unread:
                self._unread.add(name)
                event("waiting_count_unread", level=logging.WARNING, upstream=name, error=error.kind)
            raise
        self._unread.discard(name)
        return waiting


def _stated(config: GatewayConfig) -> dict[str, Slots]:
    return {upstream.name: upstream.slots for upstream in config.upstreams}


def _control(config: GatewayConfig, slots: dict[str, Slots], now_ns: int) -> SlotControl | None:
    return None if config.auto is None else control_of(config.auto, config.tenants, slots, now_ns)
