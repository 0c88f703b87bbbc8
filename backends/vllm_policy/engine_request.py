"""What is read of the engine's own request, and how it becomes the scheduler's.

The tenant comes in ``vllm_xargs`` of the HTTP body, which vLLM hands on as ``SamplingParams.extra_args``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from scheduler.request import Request


class SamplingParams(Protocol):
    extra_args: Mapping[str, Any] | None


class EngineRequest(Protocol):
    """The part of ``vllm.v1.request.Request`` that is read here. ``arrival_time``: s, on the wall clock.
    ``sampling_params`` is None for a request to a pooling model."""

    request_id: str
    arrival_time: float
    priority: int
    max_tokens: int
    num_prompt_tokens: int
    sampling_params: Any


def named_tenant(request: EngineRequest, key: str) -> str | None:
    """The tenant that the request names under ``key``; None when it names none."""
    params: SamplingParams | None = request.sampling_params
    extra = None if params is None else params.extra_args
    named = None if extra is None else extra.get(key)
    return None if named is None else str(named)


def scheduler_request(request: EngineRequest, *, number: int, tenant: str, arrival_ns: int) -> Request:
    """``number``: its id among the policy's requests, rising in the order in which the engine got them."""
    return Request(
        id=number,
        tenant=tenant,
        arrival_ns=arrival_ns,
        prompt_tokens=request.num_prompt_tokens,
        max_tokens=request.max_tokens,
        priority=request.priority,
    )
