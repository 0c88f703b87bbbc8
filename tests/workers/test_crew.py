"""Rules of starting workers: one that cannot be made ready is named with its reason, and nothing is left running."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadgen.workers.crew import Crew, WorkerError
from scheduler.dispatcher import Dispatcher
from scheduler.dispatcher_config import DispatcherConfig
from scheduler.slots import Slots
from tenants.tenant import Tenant


async def test_a_worker_that_ends_before_it_is_ready_is_an_error_that_says_why(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    crew = Crew("dying_worker", [b"", b""], lambda: 0)
    with pytest.raises(
        WorkerError, match=r"worker w[01] could not be made ready: exit code 1: no room for a worker here"
    ):
        async with crew:
            pass
    for pid in crew.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_job_that_the_worker_cannot_use_is_an_error_that_says_why():
    """The real worker, told nonsense: it answers with its own error, and not with a hang."""
    crew = Crew("lmperf.wiring.live_worker", [b"no job"], lambda: 0)
    with pytest.raises(WorkerError, match="worker w0 could not be made ready: UnpicklingError"):
        async with crew:
            pass


async def test_a_slot_that_was_granted_to_a_worker_as_it_left_is_free_for_the_others(monkeypatch):
    """Its grant is never answered, since nobody is there any more; the worker's end was in order, and is reported so."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    dispatcher = Dispatcher(
        DispatcherConfig(tenants=(Tenant(name="a"),), policy="fifo", backends={"server": Slots(sequences=1)})
    )
    async with Crew("parting_worker", [b""], lambda: 0, dispatcher) as crew:
        crew.begin(0, "")
        assert await crew.ended() == ["its report"]
    assert dispatcher.queued == dispatcher.outstanding == 0
