"""The words of a report: its answer in one sentence, and how the load was made."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadgen.report.text import milliseconds, promise_name, rate, share, share_interval, target, tenant_latency
from loadgen.summary.schema import PromiseSummary, Summary, TenantSummary
from scheduler.routing import Routing, routed_text

_NAMED = 3
"""How many tenants one sentence names before it counts the rest."""

_NAMED_WAITING = 6
"""The same for figures that take little room."""

_WORST_FIRST = {"broken": 0, "undecided": 1}


def answer(summary: Summary, load: str | None = None) -> str:
    """What the run found, in one sentence. ``load`` says which load it was ("1.2x baseline"); without it the rate of
    arrivals is named.
    """
    where = f"{under(summary)} at {load or rate_text(summary)}"
    said = _promised(summary, where) if _with_slo(summary) else _unpromised(summary, where)
    if summary.validity.valid:
        return said
    return f"The run is invalid and proves nothing. It says: {said}"


def under(summary: Summary) -> str:
    """``under slo_aware``; who queues when it is not us."""
    if summary.queueing == "target":
        return "with the target's own queueing"
    return f"under {summary.policy or 'no policy'}"


def rate_text(summary: Summary) -> str:
    return f"{rate(summary.total.load.arrived_per_s)} requests/s"


def _with_slo(summary: Summary) -> list[TenantSummary]:
    return [tenant for tenant in summary.tenants if tenant.verdict != "no_slo"]


def _promised(summary: Summary, where: str) -> str:
    promised = _with_slo(summary)
    kept = sum(tenant.verdict == "kept" for tenant in promised)
    if len(promised) == 1:
        head = f"{promised[0].tenant} {'kept' if kept else 'has not shown that it keeps'} its SLO {where}"
        if promised[0].verdict == "broken":
            head = f"{promised[0].tenant} broke its SLO {where}"
    else:
        head = f"{kept} of {len(promised)} tenants kept their SLO {where}"
        if all(tenant.verdict == "undecided" for tenant in promised):
            head = f"None of {len(promised)} tenants has a verdict {where}"
    rest = sorted((t for t in promised if t.verdict != "kept"), key=lambda t: _WORST_FIRST.get(t.verdict, 2))
    alike: dict[str, list[str]] = {}
    for tenant in rest:
        alike.setdefault(why(tenant), []).append(tenant.tenant)
    parts = [f"{_listed(names)}: {reason}" for reason, names in list(alike.items())[:_NAMED]]
    if more := sum(len(names) for names in list(alike.values())[_NAMED:]):
        parts.append(f"and {more} more")
    return "; ".join([head, *parts]) + "."


def _listed(names: Sequence[str]) -> str:
    """``a, b and c``; of many the first, and how many more."""
    return joined(names if len(names) <= _NAMED else [*names[:_NAMED], f"{len(names) - _NAMED} more"])


def why(tenant: TenantSummary) -> str:
    """Why a tenant's verdict is what it is: its first promise with that verdict."""
    promise = next((p for p in tenant.promises if p.verdict == tenant.verdict), None)
    if promise is None:
        return tenant.verdict
    if tenant.verdict == "undecided":
        return _undecided(promise)
    return f"{tenant.verdict}, {figure_of(promise)}"


def _undecided(promise: PromiseSummary) -> str:
    if promise.promise == "attainment" and promise.interval is not None:
        between = f"its attainment lies in {share_interval(promise.interval)}, promised {target(promise.limit)}"
        return f"undecided, {between}"
    return f"undecided, {promise.why}" if promise.why else "undecided"


def figure_of(promise: PromiseSummary) -> str:
    """``97.1% of its requests met its limits, promised 99%``; ``TTFT P99 612 ms, promised at most 500 ms``."""
    if promise.promise == "attainment":
        return f"{share(promise.value)} of its requests met its limits, promised {target(promise.limit)}"
    limit = f"promised at most {milliseconds(promise.limit)} ms"
    if promise.value is None:
        return f"{promise_name(promise.promise)} was never reached, {limit}"
    return f"{promise_name(promise.promise)} {milliseconds(promise.value)} ms, {limit}"


def _unpromised(summary: Summary, where: str) -> str:
    total = summary.total
    ok = total.statuses.get("ok", 0)
    said = f"{ok:,} of {total.requests:,} requests succeeded {where}"
    p99 = tenant_latency(total, "ttft", 99.0)
    return f"{said}: TTFT P99 {p99} ms, {rate(total.throughput.output_tokens_per_s)} tokens/s; no SLO was promised."


def how_load_was_made(summary: Summary) -> list[str]:
    """Sentences on the loop, the queue and the window."""
    start, end = summary.window_s
    said = []
    if summary.load_mode == "closed":
        said.append(
            "Closed loop: each user sends, waits for the answer, thinks and sends again; an arrival is the instant its "
            "user is free, so a slow server is asked less often."
        )
    else:
        said.append(
            "Open loop: arrivals come from a schedule that never waits for the server; the wait for a free slot, and "
            "the generator's own lateness, count in every latency."
        )
    said.append(_queueing(summary))
    said.append(
        f"Statistics are over the requests whose intended arrival lies between {start:,.1f} s and {end:,.1f} s of "
        f"{summary.duration_s:,.1f} s; what came before and after is drawn, on grey, and not counted."
    )
    if summary.kind == "simulated":
        said.insert(0, "Simulated: the requests went through the policy and a model of the server, in virtual time.")
    return said


def _queueing(summary: Summary) -> str:
    if summary.queueing == "target":
        return "The target queues: every request was sent as it arrived, with no queue and no slots of ours before it."
    slots = slots_text(summary)
    said = f"The policy queues: requests wait before the server in the order of {summary.policy or 'the policy'}" + (
        f", with slots for {slots}." if slots else "."
    )
    routed = _routed(summary)
    return f"{said} {routed}." if routed else said


def _routed(summary: Summary) -> str:
    """``2 servers behind one queue, routing prefix, slack 8192``; empty for one server."""
    slots = summary.slots or {}
    if "routing" not in slots:
        return ""
    return routed_text(len(slots.get("backends") or {}), msgspec.convert(slots["routing"], Routing))


def slots_text(summary: Summary) -> str:
    """``64 sequences and 2,048 prefill tokens``; empty when unlimited or unknown."""
    slots = summary.slots or {}
    named = (("sequences", "sequences"), ("prefill_tokens", "prefill tokens"))
    return " and ".join(f"{slots[key]:,} {word}" for key, word in named if isinstance(slots.get(key), int))


def slots_moved(summary: Summary) -> list[str]:
    """What a controller made of the slots, a sentence a backend; nothing where they were fixed."""
    several = len(summary.slots_over_time) > 1
    return [
        f"slots{f' of {one.backend}' if several else ''}: moved between {one.least_sequences:,} and "
        f"{one.most_sequences:,}, {one.mean_sequences:,.0f} on average, {one.final_sequences:,} at the end"
        for one in summary.slots_over_time
    ]


def where_waiting_was(summary: Summary) -> str:
    """``time to the first token, in our queue / at the server: chat 12.0% / 87.9%, ...``; empty where it is unknown, or
    where there was no queue of ours."""
    if summary.queueing == "target":
        return ""
    known = [t for t in summary.tenants if t.waiting.our_queue is not None and t.waiting.server is not None]
    parts = [f"{t.tenant} {share(t.waiting.our_queue)} / {share(t.waiting.server)}" for t in known[:_NAMED_WAITING]]
    if len(known) > _NAMED_WAITING:
        parts.append(f"and {len(known) - _NAMED_WAITING} more")
    return f"time to the first token, in our queue / at the server: {', '.join(parts)}" if parts else ""


def joined(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
