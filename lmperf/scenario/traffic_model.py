"""The traffic parts of a scenario: arrival process, token counts, conversations."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from lmperf.scenario.base import NotNegative, Part, Positive, PositiveInt, Seconds, SecondsOrZero
from tenants.traffic import Distribution, Process

Fraction = Annotated[float, Field(ge=0, le=1)]
Pair = Annotated[list[float], Field(min_length=2, max_length=2)]
Span = Annotated[list[Fraction], Field(min_length=2, max_length=2)]
TokenPair = Annotated[list[PositiveInt], Field(min_length=2, max_length=2)]


class LengthsFile(Part):
    """Lengths read from a CSV file with a header line (plain or gzip), one request a row."""

    path: str = Field(description="CSV file; relative to the scenario's folder.")
    prompt: str | None = Field(None, description="Column with prompt tokens.")
    output: str | None = Field(None, description="Column with output tokens.")


class LengthParameters(Part):
    """Parameters of one distribution of token counts."""

    distribution: Annotated[Distribution | None, Field(strict=False)] = Field(
        None,
        description="Which distribution. Default: what the parameters imply: `mean` and `cv` lognormal, `mean` alone "
        "fixed, "
        "`min` and `max` alone uniform, `alpha` zipf, `values` empirical, `parts` mixture.",
    )
    mean: float | None = Field(
        None, ge=1, description="Mean of the distribution before clipping to [min, max], tokens."
    )
    cv: NotNegative | None = Field(None, description="Coefficient of variation: standard deviation / mean.")
    min: PositiveInt | None = Field(None, description="Smallest count, tokens (default 1); draws below it become it.")
    max: PositiveInt | None = Field(None, description="Largest count, tokens; draws above it become it.")
    alpha: Positive | None = Field(None, description="Exponent of a zipf distribution over [min, max].")
    values: list[PositiveInt] | None = Field(None, min_length=1, description="Empirical: counts drawn uniformly.")


class MixturePart(LengthParameters):
    """One component of a mixture."""

    weight: Positive = Field(description="Relative weight in the mixture.")


class LengthsModel(LengthParameters):
    """Token counts of a prompt or an answer. Short form: a number (fixed)."""

    short_schema: ClassVar[dict[str, Any] | None] = {"type": "number", "minimum": 1, "description": "Fixed length."}

    parts: list[MixturePart] | None = Field(None, min_length=1, description="Mixture: weighted distributions.")

    @classmethod
    def expand(cls, value: object) -> object:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return {"mean": value} if is_number else value


class ArrivalsModel(Part):
    """How requests arrive. Short form: the name of the process.

    `rate`, `load` and `share` of the tenant are means over the whole run (for `ramp`: those it ends at; with `active`:
    means within the active parts).
    """

    short_schema: ClassVar[dict[str, Any] | None] = {"type": "string", "enum": [p.value for p in Process]}

    process: Annotated[Process, Field(strict=False)] = Field(
        Process.POISSON,
        description="`constant` gaps; `poisson`; `gamma` gaps with `burstiness`; `burst`s of `burst_size` at "
        "`burst_rate`; "
        "`ramp` from `ramp_from` to the rate; piecewise constant `steps`; the timestamps of the `trace`; `closed`: "
        "users "
        "who wait for their answer before they send again.",
    )
    burstiness: Positive | None = Field(
        None, description="Shape of the gaps of `gamma`, `ramp`, `steps`: 1 is Poisson, below 1 is burstier."
    )
    burst_size: PositiveInt | None = Field(None, description="Requests in a burst.")
    burst_rate: Positive | None = Field(None, description="Requests/s inside a burst. Default: all at one instant.")
    failure_pause_s: SecondsOrZero | None = Field(
        None, description="Least wait of a user or session after a request that failed, s (default 0.1)."
    )
    fixed_epochs: bool = Field(
        default=False, description="Bursts start every burst_size / rate seconds instead of at Poisson epochs."
    )
    ramp_from: NotNegative | None = Field(None, description="Requests/s at the start of a ramp (default 0).")
    steps: list[Pair] | None = Field(
        None, min_length=1, description="[start as a fraction of the run, requests/s] pairs, in order, the first at 0."
    )
    on_s: Seconds | None = Field(None, description="The tenant sends only in the first on_s seconds of every period_s.")
    period_s: Seconds | None = Field(None, description="Length of an on/off period, s.")
    active: list[Span] | None = Field(
        None,
        min_length=1,
        description="[from, to] parts of the run, as fractions of it, in which the tenant sends at all.",
    )

    @classmethod
    def expand(cls, value: object) -> object:
        return {"process": value} if isinstance(value, str) else value


class SessionsModel(Part):
    """Conversations: each arrival starts one; every turn's prompt holds the whole conversation so far."""

    turns: LengthsModel = Field(description="Turns of a session.")
    think_s: SecondsOrZero = Field(0.0, description="From an answer to the next turn, s.")
