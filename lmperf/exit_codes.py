"""Exit codes of every command: documented, stable, and which one wins when several apply.

The codes from 98 up keep clear of the shell's own (1, 2, 126 to 165). A command that could measure and found nothing
wrong exits 0; all others say what a script may do next (retry, fix the file, fail the build).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """What a command came to. ``meaning`` is the sentence that help and docs print."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        member = int.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    OK = 0, "every SLO and threshold kept, or none was stated and at least one request succeeded"
    UNDECIDED = (
        98,
        "the run was too short, or too close to the bar, to decide an SLO or threshold (only with --strict, else 0)",
    )
    BROKEN = 99, "an SLO or a threshold was broken, or nothing succeeded"
    BAD_CONFIG = 104, "the scenario, the flags or a file named in them is wrong; nothing was run"
    INTERRUPTED = 105, "interrupted by a signal; what had been measured is written"
    BACKEND = (
        106,
        "the server is unreachable, refuses, stopped answering, is no such server, or knows no such key or model",
    )
    INVALID = 107, "the load generator itself fell behind, so the figures describe it and not the server"
    REGRESSION = 108, "a run is worse than the one it was compared with"


# 105, 107, 99, 98 is the documented order. 104 and 106 stand before 107 because then nothing was measured that could be
# invalid, or the server died, which explains whatever else is wrong; 108 stands after 107 because an invalid run proves
# no regression (`compare` prints both reasons), and before 99 because `compare` was asked for it.
PRECEDENCE: tuple[ExitCode, ...] = (
    ExitCode.INTERRUPTED,
    ExitCode.BAD_CONFIG,
    ExitCode.BACKEND,
    ExitCode.INVALID,
    ExitCode.REGRESSION,
    ExitCode.BROKEN,
    ExitCode.UNDECIDED,
    ExitCode.OK,
)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """The one code to exit with when several apply (see ``PRECEDENCE``); OK when there are none."""
    return min(codes, key=PRECEDENCE.index, default=ExitCode.OK)
