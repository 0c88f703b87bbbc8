"""``comparison.json``: what ``lmperf simulate`` found, as data, and read back to be put beside another (by
``lmperf compare``, which writes one of all)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from lmperf.wiring.captured import CapturedRun
from lmperf.wiring.offline import Comparison
from loadgen.offline.verdicts import PolicyVerdict, TenantVerdict
from loadgen.trace.errors import TraceError
from loadgen.trace.schema import check_version
from loadgen.whole_file import write_whole
from scheduler.server_model.spec import ServerModelSpec

COMPARISON_JSON = "comparison.json"
FAMILY = "lmperf.comparison"
MAJOR = 1
SCHEMA = f"{FAMILY}/{MAJOR}.2"


class ComparisonFileError(Exception):
    """A comparison cannot be read: which file, why, and what to do."""


class SimulatedSource(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was simulated. ``kind``: ``trace`` or ``scenario``; ``digest``: of a trace's rows, so that two folders can be known
    to be of one trace, whatever it was called; ``seeds``: of a scenario."""

    kind: str
    name: str
    digest: str = ""
    requests: int = 0
    seeds: int = 0


class OneComparison(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """As :class:`lmperf.wiring.offline.Comparison`. ``alternative``, ``settings``: the name and settings of a what-if;
    ``routing``: between which servers, where there are several. Where folders were put side by side in one file, ``name``: what
    it is called there, and ``targets``: promised attainment by tenant, where not the file's."""

    noisy: tuple[str, ...]
    in_contract: tuple[str, ...]
    removed: tuple[str, ...] = ()
    alternative: str = ""
    settings: tuple[str, ...] = ()
    routing: str = ""
    name: str = ""
    targets: Mapping[str, float] | None = None
    policies: tuple[PolicyVerdict, ...]

    @classmethod
    def of(cls, found: Comparison, routing: str = "") -> OneComparison:
        return cls(
            noisy=found.noisy,
            in_contract=found.in_contract,
            removed=found.removed,
            alternative=found.name,
            settings=found.settings,
            routing=routing,
            policies=tuple(found.verdicts),
        )


class ComparisonFile(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``what_if``: the difference, where there is one alone; ``as_captured``: the trace itself, as if it were an alternative;
    ``replayed``: each tenant of the trace as captured under each policy, by the policy's label; ``server_digest``: of the
    server model's law and limits, which tells models of one name apart; ``targets``: promised attainment by tenant; ``notes``:
    what makes it doubtful."""

    schema: str = msgspec.field(default_factory=lambda: SCHEMA)
    source: SimulatedSource
    server_model: str
    server_digest: str = ""
    interrupted: bool
    targets: Mapping[str, float]
    comparisons: tuple[OneComparison, ...]
    as_captured: OneComparison | None = None
    replayed: Mapping[str, Mapping[str, TenantVerdict]] = {}
    what_if: str = ""
    routing: str = ""
    notes: tuple[str, ...] = ()


class _Head(msgspec.Struct):
    schema: str


def server_digest(server: ServerModelSpec) -> str:
    """Of what it does, whatever it is called and wherever it comes from."""
    return hashlib.sha256(msgspec.json.encode((server.law, server.limits))).hexdigest()[:16]


def trace_source(captured: CapturedRun) -> SimulatedSource:
    rows = captured.recipe.rows
    digest = hashlib.sha256()
    for column in (rows.arrival_ns, rows.prompt_tokens, rows.output_tokens, rows.tenant):
        if column is not None:
            digest.update(column.tobytes())
    digest.update(repr([tenant.name for tenant in captured.tenants]).encode())
    return SimulatedSource(
        kind="trace", name=captured.name, digest=digest.hexdigest()[:16], requests=len(rows.prompt_tokens)
    )


def write_comparison_file(directory: Path, found: ComparisonFile) -> None:
    """Whole or not at all."""
    data = msgspec.json.encode({"schema": found.schema, **msgspec.to_builtins(found)})
    write_whole(directory / COMPARISON_JSON, msgspec.json.format(data, indent=2))


def read_comparison_file(folder: Path) -> ComparisonFile:
    """Raises ComparisonFileError."""
    file = folder / COMPARISON_JSON
    try:
        raw = file.read_bytes()
        check_version(msgspec.json.decode(raw, type=_Head).schema, family=FAMILY, major=MAJOR, path=file)
        return msgspec.json.decode(raw, type=ComparisonFile)
    except TraceError as error:
        raise ComparisonFileError(str(error)) from error
    except OSError as error:
        raise ComparisonFileError(f"{file}: cannot be read ({error.strerror})") from error
    except msgspec.DecodeError as error:
        remedy = "simulate again: another version of lmperf may have written it"
        raise ComparisonFileError(f"{file}: not a comparison that can be read ({error}); {remedy}") from error
