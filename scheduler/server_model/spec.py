"""A server model as data: the step law's parameters, the engine's limits, where they came from; and its file format.

The step law (per step of one replica)::

    t = a + b * prefill_tokens + c * decoding_sequences + d * resident_kv_tokens + e * attended_tokens

plus ``offset``, between the request leaving the client and its entering the engine's queue. ``resident KV`` is the context
(prompt and generated tokens) of the sequences that decode in the step; ``attended tokens`` is what attention costs a long
prompt: the sum over the step's chunks of tokens * (context before the chunk + tokens / 2). Terms that are 0 are off.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

SCHEMA = "lmperf.server-model/1.0"
PS_PER_US = 1_000_000


class StepLaw(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Microseconds a step (``a``), a prefilled token (``b``), a decoding sequence (``c``), a resident KV token (``d``), an
    attended token (``e``); ``offset_us`` before the engine's queue, and ``offset_per_sequence_us`` more for each request
    in flight (the server's front end is busy with their streams). ``launch_us``: what the host needs to launch a step
    with prefill (``launch_idle_us`` more when the engine was idle: it sleeps, and so does the host's clock), and
    ``launch_tail_us`` what the accelerator needs after that; see :mod:`scheduler.server_model.batching`.
    All >= 0 and ``a_us`` > 0, so that time always moves."""

    a_us: float
    b_us: float
    c_us: float = 0.0
    d_us: float = 0.0
    offset_us: float = 0.0
    e_us: float = 0.0
    launch_us: float = 0.0
    launch_tail_us: float = 0.0
    launch_idle_us: float = 0.0
    offset_per_sequence_us: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"step law: {name} must be a finite number >= 0, got {value}")
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
    ``priority`` first, else first come, first served. ``async_scheduling``: the engine plans one step ahead."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    kv_tokens: int | None = None
    priority_queue: bool = False
    async_scheduling: bool = False

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "kv_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"server limits: {name} must be >= 1, got {value}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"server limits: max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}), since each running sequence decodes one token a step"
            )


class ServerModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server-model file. ``fit`` keeps what the calibration said about itself (intervals, errors, source), free form."""

    schema: str = SCHEMA
    name: str
    law: StepLaw
    limits: ServerLimits = ServerLimits()
    fit: dict[str, object] = {}


class ServerModelError(ValueError):
    """A server-model file that cannot be used; the message says which file and why."""


PRESETS: dict[str, ServerModelSpec] = {
    "h200-llama-8b": ServerModelSpec(
        name="h200-llama-8b",
        law=StepLaw(
            a_us=4848.0,
            b_us=21.8,
            c_us=4.6,
            d_us=0.0372,
            offset_us=19420.0,
            offset_per_sequence_us=139.0,
        ),
        limits=ServerLimits(max_num_seqs=64, max_num_batched_tokens=8192, kv_tokens=841_888),
        fit={
            "server": "vLLM 0.24 on one H200, Llama 3 8B (bf16), measured at the client: eight captures",
            "held_out": "leave one capture out",
            "mean_absolute_error": {
                "ttft_p50": 0.179,
                "ttft_p99": 0.171,
                "tpot_mean": 0.032,
                "tpot_p99": 0.069,
                "itl_p99": 0.235,
                "e2e_mean": 0.029,
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


def decode_server_model(data: bytes, *, where: str) -> ServerModelSpec:
    """Decode a server-model file's bytes; ``where`` names it in errors."""
    try:
        spec = msgspec.json.decode(data, type=ServerModelSpec)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ServerModelError(f"server model {where}: {error}") from error
    major = spec.schema.rpartition("/")[2].partition(".")[0]
    if not spec.schema.startswith("lmperf.server-model/") or major != "1":
        raise ServerModelError(f"server model {where}: schema is {spec.schema!r}; this version reads {SCHEMA!r}")
    return spec


def encode_server_model(spec: ServerModelSpec) -> bytes:
    """The file's bytes: indented JSON."""
    return msgspec.json.format(msgspec.json.encode(spec), indent=2)
