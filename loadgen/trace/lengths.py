"""The lengths that each row of a trace is replayed with, and what is said of those that it does not state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.recording.stamps import ABSENT
from loadgen.trace.rows import TraceRows
from tenants.measures.columns import Int64s, StatusCode

Bools = NDArray[np.bool_]


def lengths_to_replay(
    output: Int64s, target: Int64s, status: NDArray[np.int8], tenant: NDArray[np.int32], seed: int = 0
) -> tuple[Int64s, Bools]:
    """(output length to replay, imputed) of each row; ABSENT is unknown. The truth is what a request that ended OK
    produced, at least 1: one without output (an embedding) costs its prefill and the step that ends it; else the length
    drawn before sending (``target``); else one drawn from the tenant's true lengths (from all when it has none, 1 when there
    are none at all), which is flagged.
    """
    true = (status == StatusCode.OK) & (output != ABSENT)
    output = np.where(true, np.maximum(output, 1), output)
    lengths = np.where(true, output, target)
    imputed = lengths == ABSENT
    return _drawn(lengths, imputed, np.where(true, output, ABSENT), tenant, seed), imputed


def likely_lengths(stated: Int64s, tenant: NDArray[np.int32], seed: int = 0) -> tuple[Int64s, Bools]:
    """(tokens to replay, imputed) of each row: those stated, above 0; for the others some of the tenant's."""
    imputed = stated <= 0
    return _drawn(stated, imputed, stated, tenant, seed), imputed


def _drawn(values: Int64s, unknown: Bools, pool: Int64s, tenant: NDArray[np.int32], seed: int) -> Int64s:
    """The values, and for the unknown ones some of the tenant's in ``pool`` (above 0; else of all, else 1)."""
    rng = np.random.default_rng(seed)
    known = pool > 0
    values = values.copy()
    for code in np.unique(tenant[unknown]):
        rows = unknown & (tenant == code)
        likely = pool[known & (tenant == code)]
        likely = likely if len(likely) else pool[known]
        values[rows] = rng.choice(likely, int(rows.sum())) if len(likely) else 1
    return values


def with_likely_lengths(rows: TraceRows) -> TraceRows:
    """The rows, those without a prompt's or an output's length with a likely one, as long as any row has one; its notes say
    how many."""
    found: dict[str, Any] = {}
    notes = list(rows.notes)
    for name, kind in (("prompt_tokens", "prompt"), ("output_tokens", "output")):
        lengths, imputed = likely_lengths(getattr(rows, name), rows.tenant)
        if not imputed.all():
            found[name] = lengths
            notes += drawn_notes(imputed, kind)
    return replace(rows, **found, notes=tuple(notes))


def drawn_notes(imputed: Bools, kind: str) -> list[str]:
    """How many rows were given a length that they do not state, as a sentence; none for none. ``kind``: prompt, output."""
    count = int(imputed.sum())
    if not count:
        return []
    likely = "each is taken as long as one drawn from those that do (of its tenant, where it has any)"
    return [f"{count:,} of {len(imputed):,} rows of the trace state no {kind} tokens: {likely}"]


def left_out_notes(prompt: Int64s, output: Int64s) -> list[str]:
    """How many rows cannot be replayed for want of a length, by kind, as a sentence; none for none."""
    lacking = {"prompt": prompt <= 0, "output": output <= 0}
    left_out = int((lacking["prompt"] | lacking["output"]).sum())
    if not left_out:
        return []
    kinds = ", ".join(f"{int(rows.sum()):,} state no {kind} tokens" for kind, rows in lacking.items() if rows.any())
    return [f"{left_out:,} of {len(prompt):,} rows of the trace are left out: {kinds}"]
