"""A real vLLM server for the length of a test session, and what its own HTTP side saw (support/in_engine/witness.py)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.probe import wait_ready
from backends.protocol import BackendError
from tests.engines.support.environment import Say

SERVED_NAME = "tiny-llama"
READY_TIMEOUT_S = 420.0
_STOP_TIMEOUT_S = 30.0
_POLITENESS = "10"


@dataclass(frozen=True, slots=True)
class EngineServer:
    """``address``: host:port. ``pid``: the API server's. ``log``: all it printed."""

    address: str
    pid: int
    log: Path
    witness: Path

    def mark(self) -> int:
        """Where the witness stands now; give it to :meth:`sightings` to see only what came later."""
        return len(self.witness.read_text(encoding="utf-8").splitlines()) if self.witness.exists() else 0

    def sightings(self, mark: int) -> list[dict[str, Any]]:
        """What the server saw since ``mark``, one a request."""
        lines = self.witness.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines[mark:]]

    def log_tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


@contextlib.contextmanager
def engine_server(
    python: Path,
    model: Path,
    folder: Path,
    *,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    say: Say = print,
) -> Iterator[EngineServer]:
    """Started, ready, and ended by its pid. ``folder``: for its log. ``arguments`` come last, so they win over those given
    here; of ``environment``, ``PYTHONPATH`` is added to the server's own. Raises BackendError with its last words."""
    port = free_port()
    log, witness = folder / "vllm.log", folder / "witness.jsonl"
    command = [
        # The client that measures shares the machine with the engine, and must not wait for it.
        *("nice", "-n", _POLITENESS),
        *(str(python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", SERVED_NAME),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--dtype", "bfloat16", "--max-num-seqs", "32", "--enforce-eager"),
        *("--middleware", "witness.Witness"),
        *arguments,
    ]
    say(f"starting vLLM on port {port} (log: {log})")
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=_environment(witness, environment or {})
        )
    server = EngineServer(f"127.0.0.1:{port}", process.pid, log, witness)
    try:
        asyncio.run(_ready(server, process, say))
        yield server
    finally:
        _stop(process)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _environment(witness: Path, extra: Mapping[str, str]) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in {"PYTHONHOME", "VIRTUAL_ENV"}}
    path = [str(Path(__file__).with_name("in_engine")), *filter(None, [extra.get("PYTHONPATH")])]
    ours = {
        "ENGINE_WITNESS": str(witness),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    return inherited | ours | dict(extra) | {"PYTHONPATH": os.pathsep.join(path)}


async def _ready(server: EngineServer, process: subprocess.Popen[bytes], say: Say) -> None:
    """lmperf's own wait, cut short when the process has ended: nothing will ever answer then."""

    def starting(elapsed_s: float, _: str) -> None:
        if process.poll() is not None:
            raise BackendError(f"vLLM ended with {process.returncode} before it was ready", kind="ended")
        say(f"  {elapsed_s:4.0f} s: vLLM is starting")

    try:
        metadata = await wait_ready(server.address, timeout_s=READY_TIMEOUT_S, on_progress=starting)
    except BackendError as error:
        raise BackendError(f"{error}\nvLLM's last words:\n{server.log_tail()}", kind=error.kind) from error
    if metadata.models != (SERVED_NAME,):
        raise BackendError(f"{server.address} serves {metadata.models}, not {SERVED_NAME}: another server's port")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM lets the API server end its engine process too; SIGKILL only if it does not listen."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
