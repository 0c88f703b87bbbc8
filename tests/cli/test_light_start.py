"""The front door is light, and it looks whether the packages behind it are its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from cli_support import DEADLINE_S, ROOT, environment, invoke

HEAVY = {
    "aiohttp", "asyncio", "hdrh", "httptools", "jinja2", "msgspec", "numpy", "plotly", "pyarrow", "pydantic",
    "rich", "ruamel", "scipy", "simpy", "torch", "uvloop",
}  # fmt: skip


def python(code, tmp_path, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


LISTS_MODULES = """\
import contextlib, io, json, sys
{act}
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""
HELP = """\
from lmperf.__main__ import main
with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
    main([{args}])
assert "lmperf" in text.getvalue()
"""


@pytest.mark.parametrize(
    "act",
    ["import lmperf", "import lmperf; dir(lmperf)", HELP.format(args="'--help'"), HELP.format(args="'run', '--help'")],
    ids=["import", "dir", "--help", "run --help"],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(act, tmp_path):
    """Importing lmperf, and asking for help, loads the standard library and lmperf's own front door."""
    done = python(LISTS_MODULES.format(act=act), tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert "lmperf" in loaded
    assert loaded & HEAVY == set()
    assert loaded & {"tenants", "scheduler", "backends", "loadgen"} == set()


def test_what_a_run_needs_before_its_first_request_loads_no_statistics_and_no_plots(tmp_path):
    """They take most of a second, and are needed when results are written."""
    act = "import lmperf.cli.run_command, lmperf.wiring.live, lmperf.wiring.live_worker"
    done = python(LISTS_MODULES.format(act=act), tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout))
    assert loaded & {"scipy", "plotly", "jinja2", "pandas", "torch", "transformers"} == set()


def test_every_public_name_loads(tmp_path):
    """All of ``lmperf.__all__`` are there, and an unknown one is an AttributeError."""
    done = python(
        "import lmperf\n"
        "assert len(lmperf.__all__) == len(set(lmperf.__all__)) > 10\n"
        "for name in lmperf.__all__: assert getattr(lmperf, name) is not None, name\n"
        "assert not hasattr(lmperf, 'no_such_name')\n",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr


def test_the_stub_lists_the_public_names():
    """Type checkers see what there is: the stub and the lazy table agree."""
    import lmperf

    stub = (ROOT / "lmperf/__init__.pyi").read_text()
    for name in lmperf.__all__:
        assert f" as {name}" in stub or f"{name}:" in stub, name


@pytest.mark.parametrize("kind", ["package", "module"])
def test_a_foreign_package_of_a_layers_name_is_one_clear_error(kind, tmp_path):
    """`scheduler` of another distribution stands first on the path: 104, which one, where, and the remedy; no traceback."""
    if kind == "package":
        (tmp_path / "site/scheduler").mkdir(parents=True)
        (tmp_path / "site/scheduler/__init__.py").write_text("class Scheduler: ...\n")
    else:
        (tmp_path / "site").mkdir()
        (tmp_path / "site/scheduler.py").write_text("class Scheduler: ...\n")
    for module in ("lmperf", "lmperf.run"):
        done = subprocess.run(
            [sys.executable, "-m", module, *([] if module == "lmperf.run" else ["policies"])],
            cwd=tmp_path,
            env=environment(PYTHONPATH=f"{tmp_path / 'site'}:{ROOT}"),
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 104
        assert "Traceback" not in done.stderr
        assert "'scheduler'" in done.stderr
        assert str(tmp_path / "site/scheduler") in done.stderr
        assert str(ROOT / "scheduler") in done.stderr
        assert "pipx install lmperf" in done.stderr


def test_files_of_another_distribution_in_our_package_are_noticed(tmp_path):
    """A package at the right place without our files was overwritten; the others are still ours."""
    witnesses = {"tenants": "tenant.py", "scheduler": None, "backends": "protocol.py", "loadgen": "recorder.py"}
    for name, witness in {"lmperf": None, **witnesses}.items():
        (tmp_path / "site" / name).mkdir(parents=True)
        for file in ("__init__.py", witness):
            if file is not None:
                (tmp_path / "site" / name / file).write_text("")
    shutil.copy(ROOT / "lmperf/own_packages.py", tmp_path / "site/lmperf")
    done = python("import lmperf.own_packages as own; print(own.foreign_packages())", tmp_path, PYTHONPATH="site")
    assert done.returncode == 0, done.stderr
    assert "'scheduler'" in done.stdout
    assert "overwritten" in done.stdout
    for name in ("tenants", "backends", "loadgen"):
        assert f"'{name}'" not in done.stdout


def test_version_and_help_exit_with_0(tmp_path):
    """The two questions that every script asks first."""
    from cli_support import invoke

    assert invoke("--version", cwd=tmp_path).stdout.startswith("lmperf 0.")
    help_text = invoke("--help", cwd=tmp_path)
    assert help_text.returncode == 0
    for command in ("run", "simulate", "calibrate", "report", "compare", "trace", "validate", "emulate", "demo"):
        assert command in help_text.stdout


def test_tables_are_as_wide_as_columns_says(tmp_path):
    """A pipe has no width of its own; who sets COLUMNS means it."""
    done = invoke("policies", cwd=tmp_path, env={"COLUMNS": "80"})
    assert done.returncode == 0, done
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
