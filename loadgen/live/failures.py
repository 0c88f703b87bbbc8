"""Why requests failed, in the server's own words: the first detail of each error class, for a report to quote."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.request import ErrorClass, Outcome

_LONGEST = 300

REFUSALS = frozenset(
    {
        ErrorClass.REFUSED,
        ErrorClass.RESET,
        ErrorClass.DNS,
        ErrorClass.TLS,
        ErrorClass.CONNECT_TIMEOUT,
        ErrorClass.HTTP_4XX,
        ErrorClass.HTTP_5XX,
        ErrorClass.BAD_STREAM,
        ErrorClass.SERVER_ERROR,
    }
)
"""The server, or the way to it, would not serve the request; a time-out or a shed request is not among them."""


FailureState = tuple[dict[ErrorClass, int], dict[ErrorClass, str]]
"""Counts, and the first details, by class."""


class Failures:
    """Stands before the recorder. Keeps one text a class, so it does not grow with the run."""

    def __init__(self, on_outcome: Callable[[Outcome], None]) -> None:
        self._on_outcome = on_outcome
        self._counts: dict[ErrorClass, int] = {}
        self._details: dict[ErrorClass, str] = {}

    def __call__(self, outcome: Outcome) -> None:
        self._on_outcome(outcome)
        kind = outcome.error_class
        if kind is None or kind not in REFUSALS:
            return
        self._counts[kind] = self._counts.get(kind, 0) + 1
        if outcome.detail and kind not in self._details:
            http = "" if outcome.http_status is None else f"HTTP {outcome.http_status}: "
            self._details[kind] = " ".join(f"{http}{outcome.detail}".split())[:_LONGEST]

    def state(self) -> FailureState:
        return (self._counts, self._details)

    def add(self, state: FailureState) -> None:
        """Add what another worker saw."""
        counts, details = state
        for kind, count in counts.items():
            self._counts[kind] = self._counts.get(kind, 0) + count
        self._details = {**details, **self._details}

    def notes(self) -> list[str]:
        """One sentence a class, most frequent first. A server may echo a key in its text: redact before it is shown."""
        found = []
        for kind, count in sorted(self._counts.items(), key=lambda item: -item[1]):
            detail = self._details.get(kind)
            found.append(f"{count} requests failed with {kind}" + (f"; the first: {detail}" if detail else ""))
        return found
