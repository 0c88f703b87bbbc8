"""What makes a simulated answer no answer, told before it is simulated: requests that can never run, policies that cannot
differ."""

from __future__ import annotations

from collections.abc import Sequence

from lmperf.wiring.captured import CapturedRun
from lmperf.wiring.sources import NO_RATE
from loadgen.offline.experiment import PolicyChoice
from loadgen.recording.window import FOREVER_NS
from scheduler.server_model.spec import ServerModelSpec
from scheduler.slots import Slots


class NothingRunsError(ValueError):
    """No request of a trace can ever run on a server model; the message says why, and what would be enough."""


def doubts_of(captured: CapturedRun, server: ServerModelSpec, choices: Sequence[PolicyChoice]) -> list[str]:
    """Sentences for the reader of a comparison of ``choices``. Raises NothingRunsError."""
    found = (*captured.recipe.notes, _burst(captured), too_long(captured, server), _no_queue(captured, server, choices))
    return [text for text in found if text]


def too_long(captured: CapturedRun, server: ServerModelSpec) -> str:
    """How many requests can never fit into the KV cache, empty for none. Raises NothingRunsError when all are so."""
    longest, rows = server.limits.longest, captured.recipe.rows
    if longest is None:
        return ""
    tokens = rows.prompt_tokens + rows.output_tokens
    count, total = int((tokens > longest).sum()), len(tokens)
    if not count:
        return ""
    drafted = server.limits.tokens_a_step - 1
    said = (
        f"{count} of {total} requests need more KV than the cache holds ({server.limits.kv_tokens} tokens; "
        f"the longest needs {int(tokens.max()) + drafted})"
    )
    if count == total:
        raise NothingRunsError(said)
    return f"{said}: they fail at once, and count as failed"


def _burst(captured: CapturedRun) -> str:
    """What rates of a burst are over; empty where arrivals make a rate."""
    if captured.window_ns[1] < FOREVER_NS:
        return ""
    return f"{NO_RATE}: goodput is over the time until the last answer"


def _no_queue(captured: CapturedRun, server: ServerModelSpec, choices: Sequence[PolicyChoice]) -> str:
    """Why policies come to the same where nothing ever waits for a slot; empty where something may."""
    moved = captured.auto is not None or any(choice.slots or choice.auto for choice in choices)
    if len(choices) < 2 or moved or server.limits.priority_queue or any(each != Slots() for each in captured.all_slots):
        return ""
    return (
        "slots are unlimited, so no request waits in the queue and the order of the policies cannot matter; to see them "
        f"differ, limit the slots: --set slots.sequences={server.limits.max_num_seqs}"
    )
