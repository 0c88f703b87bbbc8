"""The proxies that are measured beside the gateway: how each is started in front of one server.

Peers are found, never installed:

* vllm-router and sglang-router (Rust, started by a Python package): ``LMPERF_BENCH_VLLM_ROUTER`` and
  ``LMPERF_BENCH_SGLANG_ROUTER`` name their commands (default: on the PATH); policy-free, round robin over one server;
* nginx: ``LMPERF_BENCH_NGINX`` (default: on the PATH), one worker, answers unbuffered, connections kept;
* Starlette with httpx: ``LMPERF_BENCH_STARLETTE`` names the python of an environment with starlette, httpx, uvicorn, uvloop
  and httptools (default: this one);
* LiteLLM's proxy: ``LMPERF_BENCH_LITELLM`` (default: on the PATH), one worker;
* the aiohttp pass-through of :mod:`benchmarks.gateway_floors`: always there.

One that cannot be found is skipped, and the table says why.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.client_peers import NotHere

FLOORS = str(Path(__file__).with_name("gateway_floors.py"))

_NGINX = """\
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream server {{ server {address}; keepalive 256; }}
  server {{
    listen 127.0.0.1:{port};
    client_max_body_size 0;
    location / {{
      proxy_pass http://server;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""

_LITELLM = """\
model_list:
  - model_name: bench
    litellm_params: {{model: hosted_vllm/bench, api_base: "{upstream}/v1", api_key: none}}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True, slots=True)
class Proxy:
    """``argv(port, upstream, folder)`` starts it on ``port`` of the loopback, in front of the base URL ``upstream``, with a
    ``folder`` of its own; it raises NotHere. ``python``: it is written in Python, so that its CPU compares with ours.
    """

    name: str
    argv: Callable[[int, str, Path], list[str]]
    python: bool
    env: Mapping[str, str] = field(default_factory=dict)


def _command(variable: str, name: str) -> str:
    found = os.environ.get(variable) or shutil.which(name)
    if not found:
        raise NotHere(f"{name} is not here: set {variable} to its command")
    return found


def gateway_argv(port: int, upstream: str, folder: Path) -> list[str]:  # noqa: ARG001 (as the others')
    """Two tenants, ``wfq``, as many slots as streams: the whole product but the trace."""
    argv = [sys.executable, "-m", "backends.gateway", "--port", str(port), "--upstream", upstream, "--policy", "wfq"]
    return [*argv, "--tenant", "chat", "--tenant", "b", "--slots", "64", "--log-level", "warning"]


def _aiohttp_argv(port: int, upstream: str, folder: Path) -> list[str]:  # noqa: ARG001 (as the others')
    return [sys.executable, FLOORS, "aiohttp", str(port), upstream]


def _starlette_argv(port: int, upstream: str, folder: Path) -> list[str]:  # noqa: ARG001 (as the others')
    python = os.environ.get("LMPERF_BENCH_STARLETTE")
    if not python and any(importlib.util.find_spec(name) is None for name in ("starlette", "httpx", "uvicorn")):
        raise NotHere("starlette, httpx and uvicorn are not here: set LMPERF_BENCH_STARLETTE to a python that has them")
    return [python or sys.executable, FLOORS, "starlette", str(port), upstream]


def _router(variable: str, name: str, *launch: str) -> Callable[[int, str, Path], list[str]]:
    def argv(port: int, upstream: str, folder: Path) -> list[str]:  # noqa: ARG001 (as the others')
        told = [
            _command(variable, name),
            *launch,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--worker-urls",
            upstream,
        ]
        return [*told, "--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(free_port())]

    return argv


def _nginx_argv(port: int, upstream: str, folder: Path) -> list[str]:
    command = _command("LMPERF_BENCH_NGINX", "nginx")
    conf = folder / "nginx.conf"
    conf.write_text(_NGINX.format(folder=folder, address=upstream.removeprefix("http://"), port=port))
    return [command, "-e", "stderr", "-p", str(folder), "-c", str(conf)]


def _litellm_argv(port: int, upstream: str, folder: Path) -> list[str]:
    command = _command("LMPERF_BENCH_LITELLM", "litellm")
    conf = folder / "litellm.yaml"
    conf.write_text(_LITELLM.format(upstream=upstream))
    return [command, "--config", str(conf), "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"]


GATEWAY = Proxy("gateway", gateway_argv, python=True)
PROXIES = (
    GATEWAY,
    Proxy("aiohttp pass-through", _aiohttp_argv, python=True),
    Proxy("Starlette + httpx", _starlette_argv, python=True),
    Proxy(
        "LiteLLM proxy",
        _litellm_argv,
        python=True,
        env={"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true", "LITELLM_LOG": "ERROR"},
    ),
    Proxy("vllm-router", _router("LMPERF_BENCH_VLLM_ROUTER", "vllm-router"), python=False),
    Proxy("sglang-router", _router("LMPERF_BENCH_SGLANG_ROUTER", "sglang-router", "launch"), python=False),
    Proxy("nginx", _nginx_argv, python=False),
)
