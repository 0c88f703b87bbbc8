"""``lmperf demo``: the main job in 90 seconds. Live under two policies, the captured trace simulated under all."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from lmperf.catalog import find_scenario
from lmperf.cli.comparison_text import print_reproduction
from lmperf.cli.output import output_folder, percentiles_of, results_folder
from lmperf.cli.run_command import run_once, show
from lmperf.console import Progress, results_console
from lmperf.exit_codes import ExitCode
from lmperf.scenario.load import load_scenario
from lmperf.wiring.captured import captured_run, server_for
from lmperf.wiring.known import installed
from lmperf.wiring.live import LiveOptions
from lmperf.wiring.offline import TraceAnswer, policy_choices, replay_policies
from lmperf.wiring.results import RunResult
from lmperf.wiring.saturation import resolve_with_saturation
from loadgen.fitted_table import FittedTable
from loadgen.offline.experiment import PolicyChoice
from loadgen.recorder import Recorder
from loadgen.report.comparison import Comparison, FidelityTable
from loadgen.report.render import write_comparison
from loadgen.summary.build import summarise
from scheduler.server_model.spec import encode_server_model
from tenants.measures.attainment import attainment
from tenants.measures.percentile import PercentileValue
from tenants.measures.shares import percent, promised
from tenants.slo import Metric

LIVE_POLICIES = ("fifo", "slo_aware")


def run(args: argparse.Namespace) -> ExitCode:
    args.output_dir = args.output_dir or "results/demo"
    progress = Progress(quiet=args.quiet)
    console = results_console()
    live: dict[str, RunResult] = {}
    console.print(
        "Three tenants share one server: chat (short, wants its first token in 0.5 s), rag (long prompts, 1.5 s) and batch,\n"
        "which floods it in bursts of 100. Which queue in front of the server keeps chat and rag within their SLOs?\n"
    )
    with results_folder(output_folder(args, "demo"), args.argv) as directory:
        try:
            _measure(live, directory, percentiles_of(args), progress)
            progress.stage("[3 of 3] the trace captured under fifo, simulated under every policy")
            choices = policy_choices("all")
            answer = _simulated(_folder(directory, "fifo"), directory, choices)
        except KeyboardInterrupt:
            console.print(_kept(live, directory), soft_wrap=True)
            raise
    _conclude(console, live, answer, directory)
    if answer.interrupted:
        done = f"{len(answer.as_captured)} of {len(choices)} policies were simulated"
        console.print(f"interrupted: {done}, and the figures are of these; both live runs are whole", soft_wrap=True)
        return ExitCode.INTERRUPTED
    # Broken SLOs are what the demo shows, and a busy machine is said so in a banner: neither is a failure of the demo.
    return ExitCode.OK


def _folder(directory: Path, policy: str) -> Path:
    return directory / f"live-{policy}"


def _measure(live: dict[str, RunResult], directory: Path, percentiles: tuple[float, ...], progress: Progress) -> None:
    """Puts the live runs into ``live``, one after the other. Raises KeyboardInterrupt, also when one ended in order."""
    for number, policy in enumerate(LIVE_POLICIES, start=1):
        progress.stage(f"[{number} of 3] live on the embedded server, policy {policy}, 25 s of arrivals")
        scenario = load_scenario(find_scenario("demo"), overrides=[f"policy={policy}"], known=installed())
        plan = resolve_with_saturation(scenario)
        options = LiveOptions(directory=_folder(directory, policy), percentiles=percentiles)
        live[policy] = run_once(scenario, plan, options, progress)
        show(live[policy])
        if live[policy].interrupted:
            raise KeyboardInterrupt


def _kept(live: Mapping[str, RunResult], directory: Path) -> str:
    """What an interrupt left, and what can be done with it."""
    if not live:
        return "interrupted: no live run was measured"
    runs = [f"{_folder(directory, policy)}{', cut short' if run.interrupted else ''}" for policy, run in live.items()]
    folders = " ".join(str(_folder(directory, policy)) for policy in live)
    way = f"lmperf compare {folders}" if len(live) > 1 else f"lmperf simulate {folders} --policies all"
    return f"interrupted: kept {' and '.join(runs)}\nNext: {way}"


def _simulated(trace: Path, directory: Path, choices: Sequence[PolicyChoice]) -> TraceAnswer:
    captured = captured_run(trace, recorded=False)
    server, fit = server_for(captured, None)
    (directory / "server-model.json").write_bytes(encode_server_model(server))
    return replay_policies(captured, server, fit, choices, scratch=directory.absolute())


def _conclude(console: Console, live: Mapping[str, RunResult], answer: TraceAnswer, directory: Path) -> None:
    print_reproduction(console, [row for row in answer.reproduction if row.tenant == "all"], answer.captured.arrivals)
    if answer.as_captured:
        console.print(_table(live, answer.as_captured))
    console.print(
        "How to read it: 'kept' is the share of the tenant's requests that met all its limits. The simulator was calibrated "
        f"from\nthe fifo run's client-side timestamps alone ({answer.fit.how if answer.fit else 'as named'}); where a policy "
        "ran live too, compare the two columns. A run of "
        "25 s is too\nshort to call an SLO kept: its verdict is 'undecided', or 'BROKEN' where even so little shows it.\n",
        soft_wrap=True,
    )
    runs = {f"{policy} (live)": result.summary for policy, result in live.items()}
    runs |= {f"{label} (simulated)": summarise(recorder) for label, recorder in answer.as_captured.items()}
    tenants = answer.captured.tenants
    report = write_comparison(
        directory / "comparison.html",
        Comparison(
            runs=runs,
            fidelity=FidelityTable(rows=answer.reproduction, arrivals=answer.captured.arrivals),
            targets={t.name: t.slo.attainment for t in tenants if t.slo.attainment is not None},
            noisy=("batch",),
            in_contract=("chat", "rag"),
        ),
        title="Demo: a noisy neighbour under every policy, live beside simulated",
        command="lmperf demo",
    )
    console.print("Written:", soft_wrap=True)
    for path in (
        report,
        *(_folder(directory, policy) / "report.html" for policy in live),
        directory / "server-model.json",
    ):
        console.print(f"  {path}", soft_wrap=True)
    console.print(f"Next: lmperf simulate {_folder(directory, 'fifo')} --policies all", soft_wrap=True)


def _table(live: Mapping[str, RunResult], simulated: Mapping[str, Recorder]) -> FittedTable:
    table = FittedTable(
        "One noisy neighbour, every policy: live beside simulated",
        ("policy", "tenant"),
        ("TTFT P99 live", "simulated", "kept live", "simulated", "promised"),
    )
    order = [*(p for p in LIVE_POLICIES if p in simulated), *(p for p in simulated if p not in LIVE_POLICIES)]
    for policy in order:
        recorder = simulated[policy]
        columns = recorder.columns().judged()
        for index, tenant in enumerate(recorder.tenants):
            share = attainment(columns.of(tenant.name), tenant.slo).share
            measured = live[policy].summary.tenant(tenant.name) if policy in live else None
            p99 = None if measured is None else measured.metric("ttft").at(99.0)
            kept = None if measured is None or measured.attainment is None else measured.attainment.share
            table.add_row(
                policy if index == 0 else "",
                tenant.name,
                "" if p99 is None else f"{p99.text(0)} ms",
                _ms(recorder.histogram(Metric.TTFT, tenant.name).percentile(99.0)),
                "" if kept is None else f"{percent(kept)}%",
                "-" if share is None else f"{percent(share)}%",
                "-" if tenant.slo.attainment is None else f"{promised(tenant.slo.attainment)}%",
            )
        table.add_section()
    return table


def _ms(value: PercentileValue) -> str:
    bound = value.at_least_ns
    return "-" if bound is None else f"{'> ' if value.never else ''}{bound / 1e6:,.0f} ms"
