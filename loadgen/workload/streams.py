"""One tenant's arrivals and lengths, drawn from random streams of its own.

Each purpose (arrivals, prompts, outputs, turns) has a generator of its own, derived from (seed, tenant name). So
neither another tenant nor another load of this tenant changes the lengths: request k of a tenant has the same lengths
whatever its rate. Lengths are drawn in blocks of fixed size, so they do not depend on how they are asked for; what is
chosen by request (prefix, cancel) is a hash of k and the turn, so it does not depend on the order of the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from loadgen.workload.arrivals import arrival_times
from loadgen.workload.arrivals import faults_of as arrival_faults
from loadgen.workload.blocks import block_names, key_of, mix
from loadgen.workload.demand import faults_of as traffic_faults
from loadgen.workload.demand import mean_turns, prefix_tokens
from loadgen.workload.lengths import LengthSampler
from scheduler.request import Request
from tenants.tenant import Tenant
from tenants.traffic import Process, Traffic

Int64s = NDArray[np.int64]

_DRAW = 4096
_PURPOSES = 4
_NONE = np.empty(0, dtype=np.int64)


def generators(seed: int, tenant: str) -> list[np.random.Generator]:
    """Independent generators of one tenant, one a purpose. Raises ValueError for a negative seed."""
    if seed < 0:
        raise ValueError(f"seed is {seed}; an int >= 0 would be right")
    name = int.from_bytes(blake2b(tenant.encode(), digest_size=16).digest(), "little")
    return [np.random.default_rng(child) for child in np.random.SeedSequence([seed, name]).spawn(_PURPOSES)]


class Buffered:
    """Rows of an endless random sequence, drawn ``_DRAW`` at a time, taken as many as wanted."""

    def __init__(self, draw: Callable[[int], Int64s]) -> None:
        self._draw = draw
        self._rows = _NONE

    def take(self, n: int) -> Int64s:
        """The next ``n`` rows, shape (n,) or (n, width)."""
        if n > len(self._rows):
            missing = n - len(self._rows)
            blocks = [self._draw(_DRAW) for _ in range(-(-missing // _DRAW))]
            self._rows = np.concatenate([self._rows, *blocks]) if len(self._rows) else np.concatenate(blocks)
        taken, self._rows = self._rows[:n], self._rows[n:]
        return taken


class TenantStream:
    """Builds the requests of one tenant. Raises ValueError that lists every fault of its traffic."""

    def __init__(self, tenant: Tenant, traffic: Traffic, *, seed: int, duration_s: float, block_tokens: int) -> None:
        faults = [f"arrivals: {fault}" for fault in arrival_faults(traffic.arrivals)] + traffic_faults(traffic)
        if traffic.arrivals.process is Process.TRACE:
            faults.append("arrivals: trace arrivals come from a trace; give one, or another process")
        if faults:
            raise ValueError(f"tenant {tenant.name!r}: " + "; ".join(faults))
        self.tenant = tenant
        self.traffic = traffic
        self.closed = traffic.arrivals.process is Process.CLOSED
        rng, prompt_rng, output_rng, turns_rng = generators(seed, tenant.name)
        self._lengths = _lengths_of(traffic, prompt_rng, output_rng)
        self._choice_key = key_of(seed, "choice", tenant.name)
        self._count = 0
        self._turns: Buffered | None = None
        if traffic.sessions is not None:
            sampler = LengthSampler(traffic.sessions.turns)
            self._turns = Buffered(lambda n: np.maximum(sampler.draw(n, turns_rng), 1))
        self.prefix_tokens = prefix_tokens(traffic)
        self.prefixes = [
            tuple(block_names(key_of(seed, "prefix", tenant.name, str(i)), 0, self.prefix_tokens // block_tokens))
            for i in range(traffic.shared_prefixes)
        ]
        self._chooses = traffic.shared_prefixes > 1 or traffic.cancel_share > 0
        self._ttl_ns = tenant.limits.ttl_ns
        self._first_token_timeout_ns = _ns(traffic.first_token_timeout_s)
        self._timeout_ns = _ns(traffic.timeout_s)
        self._cancel_after_ns = _ns(traffic.cancel_after_s)
        self._chunks: Iterator[Int64s] = iter(())
        if not self.closed:
            # The rate counts requests, and an arrival of the process starts a whole session.
            starts = traffic.arrivals.grown(1 / mean_turns(traffic))
            self._chunks = arrival_times(starts, duration_s, rng)
        self._due = _NONE

    def pending(self) -> Int64s:
        """Arrival times made and not yet taken, ascending; empty only when there are no more."""
        if not len(self._due):
            self._due = next(self._chunks, _NONE)
        return self._due

    def take_until(self, horizon_ns: int) -> Int64s:
        """Remove and return the pending arrival times <= ``horizon_ns``."""
        due = self.pending()
        n = int(np.searchsorted(due, horizon_ns, side="right"))
        self._due = due[n:]
        return due[:n]

    def lengths(self, n: int) -> tuple[list[int], list[int]]:
        """(prompt, output) tokens of the next ``n`` requests, without prefix or conversation."""
        rows = self._lengths.take(n)
        prompts: list[int] = rows[:, 0].tolist()
        outputs: list[int] = rows[:, 1].tolist()
        return prompts, outputs

    def turns(self, n: int) -> list[int] | None:
        """Turns of the next ``n`` sessions; None when this tenant has no sessions."""
        if self._turns is None:
            return None
        turns: list[int] = self._turns.take(n).tolist()
        return turns

    @property
    def made(self) -> int:
        """How many arrivals were drawn or passed over."""
        return self._count

    def pass_over(self, n: int) -> None:
        """Draw and forget the lengths of the next ``n`` arrivals: another worker has them."""
        if n > 0:
            turns = self.turns(n)
            self.lengths(n if turns is None else sum(turns))
            self._count += n

    def next_index(self) -> int:
        """How many arrivals this tenant had before the one that comes next."""
        self._count += 1
        return self._count - 1

    def requests(self, ids: list[int], arrivals_ns: list[int]) -> list[Request]:
        """Requests that belong to no session, one for each id."""
        prompts, outputs = self.lengths(len(ids))
        if self._chooses:
            return [
                self.request(self.next_index(), id=i, arrival_ns=t, prompt=p, output=o)
                for i, t, p, o in zip(ids, arrivals_ns, prompts, outputs, strict=True)
            ]
        self._count += len(ids)
        name, priority, ttl_ns = self.tenant.name, self.tenant.priority, self._ttl_ns
        first_token_timeout_ns, timeout_ns = self._first_token_timeout_ns, self._timeout_ns
        prefix_tokens, prefix, limit = self.prefix_tokens, self.prefixes[0], self.traffic.max_tokens
        return [
            Request(
                id=i,
                tenant=name,
                arrival_ns=t,
                prompt_tokens=prefix_tokens + p,
                max_tokens=limit or o,
                target_output_tokens=o,
                priority=priority,
                ttl_ns=ttl_ns,
                first_token_timeout_ns=first_token_timeout_ns,
                timeout_ns=timeout_ns,
                prefix_blocks=prefix,
            )
            for i, t, p, o in zip(ids, arrivals_ns, prompts, outputs, strict=True)
        ]

    def request(self, index: int, *, id: int, arrival_ns: int, prompt: int, output: int, turn: int = 0) -> Request:  # noqa: A002 (the field's name)
        """One request with its choices; ``index``: which arrival of the tenant it belongs to."""
        which, cancelled = self._choice(index, turn)
        return Request(
            id=id,
            tenant=self.tenant.name,
            arrival_ns=arrival_ns,
            prompt_tokens=self.prefix_tokens + prompt,
            max_tokens=self.traffic.max_tokens or output,
            target_output_tokens=output,
            priority=self.tenant.priority,
            ttl_ns=self._ttl_ns,
            first_token_timeout_ns=self._first_token_timeout_ns,
            timeout_ns=self._timeout_ns,
            cancel_after_ns=self._cancel_after_ns if cancelled else None,
            prefix_blocks=self.prefixes[which],
            turn=turn,
        )

    def _choice(self, index: int, turn: int) -> tuple[int, bool]:
        """(which shared prefix, whether the client cancels)."""
        if not self._chooses:
            return 0, False
        arrival = mix(self._choice_key ^ index)
        return arrival % len(self.prefixes), mix(arrival + turn) < self.traffic.cancel_share * 2.0**64


def _lengths_of(traffic: Traffic, prompt_rng: np.random.Generator, output_rng: np.random.Generator) -> Buffered:
    top = traffic.max_tokens
    if traffic.joint:
        pairs = np.array(traffic.joint, dtype=np.int64)
        return Buffered(lambda n: _limited(pairs[prompt_rng.integers(0, len(pairs), size=n)], top))
    prompt, output = LengthSampler(traffic.prompt), LengthSampler(traffic.output)
    return Buffered(lambda n: _limited(np.stack([prompt.draw(n, prompt_rng), output.draw(n, output_rng)], axis=1), top))


def _limited(rows: Int64s, most_output: int | None) -> Int64s:
    """A server takes no prompt and no answer of zero tokens."""
    rows = np.maximum(rows, 1)
    if most_output is not None:
        rows[:, 1] = np.minimum(rows[:, 1], most_output)
    return rows


def _ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)
