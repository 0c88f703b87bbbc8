"""The tenant parts of a scenario: promise, contract, admission limits, identity and traffic of one tenant."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from lmperf.scenario.base import Milliseconds, Part, Positive, PositiveInt, Rate, Seconds, SecondsOrZero, Share
from lmperf.scenario.server_model import TimeoutsModel
from lmperf.scenario.traffic_model import ArrivalsModel, LengthsFile, LengthsModel, SessionsModel, TokenPair


class ObjectiveMetric(StrEnum):
    """Latencies that a tenant can be promised."""

    TTFT = "ttft"
    BACKEND_TTFT = "backend_ttft"
    TPOT = "tpot"
    MAX_ITL = "max_itl"
    ITL = "itl"
    INTER_CHUNK = "inter_chunk"
    E2E = "e2e"
    QUEUE = "queue_time"


class ObjectiveModel(Part):
    """A percentile of one metric, over the tenant's requests, stays at or below a limit."""

    metric: Annotated[ObjectiveMetric, Field(strict=False)] = Field(description="Which latency.")
    p: float = Field(ge=1, lt=100, description="Percentile, in percent: 99 for the P99.")
    limit_ms: Milliseconds = Field(description="Limit, ms.")


class SloModel(Part):
    """Service level objectives. A request is a hit when it ends well and meets every limit given here."""

    ttft_ms: Milliseconds | None = Field(
        None, description="Limit of the time to first token, from the intended arrival, ms."
    )
    tpot_ms: Milliseconds | None = Field(None, description="Limit of the time per output token after the first, ms.")
    e2e_ms: Milliseconds | None = Field(None, description="Limit of the whole request, from the intended arrival, ms.")
    max_itl_ms: Milliseconds | None = Field(None, description="Limit of the longest gap between two tokens, ms.")
    attainment: Share | None = Field(
        None, description="Share of requests that must meet all limits, between 0 and 1: 0.99."
    )
    objectives: list[ObjectiveModel] = Field(default_factory=list, description="Percentile objectives.")


class ContractModel(Part):
    """A token bucket in cost units that says how much the tenant was promised."""

    rate: Positive | None = Field(
        None, description="Cost units/s. Default: weight / sum of weights of the saturation, when that is known."
    )
    burst_s: Seconds = Field(30.0, description="Size of the bucket, in seconds of its rate.")


class QueueLimitsModel(Part):
    """What admission allows the tenant; what exceeds it is shed, and counts as a miss."""

    max_queued: PositiveInt | None = Field(None, description="Most requests waiting in the queue.")
    requests_per_s: Positive | None = Field(None, description="Token bucket on requests, requests/s.")
    tokens_per_s: Positive | None = Field(None, description="Token bucket on tokens, tokens/s.")
    burst_s: Seconds = Field(1.0, description="Size of both buckets, in seconds of their rate.")
    ttl_s: Seconds | None = Field(None, description="Longest wait in the queue, s.")
    shed_out_of_contract: bool = Field(
        default=False, description="Shed arrivals while the contract's bucket is negative."
    )
    reject_late: bool = Field(default=False, description="Refuse an arrival that cannot meet its TTFT limit any more.")


class CancelModel(Part):
    """Requests that their client cancels."""

    share: Positive = Field(le=1, description="Share of the requests, above 0 and up to 1.")
    after_s: Seconds = Field(description="From the arrival to the cancel, s.")


class TenantModel(Part):
    """One tenant, or `count` equal ones. Every figure is of each one."""

    count: PositiveInt = Field(
        1,
        le=10_000,
        description="Make this many tenants, `name-1` to `name-N` (padded with zeros), each as described here.",
    )
    weight: Positive = Field(1.0, description="Share of the server, relative to the other tenants' weights.")
    priority: int = Field(
        0, description="Strict class for the `priority` policy and for servers that know it; lower first."
    )
    rate: Rate | None = Field(None, description="Arrivals, requests/s (with `sessions`: of all their turns).")
    load: Positive | None = Field(None, description="Arrivals as a fraction of saturation, in cost units.")
    share: Positive | None = Field(
        None, description="Arrivals as a fraction of the tenant's own part of saturation, weight / sum of weights."
    )
    users: PositiveInt | None = Field(
        None, le=100_000, description="Closed loop: users who send, wait, think, and send again."
    )
    think_s: SecondsOrZero | None = Field(
        None, description="Closed loop: from an answer to the next request, s (default 0)."
    )
    raised_load: Positive | None = Field(
        None,
        description="Load of a noisy tenant under the raised load, as a fraction of saturation. A tenant that is noisy "
        "in its place grows until the total is the same.",
    )
    arrivals: ArrivalsModel = Field(default_factory=ArrivalsModel, description="Arrival process.")
    prompt: LengthsModel | None = Field(
        None, description="Prompt tokens of a request (with `sessions`: of a turn's new text)."
    )
    output: LengthsModel | None = Field(None, description="Output tokens of a request.")
    pairs: list[TokenPair] | None = Field(
        None,
        min_length=1,
        description="[prompt, output] token pairs drawn together, in place of `prompt` and `output`.",
    )
    lengths_file: LengthsFile | None = Field(
        None, description="Pairs (or only prompts, or only outputs) drawn from the rows of a file."
    )
    shared_prefix_tokens: int = Field(
        0, ge=0, description="Tokens that stand before every prompt, on top of its length, such as a system prompt."
    )
    shared_prefixes: PositiveInt = Field(
        1, description="How many such beginnings the tenant has; each request takes one."
    )
    max_tokens: PositiveInt | None = Field(
        None,
        description="`max_tokens` that the client sends. Default: the drawn output length; that never exceeds this.",
    )
    cancel: CancelModel | None = Field(None, description="Clients that give up; planned, so not a miss.")
    sessions: SessionsModel | None = Field(None, description="Conversations of several turns.")
    expected_output_tokens: Positive | None = Field(
        None, description="Where the policy's estimate of an answer's length starts. Default: the mean of `output`."
    )
    slo: SloModel = Field(default_factory=SloModel, description="What the tenant was promised.")
    contract: ContractModel | None = Field(None, description="How much the tenant was promised.")
    limits: QueueLimitsModel = Field(default_factory=QueueLimitsModel, description="What admission allows the tenant.")
    timeouts: TimeoutsModel | None = Field(None, description="Time-outs of its own, each in place of the backend's.")
    api_key: str | None = Field(
        None, description="Bearer key: `${env:NAME}` or `${file:PATH}`. Overrides the backend's."
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="HTTP headers; values may hold references. `x-lmperf-tenant: <name>` is sent unless given here.",
    )
    model: str | None = Field(None, description="Model or adapter to ask for. Overrides the backend's.")
    base_url: str | None = Field(None, description="The tenant's own server. Overrides the backend's.")
    extra_body: dict[str, object] = Field(
        default_factory=dict, description="Further keys of every request's JSON body."
    )
