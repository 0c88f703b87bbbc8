"""What calibration reads: the stamps and lengths of the requests of one captured run."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tenants.tenant import Tenant

BLOCKS = 20
"""Consecutive requests that are counted, and drawn, together: a capture has so many blocks of them, as equal as can be."""

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Observations:
    """Successful requests with at least one output token, as parallel arrays in order of sending. ``sent_ns``: when the
    server could first know of the request; ``name`` says where they come from.

    ``users``: a closed loop of so many, each sending ``turnaround_ns`` after its last answer; None: an open loop.
    ``gaps_ns``: the gaps between chunks of all requests together, in any order, each seen ``gap_counts`` times (None: once);
    None where the capture does not have them. ``gap_blocks``: the number of the block (:func:`blocks_of`) whose requests each
    of ``gaps_ns`` belongs to; None: not known.

    ``cached_tokens``: prompt tokens of each that the server found in its prefix cache, fewer than the prompt's; they took no
    prefill. None: none, as far as is known. ``tenant``: whose each request is, by its number in ``tenants`` (None: not known);
    ``waited_ns``: from its intended arrival until it was sent (None: nothing).

    ``of``: how many requests the capture has that could have been read, of which these are a stretch (0: all are here).
    ``left_out``: how many more were sent and cannot be read: not answered, or a stamp or a length is missing or cannot be."""

    name: str
    sent_ns: Int64s
    first_ns: Int64s
    last_ns: Int64s
    prompt_tokens: Int64s
    output_tokens: Int64s
    users: int | None = None
    turnaround_ns: int = 0
    gaps_ns: Int64s | None = None
    gap_counts: Int64s | None = None
    gap_blocks: Int64s | None = None
    cached_tokens: Int64s | None = None
    tenants: tuple[Tenant, ...] = ()
    tenant: Int64s | None = None
    waited_ns: Int64s | None = None
    of: int = 0
    left_out: int = 0

    @property
    def computed_tokens(self) -> Int64s:
        """Prompt tokens of each that the server had to prefill."""
        return self.prompt_tokens if self.cached_tokens is None else self.prompt_tokens - self.cached_tokens

    @property
    def attended_pairs(self) -> Int64s:
        """Pairs of a prefilled token and one that it attends to, of each prompt, as
        :func:`scheduler.server_model.step_time.attended_pairs` counts them."""
        computed = self.computed_tokens
        pairs: Int64s = computed * (self.prompt_tokens - computed) + computed * (computed + 1) // 2
        return pairs

    def __len__(self) -> int:
        return len(self.sent_ns)

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Observations:
        """Some of the rows, by index or mask (a row may be taken several times). Gaps are known by block, so they go along
        where whole blocks are taken, and are left behind elsewhere."""
        gaps_ns, gap_counts = self._gaps_of(rows)
        return replace(
            self,
            sent_ns=self.sent_ns[rows],
            first_ns=self.first_ns[rows],
            last_ns=self.last_ns[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            gaps_ns=gaps_ns,
            gap_counts=gap_counts,
            gap_blocks=None,
            cached_tokens=None if self.cached_tokens is None else self.cached_tokens[rows],
            tenant=None if self.tenant is None else self.tenant[rows],
            waited_ns=None if self.waited_ns is None else self.waited_ns[rows],
            of=0,
            left_out=0,
        )

    def _gaps_of(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> tuple[Int64s | None, Int64s | None]:
        if self.gaps_ns is None or self.gap_blocks is None:
            return None, None
        block = blocks_of(len(self))
        size = np.bincount(block, minlength=BLOCKS)
        taken = np.bincount(block[rows], minlength=BLOCKS)
        times = taken // np.maximum(size, 1)
        if (times * size != taken).any():
            return None, None
        counts = times[self.gap_blocks] * (1 if self.gap_counts is None else self.gap_counts)
        return self.gaps_ns[counts > 0], counts[counts > 0]


def blocks_of(n: int) -> Int64s:
    """The number of the block that each of ``n`` requests in order of sending is in: at most BLOCKS, whose sizes differ by one
    at most."""
    count = min(n, BLOCKS)
    sizes = np.full(count, n // max(1, count), dtype=np.int64)
    sizes[: n - int(sizes.sum())] += 1
    return np.repeat(np.arange(count, dtype=np.int64), sizes)


class Activity:
    """What the server was doing at any time, reconstructed from the observations; every method is vectorised over times.

    A request decodes at a constant pace between its first and its last token, and holds its prompt plus what it has
    generated. Sums of such pieces are piecewise polynomials with breaks at the first and last tokens.
    """

    def __init__(self, seen: Observations) -> None:
        first = seen.first_ns.astype(np.float64)
        last = seen.last_ns.astype(np.float64)
        many = seen.output_tokens > 1
        pace = np.where(many, (seen.output_tokens - 1) / np.maximum(last - first, 1.0), 0.0)
        prompt = seen.prompt_tokens.astype(np.float64)
        times = np.concatenate([first, last])
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        self._decoding = np.cumsum(np.concatenate([np.ones(len(first)), -np.ones(len(last))])[order])
        pace_sum = np.cumsum(np.concatenate([pace, -pace])[order])
        jump = np.concatenate([prompt + 1, -(prompt + seen.output_tokens)])[order]
        steps = np.diff(self._times, append=self._times[-1] if len(times) else 0.0)
        self._pace = pace_sum
        self._tokens = np.concatenate([[0.0], np.cumsum(pace_sum * steps)[:-1]])
        grown = np.concatenate([[0.0], np.cumsum(pace_sum * steps)[:-1]])
        self._kv = np.cumsum(jump) + grown
        self._kv_area = np.concatenate([[0.0], np.cumsum(self._kv * steps + pace_sum * steps**2 / 2)[:-1]])
        by_first = np.argsort(first, kind="stable")
        self._firsts = first[by_first]
        self._prefilled = np.concatenate([[0.0], np.cumsum(seen.computed_tokens[by_first].astype(np.float64))])
        self._attended = np.concatenate([[0.0], np.cumsum(seen.attended_pairs[by_first].astype(np.float64))])

    def _at(self, t_ns: Floats) -> tuple[NDArray[np.int64], Floats]:
        index = np.searchsorted(self._times, t_ns, side="right") - 1
        return index, np.where(index >= 0, t_ns - self._times[np.maximum(index, 0)], 0.0)

    def decoding(self, t_ns: Floats) -> Floats:
        """Requests between their first and last token."""
        index, _ = self._at(t_ns)
        return np.where(index >= 0, self._decoding[np.maximum(index, 0)], 0.0)

    def tokens(self, t_ns: Floats) -> Floats:
        """Tokens decoded until then."""
        index, since = self._at(t_ns)
        safe = np.maximum(index, 0)
        return np.where(index >= 0, self._tokens[safe] + self._pace[safe] * since, 0.0)

    def kv(self, t_ns: Floats) -> Floats:
        """Resident KV tokens of the decoding requests."""
        index, since = self._at(t_ns)
        safe = np.maximum(index, 0)
        return np.where(index >= 0, self._kv[safe] + self._pace[safe] * since, 0.0)

    def kv_area(self, t_ns: Floats) -> Floats:
        """Integral of ``kv`` over time, tokens * ns."""
        index, since = self._at(t_ns)
        safe = np.maximum(index, 0)
        area = self._kv_area[safe] + self._kv[safe] * since + self._pace[safe] * since**2 / 2
        return np.where(index >= 0, area, 0.0)

    def prefilled(self, t_ns: Floats) -> Floats:
        """Computed prompt tokens of the requests whose first token came until then."""
        return self._prefilled[np.searchsorted(self._firsts, t_ns, side="right")]

    def attended(self, t_ns: Floats) -> Floats:
        """Attended pairs of the prompts of the requests whose first token came until then."""
        return self._attended[np.searchsorted(self._firsts, t_ns, side="right")]

    @property
    def peak_decoding(self) -> int:
        """The most requests that decoded at once."""
        return int(self._decoding.max()) if len(self._decoding) else 0
