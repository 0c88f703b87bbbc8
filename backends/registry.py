"""Backends by name: the built-in ones and those of other packages (entry points ``lmperf.backends``).

A name stands for a callable that takes a base URL (or a model's path, for an engine in process) and keyword options,
and returns a :class:`backends.protocol.ModelBackend`.
"""

from __future__ import annotations

from collections.abc import Callable

from backends.protocol import ModelBackend
from tenants.registry import Registry

BackendFactory = Callable[..., ModelBackend]

BACKENDS: Registry[BackendFactory] = Registry(
    group="lmperf.backends",
    what="backend",
    builtins={"openai": "backends.openai:OpenAIBackend"},
)
