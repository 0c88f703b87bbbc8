"""Who may enter the queue: per-tenant limits, judged at arrival, each refusal with its reason.

* ``max_queued``: a full queue refuses;
* ``requests_per_s``, ``tokens_per_s`` (prompt plus estimated output): token buckets; the refusal says when to come back;
* ``shed_out_of_contract``: the contract's bucket, charged at arrival with the estimated cost and corrected at the end,
  is negative: work beyond the contracted share goes first. A contract that comes while requests wait is charged for them
  at once, and neither charged nor corrected for those that run;
* ``reject_late``: ``now + own backlog / own share of the service rate + own prefill > arrival + TTFT limit``.

While no tenant has a limit nothing is counted: every request would be admitted whatever the counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.bucket import TokenBucket
from scheduler.cost import CostModel
from scheduler.events import Reject, RejectReason
from scheduler.output_estimate import OutputEstimate
from scheduler.request import Request
from scheduler.service_rate import ServiceRate
from tenants.tenant import Tenant

_START_RATE = 12_000.0


class _Account:
    __slots__ = ("contract", "estimate", "queued", "queued_cost", "requests", "tenant", "tokens")

    def __init__(self, tenant: Tenant) -> None:
        self.queued = 0
        self.queued_cost = 0.0
        self.estimate = OutputEstimate(tenant)
        self.requests: TokenBucket | None = None
        self.tokens: TokenBucket | None = None
        self.contract: TokenBucket | None = None
        self.configure(tenant)

    def configure(self, tenant: Tenant) -> None:
        limits, contract = tenant.limits, tenant.contract
        self.tenant = tenant
        self.requests = _rate_limit(limits.requests_per_s, limits.burst_s, self.requests)
        self.tokens = _rate_limit(limits.tokens_per_s, limits.burst_s, self.tokens)
        promised = contract if limits.shed_out_of_contract else None
        self.contract = None if promised is None else _bucket(promised.rate, promised.burst, self.contract)


def _is_limited(tenant: Tenant) -> bool:
    limits = tenant.limits
    return (
        limits.max_queued is not None
        or limits.requests_per_s is not None
        or limits.tokens_per_s is not None
        or limits.reject_late
        or (limits.shed_out_of_contract and tenant.contract is not None)
    )


def _rate_limit(rate: float | None, burst_s: float, present: TokenBucket | None) -> TokenBucket | None:
    return None if rate is None else _bucket(rate, max(rate * burst_s, 1.0), present)


def _bucket(rate: float, burst: float, present: TokenBucket | None) -> TokenBucket:
    """A new bucket starts full; one whose terms did not change keeps its level, so no change forgives a debt."""
    if present is not None and (present.rate, present.burst) == (rate, burst):
        return present
    return TokenBucket(rate, burst)


class _Admitted:
    """A request that was let in. ``charged``: the contract's bucket that its estimated cost was taken from."""

    __slots__ = ("account", "charged", "cost")

    def __init__(self, account: _Account, cost: float) -> None:
        self.account = account
        self.cost = cost
        self.charged: TokenBucket | None = None

    def charge(self, now_ns: int) -> None:
        """Take its cost from the contract of now, unless that was done."""
        contract = self.account.contract
        if contract is not None and contract is not self.charged:
            contract.charge(self.cost, now_ns)
            self.charged = contract


class Admission:
    """Asked once per arrival; told about every change of the queue. ``limited``: whether that matters."""

    def __init__(self, tenants: Iterable[Tenant], cost: CostModel, prefill_rate: float) -> None:
        self.limited = False
        self._cost = cost
        self._prefill_rate = prefill_rate
        self._accounts: dict[str, _Account] = {}
        self._admitted: dict[int, _Admitted] = {}
        self._rate = ServiceRate(_START_RATE)
        self.set_tenants(tenants, (), 0)

    def set_tenants(self, tenants: Iterable[Tenant], queued: Iterable[Request], now_ns: int) -> None:
        """``queued``: what waits now; it stays admitted, and counts from now on if it did not yet."""
        accounts = {}
        for tenant in tenants:
            account = self._accounts.get(tenant.name)
            if account is None:
                account = _Account(tenant)
            elif account.tenant != tenant:
                account.configure(tenant)
            accounts[tenant.name] = account
        self._accounts = accounts
        self.limited = self.limited or any(_is_limited(account.tenant) for account in accounts.values())
        if self.limited:
            for request in queued:
                if request.id not in self._admitted:
                    account = accounts[request.tenant]
                    cost = self._cost.of(request.prompt_tokens, account.estimate.of(request))
                    self._admit(account, request, cost, now_ns)
                else:
                    self._admitted[request.id].charge(now_ns)

    def _admit(self, account: _Account, request: Request, cost: float, now_ns: int) -> None:
        account.queued += 1
        account.queued_cost += cost
        admitted = self._admitted[request.id] = _Admitted(account, cost)
        admitted.charge(now_ns)

    def refusal(self, request: Request, now_ns: int) -> Reject | None:
        """None admits (and charges) the request. Raises nothing; an unknown tenant is a refusal too."""
        account = self._accounts.get(request.tenant)
        if account is None:
            return Reject(request.id, RejectReason.UNKNOWN_TENANT)
        if not self.limited:
            return None
        output_tokens = account.estimate.of(request)
        cost = self._cost.of(request.prompt_tokens, output_tokens)
        tokens = request.prompt_tokens + output_tokens
        limits = account.tenant.limits
        if limits.max_queued is not None and account.queued >= limits.max_queued:
            return Reject(request.id, RejectReason.QUEUE_FULL)
        if account.contract is not None and account.contract.level(now_ns) < 0:
            return Reject(request.id, RejectReason.OUT_OF_CONTRACT, account.contract.wait_ns(0.0, now_ns))
        if limits.reject_late and self._is_late(account, request, now_ns):
            return Reject(request.id, RejectReason.DEADLINE)
        if account.tokens is not None and account.tokens.level(now_ns) < min(tokens, account.tokens.burst):
            return Reject(request.id, RejectReason.TOKEN_LIMIT, account.tokens.wait_ns(tokens, now_ns))
        if account.requests is not None and not account.requests.take(1, now_ns):
            return Reject(request.id, RejectReason.RATE_LIMIT, account.requests.wait_ns(1, now_ns))
        if account.tokens is not None:
            account.tokens.charge(tokens, now_ns)
        self._admit(account, request, cost, now_ns)
        return None

    def _is_late(self, account: _Account, request: Request, now_ns: int) -> bool:
        limit_ns = account.tenant.slo.ttft_ns
        if limit_ns is None:
            return False
        busy = sum(a.tenant.weight for a in self._accounts.values() if a.queued or a is account)
        rate = self._rate.value * account.tenant.weight / busy
        wait_s = account.queued_cost / rate + request.prompt_tokens / self._prefill_rate
        return now_ns + wait_s * 1e9 > request.arrival_ns + limit_ns

    def left_queue(self, request_id: int, *, dispatched: bool) -> None:
        """A request was dispatched, or left the queue for good."""
        if request_id not in self._admitted:
            return
        admitted = self._admitted[request_id]
        admitted.account.queued -= 1
        admitted.account.queued_cost -= admitted.cost
        if dispatched:
            self._rate.dispatched(admitted.cost)

    def requeued(self, request_id: int) -> None:
        if request_id not in self._admitted:
            return
        admitted = self._admitted[request_id]
        admitted.account.queued += 1
        admitted.account.queued_cost += admitted.cost
        self._rate.dispatched(-admitted.cost)

    def ended(self, request_id: int, prompt_tokens: int, output_tokens: int, now_ns: int) -> None:
        """The truth about a request that was admitted; corrects the contract's bucket and the estimate."""
        if request_id not in self._admitted:
            return
        admitted = self._admitted.pop(request_id)
        if admitted.charged is not None:
            admitted.charged.charge(self._cost.of(prompt_tokens, output_tokens) - admitted.cost, now_ns)
        if output_tokens > 0:
            admitted.account.estimate.learn(output_tokens)

    def observe(self, now_ns: int, *, backlogged: bool) -> None:
        """Keeps the learnt service rate up to date; asked only where something is limited."""
        self._rate.observe(now_ns, backlogged=backlogged)
