"""`lmperf doctor` says of each finding whether a run can be trusted with it, and what to do."""

from __future__ import annotations

import dataclasses
import socket

import pytest
from cli_support import invoke, two_tenants

from lmperf.cli import doctor_command
from lmperf.wiring.doctor import Machine, State, checks_of, look

SOUND = Machine(
    compiled=True,
    stale="",
    python="3.12.1",
    uvloop="0.21",
    clock_resolution_s=1e-9,
    timer_late_s=2e-4,
    files_soft=1024,
    files_hard=4096,
    cpus=4,
    load_1min=0.3,
    extras=("hf",),
)


def on(monkeypatch, **changes):
    machine = dataclasses.replace(SOUND, **changes)
    monkeypatch.setattr(doctor_command, "look", lambda: machine)


def test_a_sound_machine_is_trusted(monkeypatch, tmp_path):
    """One line a check; 0."""
    on(monkeypatch)
    done = invoke("doctor", cwd=tmp_path)
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == ["ok"] * 7 + ["note"]
    assert lines[-1] == "a run here can be trusted"


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"timer_late_s": 0.02}, 107, "timers fire 20.0 ms late"),
        ({"clock_resolution_s": 0.015}, 107, "resolution 15.0 ms"),
        ({"cpus": 2, "load_1min": 2.5}, 107, "no core is free"),
        ({"files_soft": 100}, 104, "100 allowed, 128 needed for 64 connections; ulimit -n 128"),
        ({"files_soft": 100, "files_hard": 100}, 104, "have the hard limit (100) raised to 128"),
        ({"uvloop": None}, 104, "uvloop is missing"),
        ({"files_soft": 100, "timer_late_s": 0.02}, 104, "cannot be trusted: timers, files"),
    ],
)
def test_what_spoils_a_run_is_said_with_its_code(monkeypatch, tmp_path, changes, code, says):
    on(monkeypatch, **changes)
    done = invoke("doctor", cwd=tmp_path)
    assert done.returncode == code, done
    assert says in done.stdout
    assert f"(exit code {code})" in done.stdout


def test_a_doubt_is_no_refusal(monkeypatch, tmp_path):
    on(monkeypatch, load_1min=3.2)
    done = invoke("doctor", cwd=tmp_path)
    assert done.returncode == 0, done
    assert "warn  4 CPUs, load average 3.20" in done.stdout
    assert done.stdout.endswith("can be trusted with care: cpu\n")


def test_planned_connections_count_against_open_files():
    states = {n: checks_of(SOUND, connections=n)[4].state for n in (64, 960, 961)}
    assert states == {64: State.OK, 960: State.OK, 961: State.BAD}


def test_a_server_is_asked_what_it_serves(monkeypatch, url, tmp_path):
    on(monkeypatch)
    done = invoke("doctor", "--model", url, cwd=tmp_path)
    assert done.returncode == 0, done
    assert f"ok    server {url} answers in" in done.stdout
    assert "fast-model" in done.stdout


def test_a_server_that_is_not_there_is_106(monkeypatch, tmp_path):
    on(monkeypatch)
    monkeypatch.setattr(doctor_command, "_SERVER_WAIT_S", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = invoke("doctor", "--model", f"127.0.0.1:{taken.getsockname()[1]}", cwd=tmp_path)
    assert done.returncode == 106, done
    assert "BAD   server" in done.stdout
    assert "refused" in done.stdout


def test_a_scenario_s_own_server_is_made_ready_and_asked(monkeypatch, url, tmp_path):
    """Model, endpoint, tokenizer; the processes and the load that it needs of the machine."""
    on(monkeypatch)
    (tmp_path / "two.yaml").write_text(two_tenants(url))
    done = invoke("doctor", "two.yaml", cwd=tmp_path)
    assert done.returncode == 0, done
    assert f"{url} is ready: model fast-model" in done.stdout
    assert "exact prompt lengths (the server's tokenizer)" in done.stdout
    assert "1 busy process (the generator) on 4 CPUs" in done.stdout
    assert "output tokens/s are asked for" in done.stdout


def test_an_embedded_server_is_started_and_counts_as_a_process(monkeypatch, tmp_path):
    on(monkeypatch, cpus=1.5)
    (tmp_path / "s.yaml").write_text("version: 1\nduration_s: 5\ntenants: {a: {users: 3, prompt: 20, output: 5}}\n")
    done = invoke("doctor", "s.yaml", cwd=tmp_path)
    assert done.returncode == 0, done
    assert "warn  2 busy processes (the generator, the embedded server) on 1.5 CPUs" in done.stdout
    assert "note  the load is not known beforehand; a: as fast as the server answers" in done.stdout
    assert "is ready" in done.stdout


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        (["backend.model=another"], 106, "does not serve 'another'; it serves: fast-model"),
        (["tenants.chat.prompt=10000000"], 104, "none fits the server"),
        (["slots.sequences=5000"], 104, "1,024 allowed, 5,064 needed for 5,000 connections"),
        (["workers=9"], 0, "9 workers share"),
        (["tenants.chat.rate=100000"], 0, "beyond 80% a run comes out invalid: --workers "),
        (["backend.api_key=${env:LMPERF_NO_SUCH}"], 104, "LMPERF_NO_SUCH"),
    ],
)
def test_what_a_scenario_lacks_is_said_with_its_code(monkeypatch, url, tmp_path, settings, code, says):
    on(monkeypatch, files_hard=1024)
    (tmp_path / "two.yaml").write_text(two_tenants(url))
    flags = [part for setting in settings for part in ("--set", setting)]
    done = invoke("doctor", "two.yaml", *flags, cwd=tmp_path)
    assert done.returncode == code, done
    assert says in done.stdout + done.stderr


def test_a_flag_names_the_server_in_place_of_the_scenarios(monkeypatch, url, tmp_path):
    on(monkeypatch)
    (tmp_path / "two.yaml").write_text(two_tenants("http://127.0.0.1:9"))
    done = invoke("doctor", "two.yaml", "--model", url, cwd=tmp_path)
    assert done.returncode == 0, done
    assert f"{url} is ready" in done.stdout


def test_settings_without_a_scenario_are_104(monkeypatch, tmp_path):
    on(monkeypatch)
    done = invoke("doctor", "--set", "workers=2", cwd=tmp_path)
    assert done.returncode == 104
    assert "--set changes a scenario, and none is named" in done.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--model", "llama"), "neither a URL nor HOST:PORT"),
        (("--concurrency", "0"), "at least 1"),
        (("--model", "127.0.0.1:9", "--api-key", "${env:LMPERF_NO_SUCH}"), "LMPERF_NO_SUCH is not set"),
    ],
)
def test_wrong_flags_are_104(monkeypatch, tmp_path, flags, says):
    on(monkeypatch)
    done = invoke("doctor", *flags, cwd=tmp_path)
    assert done.returncode == 104, done
    assert says in done.stderr


def test_this_machine_is_looked_at():
    """Real values: a resolution and a lateness above 0, at least a part of a CPU, limits that a process can have."""
    found = look()
    assert found.uvloop is not None
    assert 0 < found.clock_resolution_s < 1
    assert found.timer_late_s > 0
    assert found.cpus > 0
    assert 0 < found.files_soft <= found.files_hard


@pytest.mark.parametrize(
    ("changes", "state", "said"),
    [
        ({"compiled": False}, State.NOTE, "python -m lmperf.compiled"),
        ({"stale": "scheduler.timers changed since it was compiled"}, State.WARN, "scheduler.timers changed"),
    ],
)
def test_the_core_that_runs_is_named(changes, state, said):
    """Plain Python is no fault; a binary of an older source is."""
    (check,) = [c for c in checks_of(dataclasses.replace(SOUND, **changes), connections=1) if c.name == "core"]
    assert check.state is state
    assert said in f"{check.said} {check.remedy}"
