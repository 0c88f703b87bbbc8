"""The command ``lmperf``. Only the parser is loaded here; what a command needs is loaded when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from lmperf import compiled
from lmperf.cli.parser import PASS_THROUGH, build_parser
from lmperf.exit_codes import ExitCode
from lmperf.own_packages import REMEDY, foreign_packages

_CLOSED_PIPE = 141
"""128 + SIGPIPE, as any other command whose reader went away."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (lmperf.exit_codes)."""
    try:
        code = _main(argv)
        # Here, where a closed pipe can be told from a fault; at exit the interpreter would only complain.
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("lmperf: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # Whoever reads has read enough (`| head`); nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    return code


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    foreign = foreign_packages()
    if foreign:
        for sentence in foreign:
            print(f"lmperf: {sentence}", file=sys.stderr)
        print(f"lmperf: {REMEDY}", file=sys.stderr)
        return ExitCode.BAD_CONFIG
    core = compiled.state()
    if core.warning:
        print(f"lmperf: {core.warning}", file=sys.stderr)
    if core.broken:
        return ExitCode.BAD_CONFIG
    if arguments and arguments[0] in PASS_THROUGH:
        return _pass_through(arguments[0], arguments[1:])
    args = build_parser().parse_args(arguments)
    args.argv = arguments
    from lmperf.cli.dispatch import run_command  # noqa: PLC0415 (the parser alone must stay light)

    return int(run_command(args))


def _pass_through(command: str, arguments: list[str]) -> int:
    """Servers parse their own flags, which know what they import."""
    if command == "emulate":
        from backends.emulator.cli import main as emulate  # noqa: PLC0415 (only this command needs it)

        return emulate(arguments)
    from lmperf.cli.gateway_command import main as gateway  # noqa: PLC0415 (only this command needs it)

    return gateway(arguments)


if __name__ == "__main__":
    sys.exit(main())
