"""The mean prompt and output tokens of one request of a tenant: what turns a load (cost units/s) into a rate.

In a session turn t holds all that was said before: prefix + (p_1 + ... + p_t) + (o_1 + ... + o_{t-1}). With T turns,
means p and o, and every request counted once, the mean prompt is

    prefix + (p E[T (T + 1) / 2] + o E[T (T - 1) / 2]) / E[T]
"""

from __future__ import annotations

from loadgen.workload.lengths import faults_of as length_faults
from loadgen.workload.lengths import moments_of
from tenants.traffic import Traffic


def mean_tokens(traffic: Traffic) -> tuple[float, float]:
    """(prompt tokens, output tokens) of a request on average, prefixes, conversations and ``max_tokens`` included.

    Exact for sessions that run to their end. Raises ValueError that lists every fault of the lengths.
    """
    if traffic.joint:
        prompt = sum(max(1, p) for p, _ in traffic.joint) / len(traffic.joint)
        output = sum(_limited(max(1, o), traffic.max_tokens) for _, o in traffic.joint) / len(traffic.joint)
    else:
        prompt = moments_of(traffic.prompt, at_least=1)[0]
        output = moments_of(traffic.output, at_least=1, at_most=traffic.max_tokens)[0]
    prefix = prefix_tokens(traffic)
    if traffic.sessions is None:
        return prefix + prompt, output
    turns, turns_squared = moments_of(traffic.sessions.turns, at_least=1)
    heard = prompt * (turns_squared + turns) / 2 + output * (turns_squared - turns) / 2
    return prefix + heard / turns, output


def mean_turns(traffic: Traffic) -> float:
    """Requests that follow from one arrival: the mean turns of a session, else 1."""
    return 1.0 if traffic.sessions is None else moments_of(traffic.sessions.turns, at_least=1)[0]


def prefix_tokens(traffic: Traffic) -> int:
    """Tokens that stand before the drawn part of every prompt."""
    return traffic.shared_prefix_tokens + (0 if traffic.sessions is None else traffic.sessions.shared_prefix_tokens)


def faults_of(traffic: Traffic) -> list[str]:
    """Everything wrong with the lengths and settings of ``traffic`` (not its arrivals), each with its place."""
    faults = []
    if traffic.joint:
        if any(p < 0 or o < 0 for p, o in traffic.joint):
            faults.append("joint: token counts are >= 0")
    else:
        faults.extend(f"prompt: {fault}" for fault in length_faults(traffic.prompt))
        faults.extend(f"output: {fault}" for fault in length_faults(traffic.output))
    if traffic.sessions is not None:
        faults.extend(f"turns: {fault}" for fault in length_faults(traffic.sessions.turns))
        if traffic.sessions.think_s < 0:
            faults.append(f"sessions: think_s is {traffic.sessions.think_s}; seconds >= 0 would be right")
    if prefix_tokens(traffic) < 0:
        faults.append(f"shared_prefix_tokens is {prefix_tokens(traffic)}; tokens >= 0 would be right")
    if traffic.shared_prefixes < 1:
        faults.append(f"shared_prefixes is {traffic.shared_prefixes}; at least 1 would be right")
    if traffic.max_tokens is not None and traffic.max_tokens < 1:
        faults.append(f"max_tokens is {traffic.max_tokens}; at least 1 would be right")
    if not 0 <= traffic.cancel_share <= 1:
        faults.append(f"cancel_share is {traffic.cancel_share}; a share in [0, 1] would be right")
    if traffic.cancel_share > 0 and (traffic.cancel_after_s is None or traffic.cancel_after_s < 0):
        faults.append(f"cancel_after_s is {traffic.cancel_after_s}; cancel_share needs seconds >= 0 beside it")
    return faults


def _limited(value: int, limit: int | None) -> int:
    return value if limit is None else min(value, limit)
