"""One side of a comparison: a run's folder, or a folder of runs that differ in their seeds alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lmperf.wiring.header import header_plan, header_tenants
from loadgen.summary.files import SUMMARY_JSON, SummaryError, read_summary
from loadgen.summary.schema import Summary
from loadgen.summary.target import target_failed
from loadgen.trace.parts import TraceFile
from loadgen.trace.writer import TRACE_FILE
from tenants.measures.bootstrap import MIN_BLOCK_S, MIN_BLOCKS
from tenants.measures.columns import Columns
from tenants.measures.difference import Sides
from tenants.measures.intervals import MIN_SEEDS
from tenants.slo import Slo


@dataclass(frozen=True, slots=True)
class Compared:
    """``folders`` and ``summaries`` in order of the seed. ``name``: what the user called it."""

    name: str
    folders: tuple[Path, ...]
    summaries: tuple[Summary, ...]

    @property
    def seeds(self) -> tuple[int | None, ...]:
        return tuple(summary.seed for summary in self.summaries)

    @property
    def invalid(self) -> list[str]:
        return [
            f"{folder}: {reason}"
            for folder, summary in zip(self.folders, self.summaries, strict=True)
            for reason in summary.validity.reasons
        ]

    @property
    def unserved(self) -> list[str]:
        """What became of servers that failed: such runs differ by that, whatever else was changed."""
        found = zip(self.folders, map(target_failed, self.summaries), strict=True)
        return [f"{folder}: {failed}" for folder, failed in found if failed is not None]

    def rows(self) -> tuple[list[Iterator[Columns]], dict[str, Slo]] | None:
        """The rows of every run, read as they are asked for, and what was promised; None when a run's rows are not there
        (its summary alone is). Raises TraceError, also while rows are read."""
        if not all((folder / TRACE_FILE).is_file() for folder in self.folders):
            return None
        traces = [TraceFile(folder) for folder in self.folders]
        slos: dict[str, Slo] = {}
        for trace in traces:
            slos |= {tenant.name: tenant.slo for tenant in header_tenants(trace, header_plan(trace))}
        return [_columns(trace) for trace in traces], slos


def _columns(trace: TraceFile) -> Iterator[Columns]:
    for part in trace.parts():
        yield part.columns()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides. ``sides``: their rows under resamples that belong together, where that is needed and possible."""

    base: Compared
    run: Compared
    paired: bool
    sides: Sides | None
    how: str


def compared(path: str) -> Compared:
    """Raises SummaryError, which says what the folder is, when there is no finished run."""
    root = Path(path)
    folders = [root]
    if root.is_dir() and not (root / SUMMARY_JSON).is_file():
        inner = sorted(found.parent for found in root.glob(f"*/{SUMMARY_JSON}"))
        folders = inner or folders
        if not inner and (other := _other_than_a_run(root)):
            raise SummaryError(f"{path}: {other}")
    read = sorted(((read_summary(folder), folder) for folder in folders), key=lambda each: each[0].seed or 0)
    return Compared(path, tuple(folder for _, folder in read), tuple(summary for summary, _ in read))


def pair_of(base: Compared, run: Compared) -> Pair:
    """Both sides, with what the intervals of their differences can rest on."""
    paired = base.seeds == run.seeds and None not in base.seeds
    fewest = min(len(base.summaries), len(run.summaries))
    if fewest >= MIN_SEEDS:
        how = (
            f"t over {fewest} pairs of runs with one seed" if paired else f"Welch's t over {fewest} runs or more a side"
        )
        return Pair(base, run, paired, None, how)
    sides = _sides(base, run, paired=paired)
    lack = f"{MIN_BLOCKS} blocks of {MIN_BLOCK_S:g} s, or {MIN_SEEDS} runs a side"
    if sides is None:
        return Pair(base, run, paired, None, f"none: it takes the rows of {lack}, so a difference may be chance")
    same = "the same blocks of time on both sides, whose seeds are equal" if paired else "blocks of their own for each"
    return Pair(base, run, paired, sides, f"moving-block bootstrap, {same}")


def _sides(base: Compared, run: Compared, *, paired: bool) -> Sides | None:
    before, after = base.rows(), run.rows()
    if before is None or after is None:
        return None
    return Sides.of(before[0], after[0], before[1], after[1], paired=paired)


_ANSWERS = {"capacity.json": "capacity", "tune.json": "tune", "suite.json": "simulate --suite"}


def _other_than_a_run(folder: Path) -> str:
    """What a folder without a finished run holds, and what to do with it; empty where it holds nothing of ours."""
    for file, command in _ANSWERS.items():
        if (folder / file).is_file():
            return f"holds what `lmperf {command}` found ({file}), and no run: compare runs, or folders of `lmperf simulate`"
    if (folder / TRACE_FILE).is_file() or (folder / "rows").is_dir():
        return f"is a run that was cut off before its summary: `lmperf report {folder}` makes one of what was written"
    return ""
