"""What people read in place of the names in a server-model file."""

from __future__ import annotations

PARAMETERS = {
    "a_us": "us per step",
    "b_us": "us per prefilled token",
    "c_us": "us per decoding sequence",
    "d_us": "us per resident KV token",
    "attended_us": "us per attended pair (stated)",
    "offset_us": "us of the front end before the engine's queue",
    "stream_us": "us of the front end per decoding sequence and step",
}
"""Of the step law, with their units."""

FIGURES = {
    "ttft_p50": "TTFT P50",
    "ttft_p90": "TTFT P90",
    "ttft_p99": "TTFT P99",
    "e2e_mean": "E2E mean",
    "e2e_p99": "E2E P99",
    "tpot_mean": "TPOT mean",
    "tpot_p90": "TPOT P90",
    "tpot_p99": "TPOT P99",
    "itl_p99": "ITL P99",
    "throughput": "throughput",
}
"""Of :func:`scheduler.calibration.figures.figures`, those that are shown."""


def symbol(parameter: str) -> str:
    """``c``, as in the law."""
    return parameter.removesuffix("_us")


def parameter_text(parameter: str) -> str:
    """``c (us per decoding sequence)``."""
    return f"{symbol(parameter)} ({PARAMETERS[parameter]})"
