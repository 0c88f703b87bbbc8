"""Builds columns for the tests of ``tenants``, a row at a time or at random."""

from __future__ import annotations

import numpy as np

from tenants.measures.columns import NEVER, UNDEFINED, Columns, StatusCode

S = 1_000_000_000
MS = 1_000_000


def row(
    arrival: int,
    *,
    ttft: int = 100 * MS,
    tpot: int = 10 * MS,
    tokens: int = 11,
    prompt: int = 100,
    cached: int = UNDEFINED,
    tenant: int = 0,
    status: StatusCode = StatusCode.OK,
    end: int | None = None,
    queue: int = 0,
    max_itl: int | None = None,
    in_window: bool = True,
) -> dict[str, object]:
    if status is not StatusCode.OK and end is None:
        raise ValueError("a row that is not OK needs its end")
    e2e = ttft + max(tpot, 0) * (tokens - 1) if status is StatusCode.OK else NEVER
    return {
        "tenant": tenant,
        "arrival_ns": arrival,
        "end_ns": arrival + e2e if end is None else end,
        "ttft_ns": ttft,
        "backend_ttft_ns": NEVER if NEVER in {ttft, queue} else ttft - queue,
        "queue_ns": queue,
        "tpot_ns": tpot,
        "max_itl_ns": tpot if max_itl is None else max_itl,
        "e2e_ns": e2e,
        "prompt_tokens": prompt,
        "cached_prompt_tokens": cached,
        "output_tokens": tokens,
        "status": status,
        "in_window": in_window,
    }


def lost(arrival: int, age: int, *, tenant: int = 0, status: StatusCode = StatusCode.FAILED) -> dict[str, object]:
    return row(arrival, ttft=NEVER, tpot=NEVER, tokens=0, tenant=tenant, status=status, end=arrival + age, queue=NEVER)


def columns(rows: list[dict[str, object]], tenants: tuple[str, ...] = ("chat", "batch")) -> Columns:
    kinds = {"tenant": np.int32, "status": np.int8, "in_window": np.bool_}
    names = [name for name in Columns.__slots__ if name != "tenants"]
    return Columns(tenants, **{n: np.array([r[n] for r in rows], dtype=kinds.get(n, np.int64)) for n in names})


def random_columns(
    n: int,
    duration_s: float,
    *,
    seed: int,
    median_ms: float = 100.0,
    log_sigma: float = 0.5,
    lost_share: float = 0.0,
    tenants: tuple[str, ...] = ("chat", "batch"),
) -> Columns:
    """Independent requests: uniform arrivals, lognormal TTFT, TPOT 10 ms, a share of them lost after 1 s."""
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.integers(0, round(duration_s * S), n))
    ttft = (median_ms * MS * rng.lognormal(0, log_sigma, n)).astype(np.int64)
    gone = rng.random(n) < lost_share
    e2e = np.where(gone, NEVER, ttft + 1 * S)
    return Columns(
        tenants,
        tenant=rng.integers(0, len(tenants), n).astype(np.int32),
        arrival_ns=arrival,
        end_ns=arrival + np.where(gone, 1 * S, np.where(gone, 0, e2e)),
        ttft_ns=np.where(gone, NEVER, ttft),
        backend_ttft_ns=np.where(gone, NEVER, ttft),
        queue_ns=np.zeros(n, np.int64),
        tpot_ns=np.where(gone, NEVER, 10 * MS),
        max_itl_ns=np.where(gone, NEVER, 20 * MS),
        e2e_ns=e2e,
        prompt_tokens=np.full(n, 100),
        cached_prompt_tokens=np.full(n, UNDEFINED),
        output_tokens=np.full(n, 101),
        status=np.where(gone, StatusCode.FAILED, StatusCode.OK).astype(np.int8),
        in_window=np.ones(n, np.bool_),
    )


__all__ = ["MS", "NEVER", "UNDEFINED", "S", "columns", "lost", "random_columns", "row"]
