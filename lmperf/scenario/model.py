"""The whole scenario file as a pydantic model: the names people write, with units, defaults and what each means.

The field descriptions are the one text about each key: the JSON Schema and the reference in docs/scenario.md are made
from them. Rules that concern more than one key are in :mod:`lmperf.scenario.checks`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from lmperf.scenario.base import Part, Positive, PositiveInt, Seconds, SecondsOrZero
from lmperf.scenario.server_model import BackendModel, CostModel, PolicyModel, SlotsModel
from lmperf.scenario.tenant_model import TenantModel
from lmperf.scenario.traffic_model import Span


class At(StrEnum):
    """Which load a run offers."""

    NONE = "none"
    BASELINE = "baseline"
    RAISED = "raised"


class Growth(StrEnum):
    """Who grows from the baseline to the raised load."""

    NOISY = "noisy"
    ALL = "all"


class LoadModel(Part):
    """Baseline and raised load, for experiments on isolation (P99 decay, interference)."""

    at: Annotated[At, Field(strict=False)] = Field(
        At.NONE, description="`baseline`, `raised`, or `none`: the tenants' loads as they are written."
    )
    baseline: Positive | None = Field(
        None,
        description="Total baseline load as a fraction of saturation; all tenants are scaled alike to reach it. "
        "Default: the tenants' own loads; for a trace 0.75.",
    )
    raised: float | None = Field(
        None, gt=1, description="Total raised load, times the baseline. Default: 1.2, or what `raised_load` makes it."
    )
    noisy: str | None = Field(None, description="The tenant whose load grows. Default: each in turn, one run each.")
    growth: Annotated[Growth, Field(strict=False)] = Field(
        Growth.NOISY,
        description="`noisy`: one tenant makes the total reach the raised load; `all`: every tenant grows.",
    )
    saturation: Positive | None = Field(
        None,
        description="Cost units/s that the server sustains with a never-empty queue. Default: measured or simulated "
        "where it can be; a resolved scenario holds the figure that was used.",
    )


class TenantRule(Part):
    """How the rows of a trace become requests of tenants."""

    by: Literal["index", "column", "prompt_tokens"] = Field(
        description="`index`: rows are dealt in turn to `order`; `column`: a column of the trace names the tenant; "
        "`prompt_tokens`: by `thresholds` on the prompt's length."
    )
    order: list[str] | None = Field(
        None, min_length=1, description="Tenants, in the order in which rows are dealt or thresholds rise."
    )
    column: str | None = Field(None, description="The column that names the tenant.")
    map: dict[str, str] | None = Field(
        None,
        description="From values of the column to tenants; rows with other values are left out. Default: the values "
        "are the tenants' names.",
    )
    thresholds: list[PositiveInt] | None = Field(
        None,
        min_length=1,
        description="Rising prompt lengths, tokens: a prompt below the first goes to the first of "
        "`order`, and so on; one more tenant than thresholds.",
    )


class TraceModel(Part):
    """Requests from a recorded or public trace, in place of drawn ones.."""

    path: str | None = Field(
        None, description="Trace file; relative to the scenario's folder. May be left to `--set trace.path=FILE`."
    )
    format: str = Field(
        "auto", description="`auto`, or a format by name: `lmperf trace convert --help` lists those that can be read."
    )
    speed: Positive = Field(1.0, description="Time runs this many times faster: gaps are divided by it.")
    start_s: SecondsOrZero = Field(0.0, description="Skip what arrives earlier, s of the trace's own time.")
    duration_s: Seconds | None = Field(None, description="Take this much, s of the trace's own time. Default: all.")
    rows: PositiveInt | None = Field(None, description="Take at most this many rows.")
    tenants: TenantRule | None = Field(
        None, description="Who sends which row. Default: the trace's own tenants, or the only tenant of the scenario."
    )


class ScenarioModel(Part):
    """A scenario: tenants, what they send and were promised; a backend; and the queue policy between them."""

    version: Literal[1] = Field(1, description="Version of this format.")
    name: str = Field("", description="Short name, for titles and folders. Default: the file's name.")
    description: str = Field("", description="What the scenario shows, for people.")
    duration_s: Seconds | None = Field(
        None, description="Requests arrive in [0, duration), s. May be left out with `num_prompts` or a `trace`."
    )
    num_prompts: PositiveInt | None = Field(None, description="Stop after this many requests.")
    drain_s: SecondsOrZero = Field(
        60.0,
        description="Live: after the last arrival wait at most this long for answers, s; what is left then is "
        "`unfinished`.",
    )
    warmup_s: SecondsOrZero | None = Field(
        None, description="Arrivals in the first seconds are kept in the trace, not judged."
    )
    cooldown_s: SecondsOrZero | None = Field(None, description="Arrivals in the last seconds are kept, not judged.")
    judge: Span | None = Field(
        None,
        description="Judge arrivals in this part of the duration: [0.1, 0.95]. In place of warmup_s and cooldown_s.",
    )
    seed: int = Field(0, ge=0, description="Seed of every draw; each tenant has a stream of its own.")
    workers: PositiveInt = Field(
        1,
        description="Live: processes that carry the streams, for loads that are too large for one core. The queue stays "
        "one, and so does the result.",
    )
    backend: BackendModel = Field(default_factory=BackendModel, description="Where requests run.")
    policy: PolicyModel | None = Field(
        None, description="Queue policy. Default: `none` when a url is given, else `fifo`."
    )
    cost: CostModel = Field(default_factory=CostModel, description="Cost of a request.")
    slots: SlotsModel | None = Field(
        None,
        description="How much may be outstanding at the backend. Default: 64 sequences and 2,048 prefill tokens; "
        "unlimited with the policy `none`.",
    )
    load: LoadModel = Field(default_factory=LoadModel, description="Baseline and raised load.")
    trace: TraceModel | None = Field(None, description="Requests from a trace.")
    thresholds: list[str] = Field(
        default_factory=list,
        description="Pass or fail rules on the whole run or one tenant: `p99(ttft) < 350ms`, "
        "`chat: p95(e2e) <= 2s`, `failed < 1%`.",
    )
    tenants: dict[str, TenantModel] = Field(min_length=1, description="The tenants, by name.")
