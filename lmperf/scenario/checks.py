"""Rules that concern more than one key of a scenario, outside its tenants' own entries.

Those are in :mod:`lmperf.scenario.tenant_checks`.
"""

from __future__ import annotations

from collections.abc import Iterator

from backends.reference import REFERENCE
from backends.wire.url import parse_stated_url
from lmperf.scenario.faults import Fault, Path, one_of
from lmperf.scenario.model import Growth
from lmperf.scenario.server_model import BackendModel, PolicyModel, ServerLimitsModel, SlotsModel
from lmperf.scenario.tenant_model import SloModel
from lmperf.scenario.trace_checks import trace_faults
from lmperf.scenario.view import View, tenant_groups, tenant_names
from scheduler.auto_rule import Follows
from scheduler.routing import Routing, Rule
from tenants.thresholds import ThresholdError, parse_threshold

EMBEDDED = "emulated"
NEED_URL = frozenset({"openai", "tgi"})


def run_faults(view: View) -> Iterator[Fault]:
    """Rules outside the tenants' own entries."""
    yield from _time(view)
    yield from _names(view)
    yield from _backend(view)
    yield from _policy(view)
    yield from _slots(view)
    yield from _load(view)
    yield from trace_faults(view)
    yield from _thresholds(view)


def _time(view: View) -> Iterator[Fault]:
    given = view.given(())
    if view.traffic and not given & {"duration_s", "num_prompts", "trace"}:
        yield view.fault(("duration_s",), "is missing", "say how long requests arrive, s: duration_s: 300")
    both = given & {"warmup_s", "cooldown_s"}
    if "judge" in given and both:
        yield view.fault(("judge",), f"is given beside {' and '.join(sorted(both))}", "give one of the two")
    span = view.value(("judge",))
    pair = isinstance(span, list) and len(span) == 2 and all(isinstance(edge, int | float) for edge in span)
    if isinstance(span, list) and pair and not span[0] < span[1]:
        yield view.fault(("judge",), f"ends ({span[1]:g}) before it starts ({span[0]:g})", "write [0.1, 0.95]")
    outside = (view.number(("warmup_s",)) or 0) + (view.number(("cooldown_s",)) or 0)
    duration = view.number(("duration_s",))
    if duration is not None and outside >= duration > 0:
        key = "warmup_s" if "warmup_s" in given else "cooldown_s"
        yield view.fault(
            (key,),
            f"nothing is left to judge: warm-up and cool-down are {outside:g} s of {duration:g} s",
            "shorten them",
        )


def _names(view: View) -> Iterator[Fault]:
    seen: dict[str, str] = {}
    for group in view.groups:
        path = ("tenants", group)
        if not group or not all(c.isascii() and (c.isalnum() or c in "_-") for c in group) or group.isdigit():
            yield view.fault(
                path,
                "cannot be a tenant's name",
                "use letters without accents (a to z), digits, `-` and `_`, and at least one that is no digit",
            )
        for name in tenant_names(group, min(view.count(group), 10_000)):
            if name in seen:
                yield view.fault(path, f"makes the tenant `{name}`, and so does `{seen[name]}`", "rename one")
                break
            seen[name] = group


def _backend(view: View) -> Iterator[Fault]:
    path: Path = ("backend",)
    kind, known = view.value((*path, "kind")), view.known.backends
    if isinstance(kind, str) and known is not None and kind not in known:
        yield view.fault((*path, "kind"), f"unknown backend `{kind}`", one_of(kind, known))
    urls = view.value((*path, "urls"))
    servers: list[Path] = [(*path, "urls", number) for number in range(len(urls) if isinstance(urls, list) else 0)]
    addressed = [*((owner, "url") for owner in (path, *servers)), *((("tenants", g), "base_url") for g in view.groups)]
    for owner, key in addressed:
        url = view.value((*owner, key))
        if isinstance(url, str):
            try:
                # A number stands in for a reference: it may be a host, a port, or all of it with its scheme.
                stood_in = REFERENCE.sub("1", url)
                parse_stated_url(stood_in if stood_in == url or "://" in url else f"http://{stood_in}")
            except ValueError as error:
                problem, _, remedy = str(error).partition("; ")
                yield view.fault((*owner, key), problem, remedy)
    backend = view.part(path, BackendModel)
    if backend is None:
        return
    yield from _servers(view, backend)
    if backend.kind == EMBEDDED and backend.names_a_server:
        yield view.fault(
            (*path, "url" if backend.url is not None else "urls"),
            f"the `{EMBEDDED}` backend starts its own server and takes no url",
            "for a running server: kind: openai",
        )
    if backend.kind in NEED_URL and not backend.names_a_server:
        yield view.fault((*path, "url"), f"the `{backend.kind}` backend needs one", "url: http://localhost:8000")
    limits = backend.limits
    if _below(limits):
        yield view.fault(
            (*path, "limits", "max_num_batched_tokens"),
            f"is {limits.max_num_batched_tokens}, below max_num_seqs ({limits.max_num_seqs})"
            + (f" times {1 + limits.speculative_tokens}" if limits.speculative_tokens else ""),
            "each running sequence decodes one token a step (and its drafts), so it must be at least that",
        )


def _servers(view: View, backend: BackendModel) -> Iterator[Fault]:
    path: Path = ("backend",)
    routing = backend.routing
    if routing.slack != Routing().slack and routing.rule is not Rule.PREFIX:
        problem = f"is a bound of the rule `prefix`, and the rule is `{routing.rule}`"
        yield view.fault((*path, "routing", "slack"), problem, "add rule: prefix, or remove it")
    if backend.urls is None:
        if routing.rule is not Rule.LEAST_WORK:
            remedy = "name them: urls: [..., ...]"
            yield view.fault((*path, "routing"), "chooses between servers, and there is one", remedy)
        return
    if backend.url is not None:
        yield view.fault((*path, "urls"), "is given beside url", "give one of the two")
    names: set[str] = set()
    for number, server in enumerate(backend.urls):
        name = server.name or f"server-{number + 1}"
        if name in names:
            yield view.fault((*path, "urls", number), f"is a second server called `{name}`", "give it another name")
        names.add(name)
    slots = view.part(("slots",), SlotsModel)
    for number, server in enumerate(backend.urls):
        if slots is not None and slots.auto is Follows.TPOT and server.sequences is not None:
            yield view.fault(
                (*path, "urls", number, "sequences"), "is fixed, and `slots.auto: tpot` moves all of them", "remove one"
            )
    for group in view.groups:
        if view.value(("tenants", group, "base_url")) is not None:
            yield view.fault(
                ("tenants", group, "base_url"), "would get around the servers of backend.urls", "remove it, or use url"
            )


def _below(limits: ServerLimitsModel) -> bool:
    tokens, sequences = limits.max_num_batched_tokens, limits.max_num_seqs
    return tokens is not None and sequences is not None and tokens < sequences * (1 + (limits.speculative_tokens or 0))


def _policy(view: View) -> Iterator[Fault]:
    path: Path = ("policy", "name")
    name, known = view.value(path), view.known.policies
    unknown = isinstance(name, str) and known is not None and name not in {*known, "none"}
    if unknown and known is not None:
        yield view.fault(path, f"unknown policy `{name}`", one_of(str(name), {*known, "none"}))
    policy = view.part(("policy",), PolicyModel)
    if policy is None or unknown:
        return
    if policy.name == "none":
        options = sorted(policy_options(policy))
        if options:
            yield view.fault(("policy", options[0]), "the policy `none` has no options", "remove it, or name a policy")
    elif view.known.check_policy is not None:
        try:
            view.known.check_policy(policy.name, policy_options(policy))
        except ValueError as error:
            yield view.fault(("policy",), str(error))


def policy_options(policy: PolicyModel) -> dict[str, object]:
    """A policy's options as it takes them: its own, and ``late`` where it is stated."""
    late = {} if policy.late is None else {"late": policy.late}
    return late | dict(policy.model_extra or {})


def _slots(view: View) -> Iterator[Fault]:
    slots = view.part(("slots",), SlotsModel)
    if slots is None:
        return
    if slots.auto is None:
        for key in sorted(view.given(("slots",)) & {"min_sequences", "max_sequences"}):
            yield view.fault(
                ("slots", key), "is for automatic slots only", "add `auto: tpot` or `auto: waiting`, or remove it"
            )
        return
    least, most = slots.bounds
    if least > most:
        if slots.max_sequences is None:
            yield view.fault(("slots", "min_sequences"), f"is {least}, above max_sequences ({most})")
        else:
            yield view.fault(("slots", "max_sequences"), f"is {most}, below min_sequences ({least})")
    start = slots.sequences
    if start is not None and not least <= start <= most:
        yield view.fault(
            ("slots", "sequences"),
            f"starts at {start}, outside [{least}, {most}]",
            "move it, min_sequences or max_sequences",
        )
    slos = [view.part(("tenants", group, "slo"), SloModel) for group in view.groups]
    if slots.auto is Follows.TPOT and not any(slo is not None and slo.tpot_ms is not None for slo in slos):
        yield view.fault(
            ("slots", "auto"),
            "follows TPOT limits, and no tenant has one",
            "give a tenant slo.tpot_ms, or auto: waiting",
        )


def _load(view: View) -> Iterator[Fault]:
    noisy, growth = view.value(("load", "noisy")), view.value(("load", "growth"))
    closed = [group for group in view.groups if "users" in view.given(("tenants", group))]
    if isinstance(noisy, str):
        yield from _noisy(view, noisy, closed)
    if closed and view.number(("load", "baseline")) is not None:
        yield view.fault(
            ("load", "baseline"),
            f"`{closed[0]}` is a closed loop and cannot be scaled to a load",
            "give it a rate or load",
        )
    if closed and growth == Growth.ALL:
        yield view.fault(("load", "growth"), f"`{closed[0]}` is a closed loop and cannot grow", "growth: noisy")


def _noisy(view: View, noisy: str, closed: list[str]) -> Iterator[Fault]:
    path: Path = ("load", "noisy")
    groups = tenant_groups(view)
    if noisy not in groups:
        yield view.fault(path, f"there is no tenant `{noisy}`", one_of(noisy, view.groups))
        return
    if groups[noisy] in closed:
        yield view.fault(path, f"`{noisy}` is a closed loop, whose load follows the server", "give it a rate or load")


def _thresholds(view: View) -> Iterator[Fault]:
    texts = view.value(("thresholds",))
    names = tenant_groups(view)
    for index, text in enumerate(texts if isinstance(texts, list) else ()):
        if not isinstance(text, str):
            continue
        try:
            threshold = parse_threshold(text)
        except ThresholdError as error:
            yield view.fault(
                ("thresholds", index), f"{error.problem} (at character {error.position + 1})", "p99(ttft) < 350ms"
            )
            continue
        if threshold.tenant is not None and threshold.tenant not in names:
            yield view.fault(
                ("thresholds", index), f"there is no tenant `{threshold.tenant}`", one_of(threshold.tenant, names)
            )
