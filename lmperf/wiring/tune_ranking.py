"""How the trials of a search rank.

The best is found by

1. how many tenants in contract are below their target under the raised load, then how many are not shown to be at it
   (their interval reaches below);
2. where some are below: the attainment of the worst, to three decimals (the seeds decide the rest);
3. throughput, since attainment beyond a promise is worth none; what is within 1% of the best counts as the best;
4. P99 decay in contract, where below 1 is not better than 1, and what is within 0.1 of the least counts as the least: where
   those who keep their promise are harmed least, they are the farthest from losing it;
5. of those that are left, the ones that let out no more sequences than the server has seats, where there is one: what waits
   inside the server is out of a policy's hands, and its prediction the least sure;
6. of those, one that no other of them beats in attainment, decay and throughput alike (as the table rounds them);
7. the order in which they were tried.

So the scenario's own setting wins where nothing does better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lmperf.wiring.setting import Setting
from loadgen.offline.verdicts import PolicyVerdict

_SAME_THROUGHPUT, _SAME_DECAY = 0.01, 0.1


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting and what the simulation says of it. ``missed``: tenants in contract below their target. ``unsure``:
    those whose interval (there is one from five seeds on) reaches below it. ``seats``: sequences that a server takes on at
    once (max_num_seqs), where that is known."""

    setting: Setting
    verdict: PolicyVerdict
    missed: tuple[str, ...] = ()
    unsure: tuple[str, ...] = ()
    seats: int | None = None

    @property
    def broken(self) -> tuple[float, ...]:
        """How far the promises are from being kept; less is better."""
        worst = self.verdict.worst_attainment.value or 0.0
        return len(self.missed), len(self.unsure), -round(worst, 3) if self.missed else 0.0

    @property
    def throughput(self) -> float:
        return self.verdict.throughput_ratio.value or 0.0

    @property
    def decay(self) -> float:
        """In contract, at least 1; infinite when nothing can be said."""
        decay = self.verdict.decay_in_contract.value
        return math.inf if decay is None else max(1.0, decay)

    @property
    def beyond_seats(self) -> bool:
        """Whether it lets out more sequences than a server has seats for. Slots that move go by what the server shows."""
        sequences = self.setting.slots.sequences
        return self.seats is not None and self.setting.auto is None and (sequences is None or sequences > self.seats)

    @property
    def doubt(self) -> str:
        """Why its prediction is to be doubted, a sentence; empty for one that is as good as the server model."""
        if not self.beyond_seats:
            return ""
        out = "every request" if self.setting.slots.sequences is None else f"{self.setting.slots.sequences} sequences"
        return (
            f"Doubtful: it lets {out} out to a server of {self.seats} seats (max_num_seqs), so the rest waits where no policy "
            "reaches it; such a setting was measured far below its prediction: confirm it with --live."
        )


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """The best, as this module's text says; the first tried among equals."""
    if not trials:
        return None
    least = min(trial.broken for trial in trials)
    left = [trial for trial in trials if trial.broken == least]
    most = max(trial.throughput for trial in left)
    left = [trial for trial in left if trial.throughput >= most - _SAME_THROUGHPUT]
    mildest = min(trial.decay for trial in left)
    left = [trial for trial in left if trial.decay <= mildest + _SAME_DECAY]
    return efficient([trial for trial in left if not trial.beyond_seats] or left)[0]


def efficient(trials: Sequence[Trial]) -> list[Trial]:
    """The trade-off: trials that no other beats in worst attainment, decay and throughput alike."""
    axes = [_axes(trial) for trial in trials]
    return [
        trial
        for trial, own in zip(trials, axes, strict=True)
        if not any(other != own and all(o >= s for o, s in zip(other, own, strict=True)) for other in axes)
    ]


def _axes(trial: Trial) -> tuple[float, float, float]:
    """Throughput, decay (negative), worst attainment: more is better; rounded, so that noise makes no difference."""
    worst = trial.verdict.worst_attainment.value or 0.0
    return round(trial.throughput, 2), -round(trial.decay, 2), round(worst, 3)
