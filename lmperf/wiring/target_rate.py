"""Whether a rate that replicas are to be counted for tells anything, and can be simulated."""

from __future__ import annotations

import math

from lmperf.wiring.capacity_study import Study
from lmperf.wiring.sources import SourceError
from lmperf.wiring.what_if.amounts import MOST_REQUESTS

LEAST_REQUESTS = 20
"""Of tenants with a target, over all seeds: fewer say nothing."""

MOST_REPLICAS = 4096


def refuse_target_rate(study: Study, rate: float) -> None:
    """``rate``: requests/s of all tenants together. Raises SourceError, which says what would do."""
    factor = study.factor_for(rate)
    run_s = (study.window_ns[1] - study.window_ns[0]) / 1e9
    judged = sum(study.rates.get(name, 0.0) for name in study.targets) * factor * run_s * len(study.seeds)
    said = f"--target-rate is {rate:,.6g} requests/s"
    if judged < LEAST_REQUESTS:
        would = f"at least {_rounded_up(rate * LEAST_REQUESTS / judged)}, " if judged else ""
        raise SourceError(
            f"{said}: in {len(study.seeds)} x {run_s:,.6g} s measured, tenants with a target send {judged:.2g} requests, too "
            f"few to tell anything; {would}more --seeds, or a longer duration_s"
        )
    if rate * run_s > MOST_REQUESTS:
        raise SourceError(
            f"{said}: a run of {run_s:,.6g} s has {rate * run_s:,.4g} requests, more than {MOST_REQUESTS:,}; a smaller "
            f"rate, or a shorter duration_s"
        )
    work = sum(study.costs.values()) * factor / study.saturation
    if work > MOST_REPLICAS:
        raise SourceError(
            f"{said}: its work alone takes {math.ceil(work):,} replicas, and no more than {MOST_REPLICAS:,} are tried; count "
            f"for a part of the rate"
        )


def _rounded_up(value: float) -> str:
    """To two digits, so that what is said to do does."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return f"{math.ceil(value / unit - 1e-9) * unit:,.6g}"
