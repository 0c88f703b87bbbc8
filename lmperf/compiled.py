"""The core as machine code: the same modules, compiled by mypyc, for simulations twice as fast and a client that needs less.

    python -m lmperf.compiled            compile (needs mypy, setuptools and a C compiler; half a minute)
    python -m lmperf.compiled --remove   back to plain Python

The compiled modules lie beside their sources, and Python takes them first. Nothing else changes: results are equal to the
bit (``make test-compiled``). A source that was changed since has no effect, which is said at every start; where some binaries
are missing, or are left of another version, nothing starts until they are compiled again or removed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from lmperf.exit_codes import ExitCode

HOME = Path(__file__).resolve().parent.parent

MODULES = (
    "backends.wire.connection",
    "backends.wire.exchange",
    "backends.wire.pool",
    "backends.wire.response",
    "backends.wire.sse",
    "backends.wire.stream_socket",
    "backends.wire.template",
    "backends.wire.tokens",
    "loadgen.live.engine",
    "loadgen.live.settle",
    "tenants.measures.window",
    "scheduler.admission",
    "scheduler.backend_slots",
    "scheduler.bucket",
    "scheduler.dispatcher",
    "scheduler.gap_log",
    "scheduler.keyed_heap",
    "scheduler.output_estimate",
    "scheduler.service_rate",
    "scheduler.steplog",
    "scheduler.tenant_queue",
    "scheduler.timers",
    "scheduler.drivers.live",
    "scheduler.drivers.replica",
    "scheduler.drivers.simulated",
    "scheduler.drivers.virtual_time",
    "scheduler.policies.awaiting",
    "scheduler.policies.base",
    "scheduler.policies.by_token",
    "scheduler.policies.committed",
    "scheduler.policies.drr",
    "scheduler.policies.edf",
    "scheduler.policies.fifo",
    "scheduler.policies.priority",
    "scheduler.policies.slo_aware",
    "scheduler.policies.vtc",
    "scheduler.policies.wfq",
    "scheduler.server_model.batching",
    "scheduler.server_model.front_end",
    "scheduler.server_model.plan",
    "scheduler.server_model.prefix_cache",
    "scheduler.server_model.protocol",
    "scheduler.server_model.speculative",
    "scheduler.server_model.step_time",
    "scheduler.server_model.token_counts",
)
"""What a simulation spends its time in, and what a live run does for every token and every request. Plain data (msgspec) stays
as it is."""

_GROUP = "lmperf_core"
_SUFFIX = EXTENSION_SUFFIXES[0]
_RECORD = f"lmperf/compiled{_SUFFIX.removesuffix('.so')}.json"
"""Of this Python; what the binaries were made from: a digest of each module's source. Written last and removed first."""

_SETUP = """\
from mypyc.build import mypycify
from setuptools import setup

setup(
    name="lmperf-core",
    packages=[],
    ext_modules=mypycify({arguments!r}, opt_level="3", group_name={group!r}, target_dir={work!r}),
    script_args=["--quiet", "build_ext", "--inplace", "--build-temp", {work!r}, "--build-lib", {work!r}],
)
"""
_REMEDY = "`python -m lmperf.compiled` compiles it again, --remove goes back to plain Python"


class NotCompiledError(RuntimeError):
    """The compiler's own words, or what is missing."""


@dataclass(frozen=True, slots=True)
class State:
    """``compiled``: binaries of all modules are there. ``stale``: those whose source was changed since. ``broken``: why nothing
    may be imported, empty where it may."""

    compiled: bool
    stale: tuple[str, ...] = ()
    broken: str = ""

    @property
    def warning(self) -> str:
        """A sentence for people; empty where all is well."""
        if self.broken:
            return f"the compiled core cannot be used: {self.broken}; {_REMEDY}"
        if not self.stale:
            return ""
        more = f" and {len(self.stale) - 1} more" if len(self.stale) > 1 else ""
        return f"{self.stale[0]}{more} changed since it was compiled, which has no effect: {_REMEDY}"


def source_of(module: str) -> Path:
    return HOME / f"{module.replace('.', '/')}.py"


def binary_of(module: str) -> Path:
    """Where it lies once it is compiled for this Python."""
    return source_of(module).with_suffix(_SUFFIX)


def state() -> State:
    """Asked at every start, so it looks at little: the folders of these modules, and their sources where they are compiled."""
    found = set(_binaries())
    wanted = {*map(binary_of, MODULES), _group()}
    record = HOME / _RECORD
    if not found and not record.exists():
        return State(compiled=False)
    missing, strange = sorted(wanted - found), sorted(found - wanted)
    try:
        digests = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return State(compiled=False, broken="it was not compiled to its end")
    if missing:
        return State(compiled=False, broken=f"{missing[0].name} is missing")
    if strange:
        return State(compiled=False, broken=f"{strange[0].relative_to(HOME)} is of another version")
    stale = tuple(module for module in MODULES if digests.get(module) != _digest(source_of(module)))
    return State(compiled=True, stale=stale)


def compile_all() -> None:
    """In place, for the Python that runs this. Raises NotCompiledError; then what was there stays. Whatever else ends it while
    binaries are moved into place leaves plain Python."""
    import shutil  # noqa: PLC0415 (this module is asked at every start)
    import tempfile  # noqa: PLC0415

    folders = {*(source_of(module).parent for module in MODULES), HOME, (HOME / _RECORD).parent}
    closed = next((folder for folder in sorted(folders) if not os.access(folder, os.W_OK)), None)
    if closed is not None:
        raise NotCompiledError(f"{closed} cannot be written to")
    with tempfile.TemporaryDirectory(prefix="lmperf-compiled-") as work:
        # In a copy: where packages are installed, mypy would take all of them for sources.
        copy = Path(work) / "sources"
        digests = _copied(copy)
        _run(_SETUP.format(arguments=_mypy_arguments(), group=_GROUP, work=work), copy)
        made = sorted(copy.rglob(f"*{_SUFFIX}"))
        if len(made) != len(MODULES) + 1:
            raise NotCompiledError(f"{len(made)} binaries were made of {len(MODULES)} modules")
        targets = [HOME / fresh.relative_to(copy) for fresh in made]
        try:
            for fresh, binary in zip(made, targets, strict=True):
                shutil.copy(fresh, _new(binary))
        except BaseException:
            for binary in targets:
                _new(binary).unlink(missing_ok=True)
            raise
        _put_in_place(targets, digests)


def _put_in_place(targets: Sequence[Path], digests: dict[str, str]) -> None:
    """In place of whatever set was there: moved, since a process that runs on an old one keeps it."""
    try:
        (HOME / _RECORD).unlink(missing_ok=True)
        for old in {*_binaries()} - {*targets, *map(_new, targets)}:
            old.unlink(missing_ok=True)
        for binary in targets:
            _new(binary).replace(binary)
        (HOME / _RECORD).write_text(json.dumps(digests, indent=2) + "\n", encoding="utf-8")
    except BaseException:
        remove()  # half a set is worse than none
        raise


def remove() -> None:
    """Go back to plain Python, whatever version the binaries are of."""
    (HOME / _RECORD).unlink(missing_ok=True)
    packages = {module.partition(".")[0] for module in MODULES}
    # Wherever they are: an earlier version compiled other modules.
    found = [entry for package in packages for entry in (HOME / package).rglob("*") if _is_binary(entry)]
    for binary in (*found, _group(), _new(_group())):
        binary.unlink(missing_ok=True)


def _binaries() -> list[Path]:
    """All that lie where these modules do: nobody else's would."""
    folders = dict.fromkeys(source_of(module).parent for module in MODULES)
    found = [entry for folder in folders for entry in folder.iterdir() if _is_binary(entry)]
    return [*found, *(path for path in (_group(), _new(_group())) if path.exists())]


def _is_binary(entry: Path) -> bool:
    return entry.name.endswith((_SUFFIX, _SUFFIX + ".new"))


def _group() -> Path:
    return HOME / f"{_GROUP}__mypyc{_SUFFIX}"


def _new(binary: Path) -> Path:
    return binary.with_name(binary.name + ".new")


def _copied(copy: Path) -> dict[str, str]:
    """The sources of the modules' packages in a folder of our own; the digest of each module."""
    for package in dict.fromkeys(module.partition(".")[0] for module in MODULES):
        for source in sorted((HOME / package).rglob("*.py")):
            target = copy / source.relative_to(HOME)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return {module: _digest(copy / source_of(module).relative_to(HOME)) for module in MODULES}


def _digest(source: Path) -> str:
    import hashlib  # noqa: PLC0415 (this module is asked at every start)

    return hashlib.sha256(source.read_bytes()).hexdigest()


def _mypy_arguments() -> list[str]:
    return [
        "--config-file=",
        "--ignore-missing-imports",
        *(str(source_of(module).relative_to(HOME)) for module in MODULES),
    ]


def _run(script: str, folder: Path) -> None:
    """In a session of its own, which is ended with us, its compilers too. Raises NotCompiledError."""
    import signal  # noqa: PLC0415 (this module is asked at every start)
    import subprocess  # noqa: PLC0415

    with subprocess.Popen(  # noqa: S603 (ourselves)
        [sys.executable, "-c", script],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise NotCompiledError(said.strip()[-2000:])


def main(argv: Sequence[str] | None = None) -> int:
    import argparse  # noqa: PLC0415 (this module is asked at every start)
    import signal  # noqa: PLC0415

    parser = argparse.ArgumentParser(prog="python -m lmperf.compiled", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--remove", action="store_true", help="go back to plain Python")
    wanted = parser.parse_args(argv)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if wanted.remove:
            remove()
            return 0
        compile_all()
    except KeyboardInterrupt:
        print("interrupted: nothing was compiled", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except NotCompiledError as error:
        print(
            f"{error}\nnot compiled: it takes mypy, setuptools and a C compiler; what was there stays", file=sys.stderr
        )
        return 1
    except OSError as error:
        print(f"not done: {error}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"{len(MODULES)} modules compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
