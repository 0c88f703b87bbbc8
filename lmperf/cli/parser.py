"""All flags of all commands. Imports nothing but argparse: ``--help`` must be instant.

Flag names are those that users of the field's tools already type (vLLM's ``bench serve``, GuideLLM, AIPerf).
"""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from lmperf import __version__
from lmperf.exit_codes import ExitCode
from lmperf.flag_defaults import LIVE_DURATION_S, PERCENTILES, READY_TIMEOUT_S

DESCRIPTION = """\
Which queue policy keeps every tenant's SLO on a shared LLM server, at what load, and how sure are we?

Live, against a real server:   lmperf run SCENARIO            (or: lmperf run --model localhost:8000 ...)
Offline, by simulation:        lmperf simulate TRACE|SCENARIO --policies fifo,wfq,slo_aware
"""

PASS_THROUGH = ("emulate", "gateway")
"""Commands whose own modules parse their flags."""


class Parser(argparse.ArgumentParser):
    """Wrong flags are a bad configuration: exit code 104, not argparse's 2. As ``backends.usage``, which cannot be imported
    before the front door knows that ``backends`` is lmperf's own."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(int(ExitCode.BAD_CONFIG), f"{self.prog}: {message}\n")


def _wait(text: str) -> float:
    """Seconds to wait: 0 or more, and not for ever."""
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no time to wait: 0 or more seconds")
    return seconds


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is none: at least 1")
    return number


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="lmperf", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"lmperf {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _run(commands.add_parser("run", help="load-test a server, live", allow_abbrev=False))
    _simulate(
        commands.add_parser("simulate", help="replay a trace or scenario under several policies", allow_abbrev=False)
    )
    _capacity(commands.add_parser("capacity", help="the highest load that keeps every SLO", allow_abbrev=False))
    _tune(commands.add_parser("tune", help="try policies, slots, weights and limits; recommend", allow_abbrev=False))
    _calibrate(commands.add_parser("calibrate", help="fit a server model to captured traces", allow_abbrev=False))
    _demo(commands.add_parser("demo", help="the main job in 90 seconds, on the embedded server", allow_abbrev=False))
    commands.add_parser("emulate", help="start the embedded OpenAI-compatible server", add_help=False)
    commands.add_parser("gateway", help="the queue in front of real servers, for any client", add_help=False)
    _report(commands.add_parser("report", help="render the HTML report of a run again", allow_abbrev=False))
    _compare(commands.add_parser("compare", help="two or more runs side by side", allow_abbrev=False))
    _trace(commands.add_parser("trace", help="inspect, convert, slice, scale, import traces", allow_abbrev=False))
    _validate(commands.add_parser("validate", help="check a scenario and print its plan", allow_abbrev=False))
    _doctor(commands.add_parser("doctor", help="can a run on this machine be trusted?", allow_abbrev=False))
    commands.add_parser("schema", help="print the JSON Schema of scenario files", allow_abbrev=False)
    commands.add_parser("scenarios", help="list the built-in scenarios", allow_abbrev=False)
    commands.add_parser("policies", help="list the installed queue policies", allow_abbrev=False)
    commands.add_parser("backends", help="list the installed backends", allow_abbrev=False)
    return parser


def _set_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="change one value of the scenario: --set tenants.chat.rate=20 (may be repeated)",
    )


def _scenario_flags(parser: argparse.ArgumentParser) -> None:
    _set_flag(parser)
    parser.add_argument("--seed", type=int, help="seed of every draw (default: the scenario's, 0)")
    parser.add_argument("--server-model", metavar="FILE|PRESET", help="server model in place of the scenario's")


def _output_flags(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--output-dir", metavar="DIR", help=f"where results go (default: {default})")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _percentiles_flag(parser: argparse.ArgumentParser, of: str = "report") -> None:
    """No default here: where nothing is run live, the flag has nothing to say and is refused."""
    parser.add_argument(
        "--percentiles",
        metavar="P,P,...",
        help=f"percentiles to {of} (default: {','.join(f'{p:g}' for p in PERCENTILES)})",
    )


def _run(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run a scenario (a file or a built-in name), or, without one, random prompts against --model. Results go to one "
        "folder: summary.json, summary.csv, requests.parquet, *.hlog, report.html, scenario.resolved.yaml, log.txt."
    )
    parser.add_argument("scenario", nargs="?", help="scenario file, or the name of a built-in one (lmperf scenarios)")
    target = parser.add_argument_group("target")
    target.add_argument(
        "--model",
        metavar="URL|NAME",
        help="the server, as host:port or URL; its model id is asked for. With --base-url: the model's name",
    )
    target.add_argument("--base-url", metavar="URL", help="the server, when --model names the model")
    target.add_argument(
        "--endpoint", choices=("auto", "chat", "completions"), help="default: chat when the server has it"
    )
    target.add_argument(
        "--api-key",
        metavar="KEY",
        help="bearer key; better: '${env:NAME}' or '${file:PATH}', which are never written anywhere",
    )
    target.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="HTTP header (may be repeated)"
    )
    target.add_argument("--insecure", action="store_true", help="accept any TLS certificate")
    target.add_argument(
        "--tokenizer", metavar="DIR", help="local tokenizer for exact prompt lengths; nothing is fetched"
    )
    target.add_argument(
        "--ready-timeout",
        type=_wait,
        default=READY_TIMEOUT_S,
        metavar="S",
        help="wait so long for the server (%(default)g)",
    )
    load = parser.add_argument_group("load")
    load.add_argument("--num-prompts", type=int, metavar="N", help="stop after N requests")
    load.add_argument(
        "--concurrency",
        "--max-concurrency",
        type=int,
        metavar="N",
        help="without a rate: N users in a closed loop; with a rate: N slots behind a queue (fifo unless --policy says)",
    )
    load.add_argument("--request-rate", type=float, metavar="R", help="open loop: requests/s, from a schedule")
    load.add_argument("--burstiness", type=float, metavar="B", help="gamma shape; 1 = Poisson (default)")
    load.add_argument("--duration", type=float, metavar="S", help="arrivals in [0, S)")
    load.add_argument("--random-input-len", type=int, metavar="TOKENS", help="default: 1024")
    load.add_argument("--random-output-len", type=int, metavar="TOKENS", help="default: 128")
    load.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        help="ask for exact output lengths (default)",
    )
    load.add_argument("--goodput", nargs="+", metavar="METRIC:MS", help="limits a request must meet: ttft:200 tpot:30")
    load.add_argument("--policy", metavar="NAME", help="queue policy in front of the server (lmperf policies), or none")
    load.add_argument("--at", choices=("none", "baseline", "raised"), help="which load of the scenario to offer")
    load.add_argument(
        "--workers", type=int, metavar="N", help="processes that carry the streams (1); the queue stays one"
    )
    _scenario_flags(parser)
    _output_flags(parser, "results/NAME-TIME")
    _percentiles_flag(parser)
    parser.add_argument("--strict", action="store_true", help="exit with 98 when an SLO could not be decided")
    parser.add_argument(
        "--event-log", action="store_true", help="write every scheduling event and action (events.jsonl)"
    )
    parser.add_argument("--dry-run", action="store_true", help="check everything, print the plan, send nothing")


def _simulate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Replay a captured trace (a run folder or a file) or a scenario in the simulator under several policies. A trace is "
        "calibrated first, and how well the captured run is reproduced is printed before any comparison. With --set, a trace "
        "is compared with itself under that difference: rate=1.3, tenants.NAME.rate=2, tenants.NAME.weight=2, "
        "tenants.NAME.remove=true, tenants.NEW.add_like=NAME, slots.sequences=32, server.max_num_seqs=128, replicas=2, "
        "routing=prefix. Several differences stand side by side, and beside the trace unchanged, with --vary and --alternative."
    )
    parser.add_argument(
        "source", nargs="?", help="run folder, trace file, scenario file, or the name of a built-in scenario"
    )
    parser.add_argument("--suite", metavar="NAME", help="a set of scenarios and one table: policy-study")
    parser.add_argument(
        "--trace",
        metavar="FILE",
        help="the trace of the suite's scenarios that need one (the Azure LLM 2023 conversations)",
    )
    parser.add_argument(
        "--policies", default="fifo,wfq,slo_aware", metavar="A,B,...", help="or 'all' (default: %(default)s)"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="replicates of a scenario (default: 20; a trace: 1)")
    parser.add_argument(
        "--arrivals",
        choices=("regenerated", "recorded"),
        default="regenerated",
        help="of requests that came because another ended: anew from the simulated answers (default), or at their own times",
    )
    parser.add_argument("--processes", type=_count, metavar="N", help="default: all cores")
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="KEY=A,B,...",
        help="of a trace: one alternative for each value, side by side: --vary rate=1,1.3,1.6 (repeated: every combination)",
    )
    parser.add_argument(
        "--alternative",
        dest="alternatives",
        action="append",
        default=[],
        metavar="[NAME:]KEY=VALUE,...",
        help="of a trace: one more alternative, these settings together: --alternative 'two servers: replicas=2, rate=1.5' "
        "(may be repeated); a --set holds in every alternative",
    )
    _scenario_flags(parser)
    _output_flags(parser, "results/simulate-NAME-TIME")


def _live_flags(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--live", action="store_true", help=f"confirm {what} by live runs against the scenario's server"
    )
    parser.add_argument(
        "--live-duration", type=float, metavar="S", help=f"arrivals of each live run, s ({LIVE_DURATION_S:g})"
    )
    parser.add_argument(
        "--ready-timeout", type=_wait, metavar="S", help=f"wait so long for the server ({READY_TIMEOUT_S:g})"
    )
    _percentiles_flag(parser, "report of live runs")


def _capacity(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Find the highest load, as a factor on every tenant's load, at which every tenant's attainment is at its target: "
        "simulated over seeds, bracketed and bisected, with an interval. Every load tried is printed and written."
    )
    parser.add_argument("scenario", help="scenario file, or the name of a built-in one (lmperf scenarios)")
    parser.add_argument("--policies", metavar="A,B,...", help="or 'all' (default: the scenario's policy)")
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="runs of each load (default: %(default)s)")
    parser.add_argument("--tolerance", type=float, default=0.02, metavar="X", help="relative width to stop at (0.02)")
    parser.add_argument("--target-rate", type=float, metavar="R", help="how many replicas take R requests/s in all")
    parser.add_argument(
        "--routing",
        metavar="RULE",
        help="which of the replicas a request goes to: least_work, round_robin, prefix, session; prefix:slack=65536 "
        "(default: the scenario's backend.routing, least_work)",
    )
    parser.add_argument("--at", choices=("none", "baseline", "raised"), help="which load of the scenario is load 1")
    parser.add_argument("--processes", type=_count, metavar="N", help="default: all cores")
    _live_flags(parser, "three loads around the answer")
    _scenario_flags(parser)
    _output_flags(parser, "results/capacity-NAME-TIME")


def _tune(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Try policies, slots, tenants' weights and admission limits in the simulator, at the baseline and the raised load "
        "of a scenario; print the trade-off and recommend a setting with its predicted attainment."
    )
    parser.add_argument("scenario", help="scenario file, or the name of a built-in one (lmperf scenarios)")
    parser.add_argument(
        "--policies",
        default="fifo,wfq,slo_aware,committed",
        metavar="A,B,...",
        help="or 'all'; options after a colon: slo_aware:late=demote (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="runs of each trial and load (%(default)s)")
    parser.add_argument("--processes", type=_count, metavar="N", help="default: all cores")
    _live_flags(parser, "the recommended setting")
    _scenario_flags(parser)
    _output_flags(parser, "results/tune-NAME-TIME")


def _calibrate(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Fit a server model to the client-side timestamps of captured runs and print its error. Exits with 104, and writes "
        "nothing, when it mispredicts what was held out by more than a factor of 2 in TPOT or throughput, or in TTFT where the "
        "times of sending cannot be right."
    )
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="run folders or trace files of one server")
    parser.add_argument("--output", "-o", metavar="FILE", help="write the server-model file here")
    parser.add_argument("--force", action="store_true", help="also when its held-out errors are beyond any use")
    parser.add_argument("--name", default="calibrated", help="name of the server model")
    parser.add_argument(
        "--max-num-batched-tokens", type=int, metavar="N", help="the server's token budget a step (8192)"
    )
    parser.add_argument(
        "--max-num-seqs", type=int, metavar="N", help="the server's batch limit (default: from the trace)"
    )
    parser.add_argument(
        "--speculative-tokens", type=int, metavar="N", help="drafts a step of a server with speculative decoding"
    )
    parser.add_argument(
        "--speculative-acceptance",
        type=float,
        metavar="P",
        help="how probable it is that each of them is accepted (default: as many as its chunks have tokens)",
    )
    parser.add_argument(
        "--attended-us",
        type=float,
        default=0.0,
        metavar="US",
        help="what attention costs: microseconds a pair of prompt tokens, which no fit can tell (0: off)",
    )


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "A noisy neighbour on the embedded server: live under fifo and under slo_aware, then the captured trace simulated "
        "under every policy, and one table that puts both side by side."
    )
    _output_flags(parser, "results/demo")
    _percentiles_flag(parser)


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run folder, also one that was killed")


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs side by side, with 95% intervals of their differences; exits with 108 when a later one is worse than the first "
        "beyond --tolerance and beyond chance; what has no interval, as of short runs, is undecided. A folder of run folders "
        "(one a seed) counts as one side: with five or more, "
        "runs of one seed are paired. An invalid run exits with 107, also when it is worse; both are printed. Folders of "
        "lmperf simulate, of one trace or one scenario, stand side by side too, and a run beside what was simulated of its "
        "arrivals; nothing of these is judged."
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run folders, or folders of them (the first is the one compared with), or of simulate",
    )
    parser.add_argument(
        "--tolerance", type=float, default=0.1, metavar="X", help="relative growth allowed (default 0.1)"
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 98 when what is worse has no interval to tell it from chance"
    )
    parser.add_argument(
        "--output-dir",
        metavar="DIR",
        help="write a page there, comparison.html, and the same as data: differences.json of runs, comparison.json of "
        "folders of simulate (default: nothing is written)",
    )


def _trace(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    inspect = actions.add_parser("inspect", help="what a trace holds", allow_abbrev=False)
    inspect.add_argument("trace")
    convert = actions.add_parser("convert", help="a public or captured format to our parquet", allow_abbrev=False)
    slice_ = actions.add_parser("slice", help="a part of a trace, by time or rows", allow_abbrev=False)
    scale = actions.add_parser("scale", help="a trace played faster or slower", allow_abbrev=False)
    import_ = actions.add_parser("import", help="any access log (CSV, JSONL) to our parquet", allow_abbrev=False)
    for action in (convert, slice_, scale, import_):
        action.add_argument("trace")
        action.add_argument("--output", "-o", required=True, metavar="FILE", help="parquet file to write")
    for action in (convert, import_):
        action.add_argument("--tenants", metavar="RULE", help="round_robin:a,b | weights:a=1,b=2 | column:NAME | ...")
    convert.add_argument("--format", metavar="NAME", help="default: by content")
    slice_.add_argument("--start", type=float, default=0.0, metavar="S")
    slice_.add_argument("--end", type=float, metavar="S")
    slice_.add_argument("--rows", type=int, metavar="N")
    scale.add_argument("--speed", type=float, required=True, metavar="X", help="gaps are divided by X")
    import_.add_argument(
        "--map", required=True, metavar="KEY=COLUMN,...", help="arrival=ts,tenant=key,prompt_tokens=p,output_tokens=o"
    )


def _validate(parser: argparse.ArgumentParser) -> None:
    parser.description = "Check a scenario; print its plan, the expected width of each verdict and how long one needs."
    parser.add_argument("scenario")
    parser.add_argument("--at", choices=("none", "baseline", "raised"))
    _scenario_flags(parser)


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Look at the machine (clock, timers, open files, CPUs and load) and at what a scenario needs of it and of its server "
        "(is it there, model, context, tokenizer, connections, processes), or with --model at a server: one line each, with "
        "what to do. Exits with 0 when a run can be trusted; else 104 (set-up), 106 (server) or 107 (the generator would "
        "fall behind)."
    )
    parser.add_argument("scenario", nargs="?", metavar="SCENARIO", help="scenario file, or a built-in scenario")
    _set_flag(parser)
    parser.add_argument("--model", metavar="URL", help="the server, as host:port or URL; in place of the scenario's")
    parser.add_argument("--api-key", metavar="KEY", help="bearer key; better: '${env:NAME}' or '${file:PATH}'")
    parser.add_argument("--insecure", action="store_true", help="accept any TLS certificate")
    parser.add_argument(
        "--concurrency", type=int, metavar="N", help="connections that a run will have (default: the scenario's, or 64)"
    )
