"""The event log: one JSON line for the configuration, then one for each event and each action, and its replay.

    {"config": {...}}            first line
    {"event": {...}}             as handled
    {"action": {...}}            what it led to, in order

``replay`` feeds the events to a fresh dispatcher and compares every action: the parity test, and a debugging tool.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.events import AnyAction, AnyEvent


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    config: DispatcherConfig | None = None
    event: AnyEvent | None = None
    action: AnyAction | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Line).decode


class EventLogError(ValueError):
    """A log that cannot be read, or whose replay differs; the message names the line."""


class LoggedDispatcher(Dispatcher):
    """A dispatcher that hands each line of its log to ``write`` (bytes, newline included)."""

    def __init__(self, config: DispatcherConfig, write: Callable[[bytes], object]) -> None:
        super().__init__(config)
        self._write = write
        write(_encode(_Line(config=config)) + b"\n")

    def handle(self, event: AnyEvent) -> list[AnyAction]:
        actions = super().handle(event)
        self._write(_encode(_Line(event=event)) + b"\n")
        for action in actions:
            self._write(_encode(_Line(action=action)) + b"\n")
        return actions


def replay(lines: Iterable[bytes]) -> int:
    """Replay a log; returns the number of events. Raises EventLogError at the first line that differs or is no log."""
    parsed = _parsed(lines)
    number, first = next(parsed, (0, _Line()))
    if first.config is None:
        raise EventLogError(f"event log, line {number}: expected the configuration first")
    dispatcher = Dispatcher(first.config)
    expected: list[AnyAction] = []
    events = 0
    for number, line in parsed:
        if line.event is not None:
            if expected:
                raise EventLogError(
                    f"event log, line {number}: the replay gave an action that is not here: {expected[0]}"
                )
            expected = list(dispatcher.handle(line.event))
            events += 1
        elif line.action is not None:
            got = expected.pop(0) if expected else None
            if got != line.action:
                raise EventLogError(f"event log, line {number}: recorded {line.action}, the replay gave {got}")
        else:
            raise EventLogError(f"event log, line {number}: expected an event or an action")
    if expected:
        raise EventLogError(f"event log ends, but the replay gave one more action: {expected[0]}")
    return events


def _parsed(lines: Iterable[bytes]) -> Iterator[tuple[int, _Line]]:
    for number, line in enumerate(lines, start=1):
        try:
            yield number, _decode(line)
        except msgspec.MsgspecError as error:
            raise EventLogError(f"event log, line {number}: {error}") from error
