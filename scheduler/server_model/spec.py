"""A server model as data: the step law's parameters, the engine's limits, where they came from; and its file format.

The step law (per step of one replica)::

    t = a + b * prefill_tokens + c * decoding_sequences + d * resident_kv_tokens + attended * attended_pairs

plus ``offset``, between the request leaving the client and its entering the engine's queue, counted in the time that the
front end's streams leave it (:mod:`scheduler.server_model.front_end`). ``resident KV`` is the context
(prompt and generated tokens) of the sequences that decode in the step. A pair is a prefilled token and a token that it attends
to, itself included: a chunk of q tokens after p computed ones has ``q * p + q * (q + 1) / 2``. Terms that are 0 are off.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

SCHEMA = "lmperf.server-model/1.0"
PS_PER_US = 1_000_000
MOST_US = 3.6e9
"""No term of a law takes an hour: a number beyond it is in other units, or wrong."""


class StepLaw(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Microseconds a step (``a``), a prefilled token (``b``), a decoding sequence (``c``), a resident KV token (``d``),
    a pair of a prefilled token and one that it attends to (``attended``; stated, never fitted); ``offset_us`` before the
    engine's queue, in the time that the front end has free, which ``stream_us`` a step and decoding sequence takes
    (:mod:`scheduler.server_model.front_end`). All >= 0 and ``a_us`` > 0, so that time always moves."""

    a_us: float
    b_us: float
    c_us: float = 0.0
    d_us: float = 0.0
    attended_us: float = 0.0
    offset_us: float = 0.0
    stream_us: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"step law: {name} must be a finite number >= 0, got {value}")
            if value > MOST_US:
                raise ValueError(f"step law: {name} is in microseconds, at most an hour (3.6e9), got {value}")
        if self.a_us <= 0:
            raise ValueError(f"step law: a_us must be > 0 (a step takes time), got {self.a_us}")

    @property
    def offset_ns(self) -> int:
        return round(self.offset_us * 1000)

    @property
    def prefill_rate(self) -> float:
        """Prefilled tokens/s of an otherwise idle engine; infinite when ``b`` is 0."""
        return 1e6 / self.b_us if self.b_us else float("inf")

    def scaled(self, factor: float) -> StepLaw:
        """The law of a server ``factor`` times slower."""
        return StepLaw(**{name: getattr(self, name) * factor for name in self.__struct_fields__})


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's names. ``kv_tokens`` None: the KV cache is never full. ``priority_queue``: the engine's queue serves lower
    ``priority`` first, else first come, first served. ``prefix_cache``: blocks of prompts are shared and kept
    (:mod:`scheduler.server_model.prefix_cache`). ``speculative_tokens``: drafts a step, each accepted with probability
    ``speculative_acceptance`` (:mod:`scheduler.server_model.speculation`); 0 is off."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_tokens: int | None = None
    priority_queue: bool = False
    prefix_cache: bool = False
    speculative_tokens: int = 0
    speculative_acceptance: float = 0.7

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "kv_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"server limits: {name} must be >= 1, got {value}")
        if self.speculative_tokens < 0:
            raise ValueError(f"server limits: speculative_tokens must be >= 0 (0: off), got {self.speculative_tokens}")
        if not 0 <= self.speculative_acceptance <= 1:
            raise ValueError(
                f"server limits: speculative_acceptance must be a probability, 0 to 1, got {self.speculative_acceptance}"
            )
        if self.max_num_batched_tokens < self.max_num_seqs * self.tokens_a_step:
            times, what = "", "one token"
            if self.speculative_tokens:
                times = f" times {self.tokens_a_step}"
                what = f"{self.tokens_a_step} tokens (speculative_tokens and one)"
            raise ValueError(
                f"server limits: max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}){times}, since each running sequence decodes {what} a step"
            )

    @property
    def tokens_a_step(self) -> int:
        """The most tokens that a sequence gives in one step."""
        return 1 + self.speculative_tokens

    @property
    def longest(self) -> int | None:
        """Tokens, prompt and output together, of the longest request that can ever run; None: any can."""
        return None if self.kv_tokens is None else self.kv_tokens - self.tokens_a_step + 1


class ServerModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server-model file. ``fit`` keeps what the calibration said about itself (intervals, errors, source), free form."""

    schema: str = SCHEMA
    name: str
    law: StepLaw
    limits: ServerLimits = ServerLimits()
    fit: dict[str, object] = {}


class ServerModelError(ValueError):
    """A server-model file that cannot be used; the message says which file and why."""


STATED = ("attended_us",)
"""Terms of the law that a calibration is told: client-side timestamps do not tell them from the others."""

PRESETS: dict[str, ServerModelSpec] = {
    "h200-llama-8b": ServerModelSpec(
        name="h200-llama-8b",
        law=StepLaw(
            a_us=4897.4,
            b_us=21.178,
            c_us=4.7007,
            d_us=0.035471,
            attended_us=0.0008,
            offset_us=16352.0,
            stream_us=79.635,
        ),
        limits=ServerLimits(max_num_seqs=64, max_num_batched_tokens=8192, kv_tokens=841_888),
        fit={
            "server": "vLLM 0.24 on one H200, Llama 3 8B (bf16), measured at the client: eight captures",
            "held_out": "leave one capture out",
            "mean_absolute_error": {
                "ttft_p50": 0.135,
                "ttft_p99": 0.178,
                "tpot_mean": 0.028,
                "tpot_p99": 0.071,
                "itl_p99": 0.228,
                "e2e_mean": 0.026,
                "throughput": 0.007,
            },
        },
    ),
}


def load_server_model(name_or_path: str) -> ServerModelSpec:
    """A preset by name, else a file. Raises ServerModelError that lists the presets or says what is wrong in the file."""
    if name_or_path in PRESETS:
        return PRESETS[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        raise ServerModelError(
            f"server model {name_or_path!r}: no such file and no such preset (presets: {', '.join(sorted(PRESETS))})"
        )
    return decode_server_model(path.read_bytes(), where=name_or_path)


RETIRED = {
    "law": ("e_us", "launch_us", "launch_tail_us", "launch_idle_us", "offset_per_sequence_us"),
    "limits": ("async_scheduling",),
}
"""Terms of earlier versions: what attention costs a long prompt, a host's launch of steps with prefill, an engine that plans
a step ahead. They did not predict unseen captures better than the law without them, by any margin. A constant for each request
in flight stood for what ``stream_us`` says better."""


def decode_server_model(data: bytes, *, where: str) -> ServerModelSpec:
    """Decode a server-model file's bytes; ``where`` names it in errors."""
    try:
        raw = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ServerModelError(f"server model {where}: {error}") from error
    return server_model_of(raw, where=where)


def server_model_of(data: object, *, where: str) -> ServerModelSpec:
    """A server model from plain data, such as a file's or a trace's header. Raises ServerModelError."""
    known = _without_retired(data, where)
    try:
        spec = msgspec.convert(known, ServerModelSpec)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ServerModelError(f"server model {where}: {error}") from error
    major = spec.schema.rpartition("/")[2].partition(".")[0]
    if not spec.schema.startswith("lmperf.server-model/") or major != "1":
        raise ServerModelError(f"server model {where}: schema is {spec.schema!r}; this version reads {SCHEMA!r}")
    return spec


def server_limits_of(data: object, *, where: str) -> ServerLimits:
    """The limits alone of a server model in plain data: those of an engine that was captured hold whatever terms its law had
    then. Raises ServerModelError."""
    if isinstance(data, dict):
        data = {**data, "law": {"a_us": 1.0, "b_us": 0.0}}
    return server_model_of(data, where=where).limits


def _without_retired(data: object, where: str) -> object:
    """The data without retired terms that are off. Raises ServerModelError for one that is on."""
    if not isinstance(data, dict):
        return data
    kept = dict(data)
    for part, names in RETIRED.items():
        terms = kept.get(part)
        if not isinstance(terms, dict):
            continue
        used = [name for name in names if terms.get(name)]
        if used:
            raise ServerModelError(
                f"server model {where}: {part}.{used[0]} is {terms[used[0]]!r}, a term that this version does not have "
                "(it did not predict unseen captures better); calibrate again, or set it to 0 or leave it out"
            )
        kept[part] = {name: value for name, value in terms.items() if name not in names}
    return kept


def encode_server_model(spec: ServerModelSpec) -> bytes:
    """The file's bytes: indented JSON."""
    return msgspec.json.format(msgspec.json.encode(spec), indent=2)
