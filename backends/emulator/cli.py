"""The command line of the embedded server: ``python -m backends.emulator``; ``lmperf emulate`` shares its parser."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec
import uvloop

from backends.emulator.answers import OutputLengths
from backends.emulator.config import DEFAULT_MAX_MODEL_LEN, DEFAULT_PRESET, EmulatorConfig
from backends.emulator.server import EmulatorServer
from backends.usage import UsageParser
from scheduler.server_model.spec import PRESETS, ServerLimits, ServerModelSpec, load_server_model

READY_PREFIX = "lmperf emulate: serving "
EXIT_OK, EXIT_FAILED, EXIT_BAD_CONFIGURATION, EXIT_CANNOT_SERVE = 0, 1, 104, 106

_log = logging.getLogger(__name__)


def port_number(text: str) -> int:
    """A port for argparse: 0 to 65535."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port: 0 to 65535")
    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=port_number, default=0, help="port to listen on; 0, the default, takes a free one"
    )
    parser.add_argument(
        "--server-model",
        default=DEFAULT_PRESET,
        metavar="FILE|PRESET",
        help=f"timings: a calibrated file or a preset ({', '.join(sorted(PRESETS))}; default: %(default)s)",
    )
    parser.add_argument(
        "--time-scale", type=float, default=1.0, metavar="X", help="X times as slow as the server model (default: 1)"
    )
    parser.add_argument("--max-num-seqs", type=int, metavar="N", help="sequences in the batch (default: the model's)")
    parser.add_argument(
        "--max-num-batched-tokens", type=int, metavar="N", help="token budget of a step (default: the model's)"
    )
    parser.add_argument("--kv-tokens", type=int, metavar="N", help="tokens in the KV cache (default: the model's)")
    parser.add_argument(
        "--prefix-cache",
        action=argparse.BooleanOptionalAction,
        help="do not prefill blocks at the front of prompts that are still in the KV cache (default: the model's)",
    )
    parser.add_argument(
        "--speculative-tokens", type=int, metavar="K", help="tokens drafted a step and sequence (default: the model's)"
    )
    parser.add_argument(
        "--speculative-acceptance",
        type=float,
        metavar="P",
        help="probability that a drafted token is accepted (default: the model's)",
    )
    parser.add_argument(
        "--max-model-len",
        type=int,
        default=DEFAULT_MAX_MODEL_LEN,
        metavar="N",
        help="longest prompt plus answer, in tokens; never more than the KV cache (default: %(default)s)",
    )
    parser.add_argument("--model-name", metavar="NAME", help="model id to serve (default: the server model's name)")
    parser.add_argument(
        "--api-key-env", metavar="VARIABLE", help="environment variable that holds the key clients must send"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the words and lengths of answers (default: 0)")
    parser.add_argument(
        "--output-mean",
        type=float,
        default=OutputLengths().mean,
        metavar="TOKENS",
        help="mean answer where the client leaves its end to the model (default: %(default)s)",
    )
    parser.add_argument(
        "--output-cv",
        type=float,
        default=OutputLengths().cv,
        metavar="X",
        help="standard deviation of these answers' lengths over their mean (default: %(default)s)",
    )
    parser.add_argument(
        "--truth", type=Path, metavar="FILE", help="write when each token was really sent, as JSON lines, to FILE"
    )
    parser.add_argument(
        "--exit-with-stdin", action="store_true", help="stop when standard input ends: a child dies with its parent"
    )
    parser.add_argument(
        "--log-level", default="warning", choices=("debug", "info", "warning", "error"), help="default: %(default)s"
    )


def config_from_args(args: argparse.Namespace) -> EmulatorConfig:
    """Raises ValueError (also ServerModelError) that says which option is wrong."""
    spec = load_server_model(args.server_model)
    return EmulatorConfig(
        host=args.host,
        port=args.port,
        server_model=_with_limits(spec, args),
        time_scale=args.time_scale,
        model_name=args.model_name,
        max_model_len=args.max_model_len,
        api_key=_api_key(args.api_key_env),
        seed=args.seed,
        truth_path=args.truth,
        output=OutputLengths(mean=args.output_mean, cv=args.output_cv),
    )


def _with_limits(spec: ServerModelSpec, args: argparse.Namespace) -> ServerModelSpec:
    stated = {name: getattr(args, name, None) for name in ServerLimits.__struct_fields__}
    given = {name: value for name, value in stated.items() if value is not None}
    # Built anew rather than replaced, so that the struct's own checks see the combination.
    limits = ServerLimits(**{**msgspec.structs.asdict(spec.limits), **given})
    return msgspec.structs.replace(spec, limits=limits)


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise ValueError(f"--api-key-env {variable}: this environment variable is not set")
    return key


def run_from_args(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit code."""
    logging.basicConfig(level=args.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        config = config_from_args(args)
    except ValueError as error:
        print(f"lmperf emulate: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIGURATION
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, exit_with_stdin=args.exit_with_stdin))


async def _serve(config: EmulatorConfig, *, exit_with_stdin: bool) -> int:
    loop = asyncio.get_running_loop()
    asked_to_stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, asked_to_stop.set)
    server = EmulatorServer(config)
    try:
        await server.start()
    except OSError as error:
        print(f"lmperf emulate: cannot serve on {config.host}:{config.port}: {error}", file=sys.stderr)
        return EXIT_CANNOT_SERVE
    if exit_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _read_stdin, asked_to_stop)
    # What start-up made stays for good: keep the collector from walking it in the middle of a step.
    gc.collect()
    gc.freeze()
    print(f"{READY_PREFIX}{config.served_name} at {server.url}", flush=True)
    stop = asyncio.ensure_future(asked_to_stop.wait())
    failure = asyncio.ensure_future(server.failure())
    try:
        await asyncio.wait((stop, failure), return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            _log.error("the engine failed", exc_info=failure.exception())
            return EXIT_FAILED
        return EXIT_OK
    finally:
        stop.cancel()
        failure.cancel()
        await server.stop()


def _read_stdin(ended: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        ended.set()


def main(argv: list[str] | None = None) -> int:
    parser = UsageParser(
        prog="lmperf emulate",
        description="An OpenAI-compatible server that answers with the timing of a calibrated server model.",
        allow_abbrev=False,
    )
    add_arguments(parser)
    return run_from_args(parser.parse_args(argv))
