"""Which requests of a workload are one worker's, when several processes carry a run.

Every worker draws the whole workload, from the same seed, and keeps its share. So nobody deals anything out while the run
lasts, and a request has the id, the arrival and the lengths that it has with one worker.

Numbers are dealt in rounds of ``count``, each worker one a round, in an order that changes from round to round: tenants that
take turns in a schedule are not each dealt to a worker of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.workload.blocks import mix


@dataclass(frozen=True, slots=True)
class Share:
    """Worker ``index`` of ``count``."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"worker {self.index} of {self.count}; 0 to {self.count - 1} of at least 1 would be right")

    def owns(self, number: int) -> bool:
        """Whether the arrival with this number, counted from 0 over all tenants, is this worker's."""
        return self.count == 1 or self._place(number // self.count) == number % self.count

    def of_total(self, total: int) -> int:
        """How many of the numbers below ``total`` are this worker's."""
        rounds, rest = divmod(total, self.count)
        return rounds + (self._place(rounds) < rest)

    def first_user(self, before: int) -> int:
        """The first user of this worker's in a tenant, with ``before`` users of other tenants dealt already; its next
        ones follow at distances of ``count``."""
        return (self.index - before) % self.count

    def _place(self, round_: int) -> int:
        """Where in the round this worker's number stands."""
        return (self.index + mix(round_)) % self.count


WHOLE = Share()
