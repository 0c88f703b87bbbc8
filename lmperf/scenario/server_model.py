"""The server-side parts of a scenario: backend, time-outs, policy, slots, cost of a request."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from lmperf.scenario.base import MillisecondsOrZero, NotNegative, Part, Positive, PositiveInt, Seconds
from scheduler.auto_rule import Follows, usual_rule
from scheduler.routing import Routing, Rule


class Endpoint(StrEnum):
    """Which OpenAI-compatible path requests go to; AUTO takes chat when the server has it."""

    AUTO = "auto"
    CHAT = "chat"
    COMPLETIONS = "completions"


class TimeoutsModel(Part):
    """Time-outs of a request; null: none (of `connect_s`: as if not stated, since a connection must open within some time). A
    simulation knows no connections and no silent streams: it keeps `first_token_s` and `total_s`."""

    connect_s: Seconds | None = Field(None, description="Opening a connection, s. Default: the backend's, 10.")
    first_token_s: Seconds | None = Field(None, description="From the intended arrival to the first token, s.")
    between_tokens_s: Seconds | None = Field(
        None, description="Longest silence inside a stream, s. Default: the backend's, 60."
    )
    total_s: Seconds | None = Field(None, description="From the intended arrival to the end, s.")


class ServerLimitsModel(Part):
    """Limits of an emulated or simulated server; an absent key keeps the server model's value, null means unlimited."""

    max_num_seqs: PositiveInt | None = Field(None, description="Sequences that run at once.")
    max_num_batched_tokens: PositiveInt | None = Field(None, description="Token budget of one engine step.")
    kv_tokens: PositiveInt | None = Field(None, description="Tokens that the KV cache holds.")
    priority_queue: bool | None = Field(None, description="The engine's own queue serves lower `priority` first.")
    prefix_cache: bool | None = Field(
        None,
        description="Blocks at the front of prompts that earlier requests left in the KV cache are not prefilled again. "
        "Which prompts begin alike, sessions, shared prefixes or the trace say.",
    )
    speculative_tokens: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Speculative decoding: tokens drafted for each sequence in each step; 0 is off."
    )
    speculative_acceptance: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Probability that a drafted token is accepted, given that those before it were."
    )
    offset_ms: MillisecondsOrZero | None = Field(
        None, description="What a request needs of the server's front end, ms: free time before the engine's queue."
    )


class ServerModel(Part):
    """One of several servers behind the queue. Short form: its URL."""

    short_schema: ClassVar[dict[str, Any] | None] = {"type": "string", "description": "A URL."}

    url: str = Field(description="Base URL of the server.")
    name: str | None = Field(None, description="What traces and reports call it. Default: `server-1`, `server-2`, ...")
    sequences: PositiveInt | None = Field(None, description="Its own D. Default: that of `slots`.")
    prefill_tokens: PositiveInt | None = Field(None, description="Its own X. Default: that of `slots`.")

    @classmethod
    def expand(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value


class RoutingModel(Part):
    """Which of several servers a request goes to. Short form: the rule."""

    short_schema: ClassVar[dict[str, Any] | None] = {"type": "string", "enum": [rule.value for rule in Rule]}

    rule: Annotated[Rule, Field(strict=False)] = Field(
        Rule.LEAST_WORK,
        description="`least_work`: the least outstanding work. `round_robin`: one after the other. `prefix`: who was sent most "
        "of the prompt's prefix blocks, among those with not too much work. `session`: always the same for one session, "
        "else for one first prefix block. Always one with a free slot.",
    )
    slack: NotNegative | None = Field(
        Routing().slack,
        description="With `prefix`: how much more outstanding work than the least is not too much, cost units; null: no bound.",
    )

    @classmethod
    def expand(cls, value: object) -> object:
        return {"rule": value} if isinstance(value, str) else value


class BackendModel(Part):
    """Where requests run. Short form: the kind, or a URL."""

    short_schema: ClassVar[dict[str, Any] | None] = {"type": "string", "description": "A kind, or a URL."}

    kind: str | None = Field(
        None,
        description="`emulated` (the embedded server), `openai`, or a name that another package gave it; `lmperf backends` "
        "lists them. Default: `openai` with a url, else `emulated`.",
    )
    url: str | None = Field(
        None, description="Base URL of the server: `http://localhost:8000` (`localhost:8000` will do)."
    )
    urls: list[ServerModel] | None = Field(
        None,
        min_length=1,
        description="Several servers of one model behind one queue, in place of `url`; each with the slots that `slots` "
        "says, or its own; `routing` says which a request goes to.",
    )
    routing: RoutingModel = Field(
        default_factory=RoutingModel, description="With `urls`: which of the servers a request goes to."
    )
    model: str | None = Field(None, description="Model to ask for. Default: the first that the server lists.")
    endpoint: Annotated[Endpoint, Field(strict=False)] = Field(
        Endpoint.AUTO, description="`chat`, `completions`, or `auto`: chat when the server has it."
    )
    server_model: str | None = Field(
        None,
        description="Server model of the embedded server and the simulator: a preset, or a file that `lmperf "
        "calibrate` wrote. Default: `h200-llama-8b` where one is needed and no url is given.",
    )
    time_scale: Positive = Field(1.0, description="Embedded server: every duration times this (0.5: twice as fast).")
    limits: ServerLimitsModel = Field(
        default_factory=ServerLimitsModel, description="What differs from the server model's own limits."
    )
    insecure: bool = Field(default=False, description="Do not verify TLS certificates.")
    ca_file: str | None = Field(None, description="PEM file of one more authority to trust.")
    proxy: str | None = Field(None, description="Proxy URL, or `env`: as HTTP_PROXY and NO_PROXY say. Default: none.")
    timeouts: TimeoutsModel = Field(default_factory=TimeoutsModel, description="Time-outs of every request.")
    ignore_eos: bool = Field(
        default=True, description="Ask the server to produce exactly the drawn number of output tokens."
    )
    tokenizer: str | None = Field(
        None,
        description="Folder of a local tokenizer, for prompts of exact length. Default: the server's own, else a "
        "measured ratio of characters to tokens.",
    )
    api_key: str | None = Field(
        None, description="Bearer key of every tenant, as a reference: `${env:NAME}` or `${file:PATH}`."
    )
    headers: dict[str, str] = Field(default_factory=dict, description="HTTP headers of every tenant.")
    extra_body: dict[str, object] = Field(
        default_factory=dict, description="Further keys of every request's JSON body."
    )
    options: dict[str, object] = Field(default_factory=dict, description="Settings of this kind of backend alone.")

    @property
    def names_a_server(self) -> bool:
        """Whether there is a server that somebody else started."""
        return self.url is not None or self.urls is not None

    @classmethod
    def expand(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return {"url": value} if ":" in value or "/" in value else {"kind": value}


class PolicyModel(Part):
    """The queue policy in front of the backend. Short form: its name. Further keys are the policy's own options."""

    model_config = ConfigDict(extra="allow")
    short_schema: ClassVar[dict[str, Any] | None] = {"type": "string", "description": "Name of the policy."}

    name: str = Field(
        description="`fifo`, `priority`, `wfq`, `drr`, `vtc`, `edf`, `slo_aware`, `committed`, another installed one "
        "(`lmperf policies` lists them), or `none`: no queue, what the server does on its own."
    )
    late: Literal["keep", "demote", "shed"] | None = Field(
        None, description="What to do with a request that can no longer meet its TTFT limit. Default: the policy's."
    )

    @classmethod
    def expand(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value


class SlotsModel(Part):
    """How much may be outstanding at the backend. Short form: `auto` (by the tenants' TPOT limits), `auto-waiting` (by the
    server's own waiting count), or `unlimited`."""

    short_schema: ClassVar[dict[str, Any] | None] = {"type": "string", "enum": ["auto", "auto-waiting", "unlimited"]}

    sequences: PositiveInt | None = Field(
        None, description="Requests outstanding (D); null: unlimited. With `auto`: where it starts (default 64)."
    )
    prefill_tokens: PositiveInt | None = Field(
        None,
        description="Prompt tokens dispatched whose prefill has not finished (X); null: unlimited. About the "
        "engine's token budget of a step.",
    )
    auto: Annotated[Follows | None, Field(strict=False)] = Field(
        None,
        description="`tpot`: adapt sequences to the tenants' TPOT limits; `waiting`: to the server's waiting count.",
    )
    min_sequences: PositiveInt | None = Field(
        None, description="With `auto`: never fewer than this. Default: 40 with `tpot`, 1 with `waiting`."
    )
    max_sequences: PositiveInt | None = Field(
        None, description="With `auto`: never more than this. Default: 128 with `tpot`, 1,024 with `waiting`."
    )

    @property
    def bounds(self) -> tuple[int, int]:
        """Between what automatic slots move."""
        rule = usual_rule(self.auto or Follows.TPOT)
        return (
            rule.least if self.min_sequences is None else self.min_sequences,
            rule.most if self.max_sequences is None else self.max_sequences,
        )

    @classmethod
    def expand(cls, value: object) -> object:
        if value == "auto":
            return {"auto": Follows.TPOT.value}
        if value == "auto-waiting":
            return {"auto": Follows.WAITING.value}
        return {} if value == "unlimited" else value


class CostModel(Part):
    """Cost of a request in cost units: prompt * prompt tokens + output * output tokens."""

    prompt: NotNegative = Field(1.0, description="Cost units a prompt token.")
    output: Positive = Field(2.0, description="Cost units an output token.")
