"""The scheduling core as machine code: the same modules, compiled by mypyc, for simulations some 2.5 times as fast.

    python -m lmperf.compiled            compile (needs mypy, setuptools and a C compiler; half a minute)
    python -m lmperf.compiled --remove   back to plain Python

The compiled modules lie beside their sources, and Python takes them first. Nothing else changes: results are equal to the
bit (``make test-compiled``). A source that is newer than what was compiled from it is said at every start, since it has no
effect.
"""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent

MODULES = (
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
    "scheduler.server_model.prefix_cache",
    "scheduler.server_model.protocol",
    "scheduler.server_model.speculative",
    "scheduler.server_model.step_time",
    "scheduler.server_model.token_counts",
)
"""What a simulation spends its time in. Plain data (msgspec) stays as it is, and so does what waits for the world."""

_GROUP = "lmperf_core"
_SUFFIX = EXTENSION_SUFFIXES[0]
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


class NotCompiledError(RuntimeError):
    """The compiler's own words, or what is missing."""


def source_of(module: str) -> Path:
    return HOME / f"{module.replace('.', '/')}.py"


def binary_of(module: str) -> Path:
    """Where it lies once it is compiled for this Python."""
    return source_of(module).with_suffix(_SUFFIX)


def is_compiled() -> bool:
    return all(binary_of(module).exists() for module in MODULES)


def stale() -> list[str]:
    """Compiled modules whose source was changed since."""
    found = []
    for module in MODULES:
        binary, source = binary_of(module), source_of(module)
        if binary.exists() and source.exists() and source.stat().st_mtime > binary.stat().st_mtime:
            found.append(module)
    return found


def warning() -> str:
    """What to say of stale modules; empty where there are none."""
    old = stale()
    if not old:
        return ""
    more = f" and {len(old) - 1} more" if len(old) > 1 else ""
    return (
        f"{old[0]}{more} changed since it was compiled, which has no effect until `python -m lmperf.compiled` compiles it "
        f"again (or --remove goes back to plain Python)"
    )


def compile_all() -> None:
    """In place, for the Python that runs this. Raises NotCompiledError; then plain Python is left."""
    import shutil  # noqa: PLC0415 (this module is asked at every start)
    import subprocess  # noqa: PLC0415
    import tempfile  # noqa: PLC0415

    remove()
    # In a copy: where packages are installed, mypy would take all of them for sources.
    with tempfile.TemporaryDirectory(prefix="lmperf-compiled-") as work:
        copy = Path(work) / "sources"
        for package in dict.fromkeys(module.partition(".")[0] for module in MODULES):
            shutil.copytree(HOME / package, copy / package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        done = subprocess.run(  # noqa: S603 (ourselves)
            [sys.executable, "-c", _SETUP.format(arguments=_mypy_arguments(), group=_GROUP, work=work)],
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
        )
        made = sorted(copy.rglob(f"*{_SUFFIX}"))
        if done.returncode or len(made) != len(MODULES) + 1:
            raise NotCompiledError((done.stdout + done.stderr).strip()[-2000:])
        for binary in made:
            shutil.copy(binary, HOME / binary.relative_to(copy))


def _mypy_arguments() -> list[str]:
    return ["--config-file=", *(str(source_of(module).relative_to(HOME)) for module in MODULES)]


def remove() -> None:
    """Go back to plain Python."""
    for binary in (*map(binary_of, MODULES), HOME / f"{_GROUP}__mypyc{_SUFFIX}"):
        binary.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    import argparse  # noqa: PLC0415 (this module is asked at every start)

    parser = argparse.ArgumentParser(prog="python -m lmperf.compiled", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--remove", action="store_true", help="go back to plain Python")
    if parser.parse_args(argv).remove:
        remove()
        return 0
    try:
        compile_all()
    except NotCompiledError as error:
        print(
            f"{error}\nnot compiled: the plain modules stay; mypy, setuptools and a C compiler are needed",
            file=sys.stderr,
        )
        return 1
    print(f"{len(MODULES)} modules compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
