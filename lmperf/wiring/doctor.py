"""Whether this machine can take a measurement that is worth believing: what is looked at, and what each finding means.

A generator that shares its cores, has a coarse clock or too few file descriptors measures itself. Each check takes what was
found as plain values, so that every verdict can be tested on any machine; :func:`look` finds them on this one.
"""

from __future__ import annotations

import importlib.util
import math
import os
import platform
import resource
import time
from dataclasses import dataclass
from enum import StrEnum

from lmperf import compiled
from lmperf.exit_codes import ExitCode
from loadgen.cores import cores
from loadgen.recording.lateness import LATENESS_FLOOR_NS

SPARE_FILES = 64
"""Descriptors beside the connections: the log, rows, results, the event loop's own."""

_EXTRAS = {
    "hf": ("transformers", "tokenizers"),
    "vllm": ("vllm",),
    "gguf": ("llama_cpp",),
    "ray": ("ray",),
    "otel": ("opentelemetry",),
    "gpu": ("pynvml",),
}
_NAPS = 100
_NAP_S = 0.001


class State(StrEnum):
    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    BAD = "BAD"


@dataclass(frozen=True, slots=True)
class Check:
    """``said``: what was found. ``remedy``: what to do, where there is something. ``code``: of a run that goes on anyway."""

    name: str
    state: State
    said: str
    remedy: str = ""
    code: ExitCode = ExitCode.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What :func:`look` found. ``cpus``: that this process may use (a quota may make them a fraction); ``timer_late_s``: the
    99th percentile of how late a timer of 1 ms fires; ``stale``: what of a compiled core is out of date.
    """

    python: str
    compiled: bool
    stale: str
    uvloop: str | None
    clock_resolution_s: float
    timer_late_s: float
    files_soft: int
    files_hard: int
    cpus: float
    load_1min: float
    extras: tuple[str, ...]


def look() -> Machine:
    """Takes about a fifth of a second, most of it in timers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = 1 << 30
    core = compiled.state()
    return Machine(
        python=platform.python_version(),
        compiled=core.compiled,
        stale=core.warning,
        uvloop=_version("uvloop"),
        clock_resolution_s=time.get_clock_info("monotonic").resolution,
        timer_late_s=_timer_late_s(),
        files_soft=unlimited if soft == resource.RLIM_INFINITY else soft,
        files_hard=unlimited if hard == resource.RLIM_INFINITY else hard,
        cpus=cores(),
        load_1min=os.getloadavg()[0],
        extras=tuple(name for name, modules in _EXTRAS.items() if all(map(importlib.util.find_spec, modules))),
    )


def checks_of(machine: Machine, *, connections: int) -> list[Check]:
    """One line each. ``connections``: most sockets that a run will have open at once."""
    return [
        Check("python", State.OK, f"Python {machine.python}"),
        _uvloop(machine.uvloop),
        _clock(machine.clock_resolution_s),
        _timers(machine.timer_late_s),
        _files(machine.files_soft, machine.files_hard, connections),
        _cpu(machine.cpus, machine.load_1min),
        _core(compiled=machine.compiled, stale=machine.stale),
        Check("extras", State.NOTE, f"optional parts installed: {', '.join(machine.extras) or 'none'}"),
    ]


def _core(*, compiled: bool, stale: str) -> Check:
    if stale:
        return Check("core", State.WARN, stale)
    if compiled:
        return Check("core", State.OK, "the scheduling core is compiled")
    return Check(
        "core", State.NOTE, "the scheduling core is plain Python", "python -m lmperf.compiled makes simulations faster"
    )


def _uvloop(version: str | None) -> Check:
    if version is None:
        return Check("uvloop", State.BAD, "uvloop is missing", "reinstall lmperf: it needs it", ExitCode.BAD_CONFIG)
    return Check("uvloop", State.OK, f"uvloop {version}")


def _clock(resolution_s: float) -> Check:
    said = f"monotonic clock, resolution {_time(resolution_s)}"
    if resolution_s > 1e-3:
        return Check(
            "clock", State.BAD, said, "stamps would be off by more than 1 ms: use another machine", ExitCode.INVALID
        )
    if resolution_s > 1e-5:
        return Check("clock", State.WARN, said, "gaps between tokens are known no better than that")
    return Check("clock", State.OK, said)


def _timers(late_s: float) -> Check:
    said = f"timers fire {_time(late_s)} late (P99 of {_NAPS} waits of 1 ms)"
    if late_s > LATENESS_FLOOR_NS / 1e9:
        return Check(
            "timers",
            State.BAD,
            said,
            f"a run is invalid beyond {LATENESS_FLOOR_NS / 1e6:.0f} ms: stop what else runs here, or use another machine",
            ExitCode.INVALID,
        )
    if late_s > 1e-3:
        return Check("timers", State.WARN, said, "quieter would be better: latencies below some ms are blurred")
    return Check("timers", State.OK, said)


def _files(soft: int, hard: int, connections: int) -> Check:
    needed = connections + SPARE_FILES
    said = f"open files: {soft:,} allowed, {needed:,} needed for {connections:,} connections"
    if needed > soft:
        how = f"ulimit -n {needed}" if needed <= hard else f"have the hard limit ({hard:,}) raised to {needed:,}"
        return Check("files", State.BAD, said, how, ExitCode.BAD_CONFIG)
    return Check("files", State.OK, said)


def _cpu(cpus: float, load: float) -> Check:
    said = f"{cpus:g} CPUs, load average {load:.2f} over the last minute"
    if load >= cpus:
        return Check(
            "cpu", State.BAD, said, "no core is free: the generator would measure its own waiting", ExitCode.INVALID
        )
    if load > cpus / 2 or cpus - load < 1:
        return Check("cpu", State.WARN, said, "stop what else runs here: the generator needs a core of its own")
    return Check("cpu", State.OK, said)


def _time(seconds: float) -> str:
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def _timer_late_s() -> float:
    late = []
    for _ in range(_NAPS):
        due = time.monotonic() + _NAP_S
        time.sleep(_NAP_S)
        late.append(time.monotonic() - due)
    return sorted(late)[math.ceil(0.99 * _NAPS) - 1]


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 (only the doctor needs it)

    try:
        return version(package)
    except PackageNotFoundError:
        return None
