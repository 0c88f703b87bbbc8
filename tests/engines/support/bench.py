"""vLLM's own load generator, ``vllm bench serve``, and the processes that it is aimed at."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
_TIMEOUT_S = 600.0
# What `vllm bench serve` calls. The command itself asks for the version of the package `vllm`; the CPU build has another name.
_MAIN = """\
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def bench_serve(
    python: Path, tokenizer: Path, url: str, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Its result, ``--save-detailed``. ``python``: that of the engine's environment. Raises RuntimeError with its words."""
    command = [str(python), "-c", _MAIN, "--base-url", url, "--tokenizer", str(tokenizer)]
    command += ["--disable-tqdm", "--save-result", "--save-detailed", "--result-dir", str(folder)]
    inherited = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}
    ours = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    done = subprocess.run(
        [*command, "--result-filename", "bench.json", *arguments],
        env={**inherited, **ours, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"vllm bench serve ended with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    result: dict[str, Any] = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
    return result


@contextlib.contextmanager
def serving(*arguments: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """``python -m lmperf ARGUMENTS`` (a server that prints its URL last on its first line) while the block runs; its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "lmperf", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None, "piped"
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"lmperf {' '.join(arguments)} ended with {process.wait()} before it served")
        yield line.split()[-1]
    finally:
        process.terminate()
        process.communicate(timeout=60)
