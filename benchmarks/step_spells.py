"""Steps of captured runs, recovered from their chunks' stamps: ``python -m benchmarks.step_spells FOLDER...``.

All chunks of a capture in order of time; a new step begins when a stream repeats, or after 2.5 ms without a chunk. Beside the
shipped preset's law, for each capture:

decode    median of (measured - law), ms, over steps without prefill among steps without prefill
held up   of a step just before one with 129 to 1,000 prefilled tokens: how much longer than the law it took, ms (P10, P50,
          P90, and the median of each eighth of the run). Such a prefill is launched operation by operation (graphs are
          captured up to 128 tokens) while its predecessor's tokens wait for the same thread: about the host's launch time
excess    mean of (measured - law), ms, over such a prefill and the steps before and after it: what a prefill costs too much

and, of all captures together, what a step's prefill adds to it and its two neighbours where it was held up by less than 12 ms:
median, ms, by prefilled tokens.

A folder holds what ``benchmarks.fidelity`` reads: ``*.jsonl.gz`` files, or folders of lmperf runs.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from scheduler.server_model.spec import PRESETS

LAW = PRESETS["h200-llama-8b"].law
QUIET_S = 2.5e-3
GRAPH_TOKENS, SHORT_TOKENS = 128, 1000
FAST_LAUNCH_MS = 12.0
SIZES = (384, 512, 640, 768, 1024, 1536, 2048, 3072, 4096)
ENOUGH = 24

Floats = NDArray[np.float64]
Stream = tuple[int, Floats]
"""Prompt tokens, and the instants of the chunks (s)."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Arrays with an element a step: ``at`` its end, s; ``over`` measured - law without prefill, ms (the first: nan);
    ``decoders``; ``prefilled`` tokens."""

    at: Floats
    over: Floats
    decoders: NDArray[np.int64]
    prefilled: NDArray[np.int64]


def streams(path: Path) -> list[Stream]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt") as lines:
            next(lines)
            rows = [json.loads(line) for line in lines]
        return [
            (row["prompt_tokens"], row["sent_s"] + row["ttft_s"] + np.cumsum([0.0, *row["itl_ms"]]) / 1e3)
            for row in rows
        ]
    wanted = ["status", "prompt_tokens", "first_token_ns", "chunk_offsets_us"]
    rows = pq.read_table(path / "requests.parquet", columns=wanted).to_pylist()
    return [
        (row["prompt_tokens"], row["first_token_ns"] / 1e9 + np.asarray(row["chunk_offsets_us"]) / 1e6)
        for row in rows
        if row["status"] == "ok"
    ]


def recover(seen: list[Stream]) -> Steps:
    """The steps of one capture; a chunk counts as one token of context."""
    chunks = sorted((t, i, k) for i, (_, at) in enumerate(seen) for k, t in enumerate(at.tolist()))
    found: list[tuple[float, int, int, int]] = []
    members: set[int] = set()
    start = last = 0.0
    prefilled = prefills = context = 0
    for t, i, k in chunks:
        if members and (i in members or t - last > QUIET_S):
            found.append((start, len(members) - prefills, context, prefilled))
            members, prefilled, prefills, context = set(), 0, 0, 0
        if not members:
            start = t
        members.add(i)
        last = t
        if k == 0:
            prefills += 1
            prefilled += seen[i][0]
        else:
            context += seen[i][0] + k
    if members:
        found.append((start, len(members) - prefills, context, prefilled))
    at, decoders, kv, tokens = (np.array(column) for column in zip(*found, strict=True))
    law_ms = (LAW.a_us + LAW.c_us * decoders + LAW.d_us * kv) / 1e3
    return Steps(at, np.diff(at, prepend=np.nan) * 1e3 - law_ms, decoders, tokens)


def prefills(steps: Steps, most: int = SHORT_TOKENS) -> NDArray[np.int64]:
    """Steps with a prefill of 129 to ``most`` tokens among decodes, whose neighbours have none."""
    inner = np.arange(2, len(steps.at) - 1)
    return inner[
        (steps.prefilled[inner] > GRAPH_TOKENS)
        & (steps.prefilled[inner] <= most)
        & (steps.decoders[inner] > 0)
        & (steps.prefilled[inner - 1] == 0)
        & (steps.prefilled[inner + 1] == 0)
    ]


def line(name: str, steps: Steps) -> str:
    calm = np.flatnonzero((steps.prefilled[1:-1] == 0) & (steps.prefilled[2:] == 0) & (steps.prefilled[:-2] == 0)) + 1
    calm = calm[(steps.decoders[calm] == steps.decoders[calm - 1]) & (calm > 1)]
    text = f"{name:18s}{np.median(steps.over[calm]) if len(calm) else np.nan:+8.2f}"
    at = prefills(steps)
    if len(at) < ENOUGH:
        return f"{text}   ({len(at)} such prefills)"
    held = steps.over[at - 1]
    excess = held + steps.over[at] + steps.over[at + 1] - LAW.b_us * steps.prefilled[at] / 1e3
    text += "".join(f"{value:7.1f}" for value in np.percentile(held, [10, 50, 90])) + f"{excess.mean():+8.1f}  "
    span = steps.at[-1] - steps.at[0]
    eighth = np.minimum(7, ((steps.at[at] - steps.at[0]) * 8 / span).astype(int))
    parts = [held[eighth == part] for part in range(8)]
    return text + "".join(f"{np.median(part):6.1f}" if len(part) >= 5 else "     -" for part in parts)


def by_size(captures: list[Steps]) -> str:
    """What prefills of fast launches add, by their size."""
    tokens, added = [], []
    for steps in captures:
        at = prefills(steps, SIZES[-1])
        at = at[steps.over[at - 1] < FAST_LAUNCH_MS]
        tokens.append(steps.prefilled[at])
        added.append(steps.over[at - 1] + steps.over[at] + steps.over[at + 1])
    pooled, cost = np.concatenate(tokens), np.concatenate(added)
    lines = ["prefilled tokens (mean)  steps  adds, ms  us a token"]
    for low, high in itertools.pairwise(SIZES):
        inside = (pooled >= low) & (pooled < high)
        if inside.sum() >= ENOUGH:
            mean, median = pooled[inside].mean(), np.median(cost[inside])
            lines.append(
                f"{low:5d} to {high - 1:5d} ({mean:6.0f}){inside.sum():9d}{median:10.1f}{1e3 * median / mean:12.1f}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    print(f"{'ms':18s}{'decode':>8s}{'P10':>7s}{'P50':>7s}{'P90':>7s}{'excess':>8s}  held up, by eighths of the run")
    captures = []
    for folder in parser.parse_args().folders:
        runs = [path.parent for path in sorted(folder.glob("*/requests.parquet"))]
        found = sorted(folder.glob("*.jsonl.gz")) + runs
        if not found:
            parser.error(f"{folder}: no captures there: *.jsonl.gz files, or folders of lmperf runs")
        for path in found:
            captures.append(recover(streams(path)))
            print(line(path.name.removesuffix(".jsonl.gz"), captures[-1]))
    print(by_size(captures))


if __name__ == "__main__":
    main()
