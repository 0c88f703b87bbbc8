"""What quiet requests say of the server's front end: those in whose wait no other request had its first token.

Such a request waits for half a step, for its own step, and for the front end. Its time there is the same free time for all
(:mod:`scheduler.server_model.front_end`), so what a stream takes of it is what makes the waits of captures with few and with
many sequences alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.calibration.observations import Activity, Floats, Observations
from scheduler.server_model.front_end import LEAST_FREE

_OF_A_STEP = np.array([0.0, *np.geomspace(0.003, 0.12, 24)])
_FEW = 5
_LOADS = 3
_TELLS = 1.1
"""By what factor the captures must differ more without streams, and with ``_DEARER`` ones, to tell."""
_DEARER = 4.0


@dataclass(frozen=True, slots=True)
class Quiet:
    """One capture's quiet requests, a row each. ``waits_us``: less what the law explains of it; ``streams``: sequences that
    decoded when it was sent, for each us of their step."""

    waits_us: Floats
    streams: Floats

    def work_us(self, stream_us: float) -> float:
        """The median of the free time that they needed, where a stream takes so much of a step."""
        free = 1 - np.minimum(stream_us * self.streams, 1 - 1 / LEAST_FREE)
        return float(np.median(self.waits_us * free))


def offset_us(captures: Sequence[Quiet], stream_us: float = 0.0) -> float:
    """What a request needs of the front end: the median over captures, each of which counts the same; 0 where none says."""
    works = [one.work_us(stream_us) for one in captures if len(one.waits_us)]
    return max(0.0, float(np.median(works))) if works else 0.0


def told_stream_us(captures: Sequence[Quiet], step_us: float) -> float | None:
    """What a stream takes of the front end in a step (> 0); None where the captures do not tell: fewer than three, or of
    loads that are alike. ``step_us``: a step in which nothing decodes."""
    heard = [one for one in captures if len(one.waits_us) >= _FEW]
    if len(heard) < _LOADS:
        return None

    def differ(stream_us: float) -> float:
        return float(np.std([np.log(max(1.0, one.work_us(stream_us))) for one in heard]))

    candidates = (_OF_A_STEP * step_us).tolist()
    differences = [differ(one) for one in candidates]
    least = min(differences)
    best = candidates[differences.index(least)]
    told = min(differences[0], differ(_DEARER * best)) > _TELLS * least
    return best if told else None


def quiet_requests(captures: Sequence[Observations], law: Floats, attended_us: float = 0.0) -> list[Quiet]:
    """``law``: a, b, c and d, in us."""
    a, b, c, d = law.tolist()
    found = []
    for seen in captures:
        activity = Activity(seen)
        sent, first = seen.sent_ns.astype(np.float64), seen.first_ns.astype(np.float64)
        quiet = seen.take(activity.prefilled(first - 1) <= activity.prefilled(sent))
        sent, first = quiet.sent_ns.astype(np.float64), quiet.first_ns.astype(np.float64)
        decoding = activity.decoding(sent)
        beside = c * decoding + d * activity.kv(sent)
        prefill = b * quiet.computed_tokens + attended_us * quiet.attended_pairs
        explained = 0.5 * (a * (decoding > 0) + beside) + a + prefill + beside
        found.append(Quiet((first - sent) / 1000 - explained, decoding / (a + beside)))
    return found
