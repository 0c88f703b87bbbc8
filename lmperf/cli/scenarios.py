"""From flags to a scenario: a file or built-in one with overrides, or the classic one-shot benchmark."""

from __future__ import annotations

import argparse
from pathlib import Path as FilePath
from typing import Any

from lmperf.catalog import find_scenario
from lmperf.scenario.faults import Fault, Path, Place, ScenarioError
from lmperf.scenario.load import Scenario, load_scenario, scenario_from_data
from lmperf.wiring.known import installed

DEFAULT_USERS = 16
DEFAULT_INPUT_TOKENS = 1024
DEFAULT_OUTPUT_TOKENS = 128


_FLAGS: dict[Path, str] = {
    ("num_prompts",): "--num-prompts",
    ("duration_s",): "--duration",
    ("seed",): "--seed",
    ("policy",): "--policy",
    ("policy", "name"): "--policy",
    ("slots", "sequences"): "--concurrency",
    ("backend", "server_model"): "--server-model",
    ("backend", "tokenizer"): "--tokenizer",
    ("backend", "api_key"): "--api-key",
    ("backend", "url"): "--model, --base-url",
    ("tenants", "default", "users"): "--concurrency",
    ("tenants", "default", "rate"): "--request-rate",
    ("tenants", "default", "arrivals", "burstiness"): "--burstiness",
    ("tenants", "default", "prompt"): "--random-input-len",
    ("tenants", "default", "output"): "--random-output-len",
}
"""Which flag of the one-shot benchmark gave what: faults name it."""


def scenario_of(args: argparse.Namespace) -> Scenario:
    """The scenario of ``lmperf run``. Raises ScenarioError with every fault."""
    if args.scenario is None:
        return scenario_from_data(
            quick_scenario(args), file="<flags>", flags=_FLAGS, overrides=args.settings, known=installed()
        )
    return load_scenario(find_scenario(args.scenario), overrides=[*_overrides(args), *args.settings], known=installed())


def named_scenario(name: str, args: argparse.Namespace) -> Scenario:
    """A scenario by file or built-in name with ``--set``, ``--seed`` and ``--server-model``."""
    overrides = list(args.settings)
    if args.seed is not None:
        overrides.append(f"seed={args.seed}")
    if args.server_model is not None:
        overrides.append(f"backend.server_model={args.server_model}")
    return load_scenario(find_scenario(name), overrides=overrides, known=installed())


def _target(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """(URL, model's name) of ``--model`` and ``--base-url``."""
    if args.base_url is not None:
        return args.base_url, args.model
    return args.model, None


def _headers(args: argparse.Namespace) -> dict[str, str]:
    headers = {}
    for text in args.header:
        name, separator, value = text.partition("=" if "=" in text.partition(":")[0] else ":")
        if not separator or not name.strip():
            raise ScenarioError.single("<flags>", f"--header {name!r} has no value", "write --header NAME=VALUE")
        headers[name.strip()] = value.strip()
    return headers


def _overrides(args: argparse.Namespace) -> list[str]:
    """Flags that change a scenario file, as ``--set`` settings."""
    url, model = _target(args)
    flags = {
        "backend.url": url,
        "backend.model": model,
        "backend.endpoint": args.endpoint,
        "backend.server_model": args.server_model,
        "backend.tokenizer": args.tokenizer,
        "backend.api_key": args.api_key,
        "num_prompts": args.num_prompts,
        "duration_s": args.duration,
        "seed": args.seed,
        "policy": args.policy,
        "load.at": args.at,
        "workers": args.workers,
        "slots.sequences": args.concurrency,
    }
    found = [f"{path}={value}" for path, value in flags.items() if value is not None]
    if url is not None:
        found.append("backend.kind=openai")
    if args.insecure:
        found.append("backend.insecure=true")
    if args.ignore_eos is not None:
        found.append(f"backend.ignore_eos={str(args.ignore_eos).lower()}")
    found += [f'backend.headers."{name}"={value}' for name, value in _headers(args).items()]
    _refuse_tenant_flags(args)
    return found


def _refuse_tenant_flags(args: argparse.Namespace) -> None:
    """Flags that describe the one tenant of a one-shot benchmark say nothing of which tenant of a scenario they mean.
    Raises ScenarioError."""
    settings = {
        "--request-rate": (args.request_rate, "--set tenants.NAME.rate=R"),
        "--burstiness": (args.burstiness, "--set tenants.NAME.arrivals.burstiness=B"),
        "--random-input-len": (args.random_input_len, "--set tenants.NAME.prompt=TOKENS"),
        "--random-output-len": (args.random_output_len, "--set tenants.NAME.output=TOKENS"),
        "--goodput": (args.goodput, "--set tenants.NAME.slo.ttft_ms=MS"),
    }
    faults = [
        Fault(Place("<flags>"), (), f"{flag} does not say which tenant of the scenario it means", f"use {instead}")
        for flag, (value, instead) in settings.items()
        if value is not None
    ]
    if faults:
        raise ScenarioError(faults)


def quick_scenario(args: argparse.Namespace) -> dict[str, Any]:
    """The scenario that flags alone describe: one tenant, random prompts."""
    url, model = _target(args)
    if url is None:
        raise ScenarioError.single(
            "<flags>",
            "neither a scenario nor a server is named",
            "name a server (--model localhost:8000), a scenario file, or a built-in scenario (lmperf scenarios)",
        )
    tenant: dict[str, Any] = {
        "prompt": DEFAULT_INPUT_TOKENS if args.random_input_len is None else args.random_input_len,
        "output": DEFAULT_OUTPUT_TOKENS if args.random_output_len is None else args.random_output_len,
    }
    slots: dict[str, Any] | None = None
    policy = args.policy
    if args.request_rate is None:
        tenant["users"] = DEFAULT_USERS if args.concurrency is None else args.concurrency
    else:
        tenant["rate"] = args.request_rate
        if args.burstiness is not None:
            tenant["arrivals"] = {"process": "gamma", "burstiness": args.burstiness}
        if args.concurrency is not None:
            policy = policy or "fifo"
            slots = {"sequences": args.concurrency}
    if args.goodput:
        tenant["slo"] = _goodput(args.goodput)
    headers = _headers(args)
    backend: dict[str, Any] = {
        "kind": "openai",
        "url": url,
        "model": model,
        "endpoint": args.endpoint,
        "api_key": args.api_key,
        "headers": headers or None,
        "insecure": args.insecure or None,
        "tokenizer": None if args.tokenizer is None else str(FilePath(args.tokenizer).resolve()),
        "server_model": args.server_model,
        "ignore_eos": True if args.ignore_eos is None else args.ignore_eos,
    }
    data: dict[str, Any] = {
        "version": 1,
        "name": "one-shot",
        "num_prompts": args.num_prompts,
        "duration_s": args.duration,
        "seed": args.seed,
        "workers": args.workers,
        "backend": {key: value for key, value in backend.items() if value is not None},
        "policy": policy,
        "slots": slots,
        "tenants": {"default": tenant},
    }
    if args.num_prompts is None and args.duration is None:
        data["num_prompts"] = 500
    return {key: value for key, value in data.items() if value is not None}


def _goodput(limits: list[str]) -> dict[str, float | None]:
    """``ttft:200 tpot:30`` as limits of a tenant; without a target they promise nothing and only count goodput."""
    from tenants.thresholds import parse_goodput  # noqa: PLC0415 (only with the flag)

    try:
        slo = parse_goodput(limits)
    except ValueError as error:
        raise ScenarioError.single("<flags>", str(error), "write --goodput ttft:200 tpot:30 (ms)") from error
    values = {
        "ttft_ms": slo.ttft_ns,
        "tpot_ms": slo.tpot_ns,
        "e2e_ms": slo.e2e_ns,
        "max_itl_ms": slo.max_itl_ns,
    }
    return {"attainment": None} | {name: value / 1e6 for name, value in values.items() if value is not None}
