"""Makes a policy from its name and options, as a scenario, a gateway's configuration or an event log states them.

A policy plugs in as a :class:`PolicyKind` under the entry point group ``lmperf.policies``; the built-in ones register the
same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from scheduler.cost import CostModel
from scheduler.lateness import Late, LateRule
from scheduler.policies.committed import Committed
from scheduler.policies.drr import Drr
from scheduler.policies.edf import Edf
from scheduler.policies.fifo import Fifo
from scheduler.policies.options import CommittedOptions, NoOptions, SloAwareOptions
from scheduler.policies.priority import Priority
from scheduler.policies.slo_aware import SloAware
from scheduler.policies.vtc import Vtc
from scheduler.policies.wfq import Wfq
from scheduler.policy import Policy
from tenants.registry import Registry


class PolicyContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may know of its surroundings: the cost of work, and how fast the server prefills (tokens/s)."""

    cost: CostModel = CostModel()
    prefill_rate: float = 40_000.0


class PolicyKind(msgspec.Struct, frozen=True, kw_only=True):
    """``summary``: one line for people; ``options``: a msgspec struct that validates; ``make(cost, late, options)``."""

    name: str
    summary: str
    make: Callable[[CostModel, LateRule, msgspec.Struct], Policy]
    options: type[msgspec.Struct] = NoOptions
    default_late: Late = Late.KEEP


class PolicyError(ValueError):
    """An unknown policy or a wrong option; the message says what would be right."""


def _committed(cost: CostModel, late: LateRule, options: msgspec.Struct) -> Policy:
    assert isinstance(options, CommittedOptions), "build_policy converts to the kind's own options"
    return Committed(cost=cost, late=late, options=options)


def _slo_aware(cost: CostModel, late: LateRule, options: msgspec.Struct) -> Policy:
    assert isinstance(options, SloAwareOptions), "build_policy converts to the kind's own options"
    return SloAware(cost=cost, late=late, options=options)


FIFO = PolicyKind(
    name="fifo", summary="first in, first out; no isolation", make=lambda cost, late, _: Fifo(cost=cost, late=late)
)
PRIORITY = PolicyKind(
    name="priority",
    summary="strict classes, lower number first; FIFO inside a class",
    make=lambda cost, late, _: Priority(cost=cost, late=late),
)
WFQ = PolicyKind(
    name="wfq",
    summary="start-time fair queueing by weight, cost corrected at the end: SFQ(D)",
    make=lambda cost, late, _: Wfq(cost=cost, late=late),
)
DRR = PolicyKind(
    name="drr",
    summary="deficit round robin with costs charged as they become known",
    make=lambda cost, late, _: Drr(cost=cost, late=late),
)
VTC = PolicyKind(
    name="vtc",
    summary="virtual token counter: least served tenant first, charged per token",
    make=lambda cost, late, _: Vtc(cost=cost, late=late),
)
EDF = PolicyKind(
    name="edf",
    summary="earliest deadline (arrival + TTFT limit) first",
    make=lambda cost, late, _: Edf(cost=cost, late=late),
)
SLO_AWARE = PolicyKind(
    name="slo_aware",
    summary="fair queueing with a weight boost for tenants that run out of TTFT slack within their share",
    make=_slo_aware,
    options=SloAwareOptions,
)
COMMITTED = PolicyKind(
    name="committed",
    summary="a guaranteed rate per tenant, by deadline or by credit; fair queueing for the rest; late work demoted",
    make=_committed,
    options=CommittedOptions,
    default_late=Late.DEMOTE,
)

POLICIES: Registry[PolicyKind] = Registry(
    group="lmperf.policies",
    what="policy",
    builtins={
        kind.name: f"scheduler.policies.build:{kind.name.upper()}"
        for kind in (FIFO, PRIORITY, WFQ, DRR, VTC, EDF, SLO_AWARE, COMMITTED)
    },
)


def build_policy(name: str, options: Mapping[str, object], context: PolicyContext) -> Policy:
    """The policy called ``name``. ``options`` are its own (see ``PolicyKind.options``) and, for every policy, ``late``
    (keep, demote, shed), ``margin_ms`` and ``prefill_rate`` (tokens/s; default: the context's).

    Raises PolicyError for an unknown name (listing the known ones) or a wrong option (saying what would be right).
    """
    try:
        kind = POLICIES.load(name)
    except LookupError as error:
        raise PolicyError(str(error)) from error
    own = dict(options)
    try:
        late = LateRule(
            mode=msgspec.convert(own.pop("late", kind.default_late), Late),
            margin_ns=round(msgspec.convert(own.pop("margin_ms", 50.0), float) * 1e6),
            prefill_rate=msgspec.convert(own.pop("prefill_rate", context.prefill_rate), float),
        )
        return kind.make(context.cost, late, msgspec.convert(own, kind.options))
    except (msgspec.ValidationError, ValueError) as error:
        known = ", ".join(["late", "margin_ms", "prefill_rate", *kind.options.__struct_fields__])
        raise PolicyError(f"policy {name!r}: {error} (options: {known})") from error
