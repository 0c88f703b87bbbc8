"""Requests that the server must refuse because prompt and answer together exceed its context (``max_model_len``).

Told before the clock starts, from the schedule itself: a tenant none of whose requests fits is a mistake in the scenario, one
that draws a long one now and then is warned of, since those requests will fail and count as misses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, islice

from lmperf.scenario.faults import Fault, ScenarioError
from lmperf.scenario.load import Scenario
from lmperf.scenario.plan import Plan
from loadgen.workload.source import Source
from scheduler.request import Request

_LOOKED_AT = 20_000
"""Requests of the schedule: a fraction of a second, and as many as most runs have."""


def too_long(
    scenario: Scenario, plan: Plan, source: Source, *, max_model_len: int, ignore_eos: bool
) -> tuple[Fault, ...]:
    """Warnings, one a tenant. ``source``: one that nothing else reads from. ``ignore_eos``: answers are asked for at their
    drawn lengths. Raises ScenarioError for tenants none of whose requests fits.
    """
    seen: dict[str, list[int]] = defaultdict(list)
    for request in _first(source):
        seen[request.tenant].append(_context(request, ignore_eos=ignore_eos))
    hopeless: list[Fault] = []
    warnings: list[Fault] = []
    for planned in plan.tenants:
        identity, lengths = planned.tenant.identity, seen[planned.tenant.name]
        beyond = [length for length in lengths if length > max_model_len]
        if not beyond or identity.base_url is not None:
            continue
        every = len(beyond) == len(lengths)
        share = "none fits" if every else f"{len(beyond):,} do not fit"
        fault = scenario.document.fault(
            ("tenants", planned.group),
            f"of its {len(lengths):,} requests looked at {share} the server: prompt and answer come to {max(beyond):,} tokens, "
            f"and its max_model_len is {max_model_len:,}",
            f"shorten them (prompt and output with max: their sum at most {max_model_len:,}), or serve a longer context",
        )
        (hopeless if every else warnings).append(fault)
    if hopeless:
        raise ScenarioError(hopeless)
    return tuple(warnings)


def _first(source: Source) -> Iterable[Request]:
    return islice(chain(source.start_closed(0), source.absolute()), _LOOKED_AT)


def _context(request: Request, *, ignore_eos: bool) -> int:
    """Tokens that the server must have room for: what it is asked to generate is reserved with the prompt."""
    asked = request.target_output_tokens if ignore_eos else None
    answer = asked if asked is not None else request.max_tokens
    return request.prompt_tokens + (1 if answer is None else answer)
