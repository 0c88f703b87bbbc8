"""What a command says while it works: stages, a line of progress, never more work than a line costs.

Progress goes to stderr, results to stdout. On a terminal the line is rewritten twice a second by the caller's own ticks (a
live display that redraws from a thread would disturb what is measured); elsewhere one line every ten seconds is printed.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger("lmperf")


class Progress:
    """``quiet`` keeps stages in the log only."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._last = 0.0
        self._width = 0

    def stage(self, text: str) -> None:
        """A new stage begins."""
        log.info("%s", text)
        if not self._quiet:
            self._clear()
            self._write(f"{text}\n")

    def waiting(self, elapsed_s: float, reason: str) -> None:
        """A server is not ready yet."""
        self._line(f"waiting for the server, {elapsed_s:.0f} s: {reason}")

    def running(
        self,
        now_s: float,
        duration_s: float | None,
        *,
        done: int,
        queued: int,
        in_flight: int,
        failed: int,
        expected: float | None,
    ) -> None:
        """Where a live run stands."""
        of_time = f"{now_s:6.1f} s" if duration_s is None else f"{min(now_s, duration_s):6.1f} of {duration_s:.0f} s"
        of_requests = f"{done}" if expected is None else f"{done} of about {expected:.0f}"
        drain = ", draining" if duration_s is not None and now_s > duration_s else ""
        fails = f", {failed} failed" if failed else ""
        self._line(f"{of_time}{drain}: {of_requests} requests done, {queued} queued, {in_flight} in flight{fails}")

    def counting(self, what: str, done: int, total: int, started_s: float) -> None:
        """``done`` of ``total`` pieces of work since ``started_s`` (monotonic). The time left is said from the second piece on:
        the first has the start in it, and says little of the rest."""
        elapsed = time.monotonic() - started_s
        left = f", about {elapsed / done * (total - done):.0f} s left" if done > 1 else ""
        self._line(f"{what}: {done} of {total}, {elapsed:.0f} s{left}")
        if done == total:
            self.done()

    def done(self) -> None:
        """The line is finished with."""
        self._clear()

    def _line(self, text: str) -> None:
        if self._quiet:
            return
        if self._terminal:
            padded = text[:150].ljust(self._width)
            self._width = len(text[:150])
            self._write("\r" + padded)
        elif time.monotonic() - self._last >= 10.0:
            self._last = time.monotonic()
            self._write(text + "\n")

    def _clear(self) -> None:
        if self._terminal and self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def results_console() -> Console:
    """Where results are printed: stdout, as wide as the terminal, and wide enough for a table where there is none. Text is
    printed as it is: square brackets are intervals here, never markup."""
    from rich.console import Console  # noqa: PLC0415 (only a command that has results needs it)

    class Results(Console):
        def on_broken_pipe(self) -> None:
            """The front door knows what to do; rich would exit with 1."""
            raise BrokenPipeError

    console = Results(file=sys.stdout, highlight=False, markup=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Results(file=sys.stdout, highlight=False, markup=False, width=128)
