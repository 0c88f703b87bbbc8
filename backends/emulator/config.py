"""What an embedded server is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from backends.emulator.answers import OutputLengths
from scheduler.server_model.spec import PRESETS, ServerModelSpec

DEFAULT_PRESET = "h200-llama-8b"
DEFAULT_MAX_MODEL_LEN = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorConfig:
    """``port`` 0: a free one. ``time_scale`` 2.0: twice as slow. ``model_name`` None: the server model's name.
    ``max_model_len`` (tokens) is lowered to what the KV cache has room for, since a longer request could never run.
    ``api_key`` None: open. ``truth_path``: see :mod:`backends.emulator.truth`. ``output``: lengths where the client
    leaves the end to the model.
    """

    host: str = "127.0.0.1"
    port: int = 0
    server_model: ServerModelSpec = PRESETS[DEFAULT_PRESET]
    time_scale: float = 1.0
    model_name: str | None = None
    max_model_len: int = DEFAULT_MAX_MODEL_LEN
    api_key: str | None = field(default=None, repr=False)
    seed: int = 0
    truth_path: Path | None = None
    output: OutputLengths = field(default_factory=OutputLengths)

    def __post_init__(self) -> None:
        if not 0 < self.time_scale < float("inf"):
            raise ValueError(f"time scale must be > 0 (2.0 is twice as slow as the model), got {self.time_scale}")
        if self.max_model_len < 2:
            raise ValueError(f"max model length must be >= 2 (a prompt and an output token), got {self.max_model_len}")

    @property
    def served_name(self) -> str:
        return self.model_name if self.model_name is not None else self.server_model.name

    @property
    def context_tokens(self) -> int:
        limits = self.server_model.limits
        if limits.kv_tokens is None:
            return self.max_model_len
        # The last step of a speculating engine needs room for its drafts too.
        return min(self.max_model_len, limits.kv_tokens - (limits.tokens_a_step - 1))

    @property
    def scaled_model(self) -> ServerModelSpec:
        """The server model as it runs: its law slowed down by the time scale."""
        return msgspec.structs.replace(self.server_model, law=self.server_model.law.scaled(self.time_scale))
