"""Folders of ``lmperf simulate`` that are put side by side: what each holds, and whether they can stand beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from lmperf.scenario.faults import Fault, Place, ScenarioError
from lmperf.wiring.comparison_file import (
    COMPARISON_JSON,
    ComparisonFile,
    OneComparison,
    SimulatedSource,
    read_comparison_file,
)
from lmperf.wiring.what_if.alternatives import UNCHANGED
from loadgen.offline.verdicts import Figure, PolicyVerdict
from loadgen.summary.files import SUMMARY_JSON

MODELS_DIFFER = "their server models differ, which may be all that makes a difference"


@dataclass(frozen=True, slots=True)
class Simulation:
    """``name``: what the user called the folder."""

    name: str
    found: ComparisonFile

    @property
    def title(self) -> str:
        """What was simulated, in words."""
        source = self.found.source
        of = f"{source.requests:,} requests" if source.kind == "trace" else f"{source.seeds} seeds"
        cut = "; interrupted, so some of it is missing" if self.found.interrupted else ""
        return f"{source.kind} {source.name} ({of}), server model {self.found.server_model}{cut}"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison as it stands beside others. ``targets``: promised attainment by tenant."""

    name: str
    found: OneComparison
    targets: dict[str, float]

    @property
    def unchanged(self) -> bool:
        """True for the trace as captured."""
        return self.found.alternative == UNCHANGED


def is_simulation(path: str) -> bool:
    """True for a folder that ``lmperf simulate`` wrote."""
    folder = Path(path)
    return (folder / COMPARISON_JSON).is_file() and not (folder / SUMMARY_JSON).is_file()


def simulations(paths: Sequence[str]) -> list[Simulation]:
    """Every folder read, to stand beside each other. Raises ComparisonFileError, and ScenarioError for one that is named
    twice, holds nothing to compare, or cannot stand beside the first."""
    sides = read_simulations(paths)
    faults = [_empty(side) for side in sides if not any(each.policies for each in side.found.comparisons)]
    first = sides[0]
    faults += [
        Fault(
            Place(side.name),
            (),
            f"cannot be compared with {first.name}: it is of {_named(side.found.source)}, not of {_named(first.found.source)}",
            "simulate both from one trace, or from one scenario",
        )
        for side in sides[1:]
        if not _same(first.found.source, side.found.source)
    ]
    if faults:
        raise ScenarioError(faults)
    return sides


def read_simulations(paths: Sequence[str]) -> list[Simulation]:
    """Every folder read. Raises ComparisonFileError, and ScenarioError for one that is named twice."""
    if faults := _named_twice(paths):
        raise ScenarioError(faults)
    return [Simulation(path, read_comparison_file(Path(path))) for path in paths]


def _named_twice(paths: Sequence[str]) -> list[Fault]:
    folders = [Path(path).resolve() for path in paths]
    return [
        Fault(Place(path), (), f"is the folder {paths[folders.index(folder)]} again", "name each folder once")
        for number, (path, folder) in enumerate(zip(paths, folders, strict=True))
        if folder in folders[:number]
    ]


def _empty(side: Simulation) -> Fault:
    problem, remedy = "holds nothing to compare", "simulate with --set, --vary or --alternative"
    if side.found.interrupted:
        problem, remedy = f"{problem}: it was interrupted before there was a comparison", "simulate it again"
    return Fault(Place(side.name), (), problem, remedy)


def rows_of(sides: Sequence[Simulation]) -> list[Row]:
    """What stands side by side: the trace as captured first, once where all agree on it. A name that is not enough to tell one
    from another has its folder before it."""
    found = [(side, each) for side in sides for each in side.found.comparisons if each.policies]
    counts = Counter(_name(side, each) for side, each in found)
    plain = _unchanged(sides)
    rows = []
    for side, each in found:
        name = _name(side, each)
        whole = name if counts[name] == 1 or not _is_named(each) else f"{side.name}: {name}"
        rows.append(Row(whole, each, _targets(side, each)))
    return [*plain, *rows]


def side_by_side(sides: Sequence[Simulation], rows: Sequence[Row]) -> ComparisonFile:
    """One file of all, which stands beside others as they do; ``rows``: of :func:`rows_of`."""
    files = [side.found for side in sides]
    first = files[0]
    plain = rows[0].found if rows[0].unchanged else None
    others = rows if plain is None else rows[1:]
    # What each found of the arrivals as captured stands as one where they agree on it.
    agreed = plain is not None and not any(row.unchanged for row in others)
    return ComparisonFile(
        source=msgspec.structs.replace(first.source, seeds=min(each.source.seeds for each in files)),
        server_model=", ".join(dict.fromkeys(each.server_model for each in files)),
        server_digest=first.server_digest if len({each.server_digest for each in files}) == 1 else "",
        interrupted=any(each.interrupted for each in files),
        targets=first.targets,
        comparisons=tuple(_entry(row, first.targets) for row in others),
        as_captured=plain,
        replayed={label: of for each in reversed(files) for label, of in each.replayed.items()} if agreed else {},
        notes=_notes(sides),
    )


def models_differ(sides: Sequence[Simulation]) -> bool:
    """By name, or by what they do, as far as the files know it."""
    names = {side.found.server_model for side in sides}
    digests = {side.found.server_digest for side in sides if side.found.server_digest}
    return len(names) > 1 or len(digests) > 1


def _notes(sides: Sequence[Simulation]) -> tuple[str, ...]:
    """What makes each doubtful, and all of them side by side."""
    own = [f"{side.name}: {note}" for side in sides for note in side.found.notes]
    return (*own, MODELS_DIFFER) if models_differ(sides) else tuple(own)


def _entry(row: Row, targets: Mapping[str, float]) -> OneComparison:
    own = None if row.targets == targets else row.targets
    return msgspec.structs.replace(row.found, name=row.name, targets=own)


def _targets(side: Simulation, found: OneComparison) -> dict[str, float]:
    return dict(side.found.targets if found.targets is None else found.targets)


def _same(first: SimulatedSource, second: SimulatedSource) -> bool:
    if first.kind != second.kind:
        return False
    return first.digest == second.digest if first.kind == "trace" else first.name == second.name


def _named(source: SimulatedSource) -> str:
    rows = f" ({source.requests:,} requests, rows {source.digest})" if source.kind == "trace" else ""
    return f"the {source.kind} {source.name}{rows}"


def _is_named(found: OneComparison) -> bool:
    return bool(found.name or found.alternative)


def _name(side: Simulation, found: OneComparison) -> str:
    """Derived loads are called alike in every folder."""
    if _is_named(found):
        return found.name or found.alternative
    grown = f"{', '.join(found.noisy)} grows" if found.noisy else "raised load"
    return f"{side.name}: {grown}"


def _unchanged(sides: Sequence[Simulation]) -> list[Row]:
    rows: list[Row] = []
    for side in sides:
        found = side.found.as_captured
        if found is None or not found.policies:
            continue
        alike = next((n for n, row in enumerate(rows) if _agree(row.found, found)), None)
        if alike is None:
            rows.append(Row(f"{side.name}: {UNCHANGED}", found, dict(side.found.targets)))
            continue
        known = {verdict.label for verdict in rows[alike].found.policies}
        new = tuple(verdict for verdict in found.policies if verdict.label not in known)
        policies = (*rows[alike].found.policies, *new)
        merged = msgspec.structs.replace(rows[alike].found, policies=policies)
        rows[alike] = Row(rows[alike].name, merged, rows[alike].targets)
    return rows if len(rows) > 1 else [replace(row, name=UNCHANGED) for row in rows]


def _agree(first: OneComparison, second: OneComparison) -> bool:
    """True where both found the same under every policy that both have, and so may be one."""
    of = {verdict.label: verdict for verdict in first.policies}
    both = [verdict for verdict in second.policies if verdict.label in of]
    return bool(both) and all(_own(of[verdict.label]) == _own(verdict) for verdict in both)


def _own(verdict: PolicyVerdict) -> PolicyVerdict:
    """Without what depends on which other policies were asked for."""
    return replace(verdict, throughput_ratio=Figure(None))
