"""What a scenario needs of this machine and of its server, looked at before its run.

The server is made ready as the run makes it (the embedded one is started), asked for its model, its context and its
tokenizer, and left. Everything wrong becomes a :class:`Check`, so that one look names all of it; what nothing can be said
of without a server is left out when there is none.
"""

from __future__ import annotations

from collections.abc import Iterator

from backends.emulator.process import EmulatorProcessError
from backends.protocol import BackendError
from lmperf.exit_codes import ExitCode
from lmperf.scenario.checks import EMBEDDED
from lmperf.scenario.faults import Fault, ScenarioError
from lmperf.scenario.load import Scenario
from lmperf.scenario.plan import Plan
from lmperf.wiring.doctor import Check, State
from lmperf.wiring.live import connections
from lmperf.wiring.live_slots import check_waiting_counts
from lmperf.wiring.live_workers import workers_of
from lmperf.wiring.prompting import TokenizerError, prompts_for
from lmperf.wiring.run_clock import RunClock
from lmperf.wiring.sources import growth_of, recipe_of, source_of
from lmperf.wiring.targets import Target, ready_target
from lmperf.wiring.too_long import too_long
from loadgen.workload.demand import mean_tokens, mean_turns

TOKEN_S = 12e-6
"""CPU time of the generator for each streamed token, requests of 100 tokens (docs/accuracy.md, "Cost")."""


def connections_of(plan: Plan) -> int:
    """Sockets that each process of the run will have open at once, as far as that is known."""
    count, _ = workers_of(plan)
    return -(-connections(plan) // count)


def machine_checks(plan: Plan, cpus: float) -> Iterator[Check]:
    """Whether ``cpus`` cores carry the run's processes, and its tokens, as far as they are known."""
    count, notes = workers_of(plan)
    parts = [f"{count} worker{'s' if count > 1 else ''}" if count > 1 else "the generator"]
    processes = count + (count > 1)
    if count > 1:
        parts.append("the process of the queue")
    if plan.backend.kind == EMBEDDED:
        processes += 1
        parts.append("the embedded server")
    said = f"{processes} busy process{'es' if processes > 1 else ''} ({', '.join(parts)}) on {cpus:g} CPUs"
    if processes > cpus:
        yield Check("processes", State.WARN, said, "they delay each other: fewer workers, or a machine with more cores")
    else:
        yield Check("processes", State.OK, said)
    yield from (Check("workers", State.WARN, note) for note in notes)
    yield _load(plan, count)


def _load(plan: Plan, count: int) -> Check:
    tokens_per_s, unknown = 0.0, []
    for planned in plan.tenants:
        traffic = planned.traffic
        rate = None if traffic is None else traffic.arrivals.rate
        if traffic is None or rate is None:
            unknown.append(planned.tenant.name)
        else:
            tokens_per_s += rate * mean_turns(traffic) * mean_tokens(traffic)[1]
    rest = f"; {', '.join(unknown)}: as fast as the server answers, or as the trace has it" if unknown else ""
    if not tokens_per_s:
        return Check("load", State.NOTE, f"the load is not known beforehand{rest}")
    share = tokens_per_s * TOKEN_S / count
    said = f"about {tokens_per_s:,.0f} output tokens/s are asked for: {share:.0%} of a core for each generator{rest}"
    if share > 0.8:
        most = -(-tokens_per_s * TOKEN_S // 0.5)
        return Check("load", State.WARN, said, f"beyond 80% a run comes out invalid: --workers {most:.0f}")
    return Check("load", State.OK, said)


async def server_checks(scenario: Scenario, plan: Plan, *, timeout_s: float) -> list[Check]:
    """Server, model, context, waiting counts and tokenizer; ends at what the rest depends on."""
    missing = scenario.secrets.missing()
    if missing:
        return [Check("secrets", State.BAD, str(fault), "", ExitCode.BAD_CONFIG) for fault in missing]
    found: list[Check] = []
    try:
        async with ready_target(
            plan, scenario, RunClock(), ready_timeout_s=timeout_s, on_wait=lambda _elapsed_s, _reason: None
        ) as target:
            context = target.metadata.max_model_len
            length = "" if context is None else f", max_model_len {context:,}"
            found.append(
                Check(
                    "server",
                    State.OK,
                    f"{plan.backend.where} is ready: model {target.model}, {target.endpoint} endpoint{length}",
                )
            )
            await check_waiting_counts(plan, target)
            found += [Check("lengths", State.WARN, str(fault)) for fault in _too_long(scenario, plan, target)]
            _, exactness = await prompts_for(target, plan, _block_tokens(plan))
            state = State.OK if exactness.startswith("exact") else State.WARN
            found.append(Check("tokenizer", state, exactness))
    except (BackendError, EmulatorProcessError) as error:
        found.append(Check("server", State.BAD, f"{plan.backend.where}: {error}", "", ExitCode.BACKEND))
    except TokenizerError as error:
        found.append(Check("tokenizer", State.BAD, str(error), "", ExitCode.BAD_CONFIG))
    except ScenarioError as error:
        found.append(Check("lengths", State.BAD, str(error), "", ExitCode.BAD_CONFIG))
    return found


def _block_tokens(plan: Plan) -> int:
    return source_of(recipe_of(plan), plan.seed, growth_of(plan.tenants)).block_tokens


def _too_long(scenario: Scenario, plan: Plan, target: Target) -> tuple[Fault, ...]:
    if target.metadata.max_model_len is None:
        return ()
    return too_long(
        scenario,
        plan,
        source_of(recipe_of(plan), plan.seed, growth_of(plan.tenants)),
        max_model_len=target.metadata.max_model_len,
        ignore_eos=plan.backend.ignore_eos and target.capabilities.ignore_eos is not False,
    )
