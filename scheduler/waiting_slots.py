"""How many sequences to have outstanding, from the engine's own waiting count: as many as it runs, and none in its queue.

A policy only orders what waits with us; what waits inside the engine is served in the engine's order. So D should be what the
engine can run at once, which nobody tells: it depends on its batch limit and on how much KV memory the requests of the
moment need. Its queue tells. Every half second, for each backend:

* its queue *stands*, i.e. the least of the last three waiting counts is more than what waits for the next step anyway: D =
  outstanding - that count (at least ``least``, at least half of D), which is what the engine was running, and no growth for
  2 s; for twice as long, up to 16 s, each time that it stands again at about the same D;
* else, no more than that waits there, something waits here, and all of D is in use: D grows, by a sixteenth until a queue
  stood for the first time and by 2 from then on.

The least of several looks, as in controlled delay (Nichols and Jacobson, 2012): a moment's queue is what keeps an engine busy.
What waits for the next step anyway is, by Little's law, the outstanding requests times the share of its time at the engine that
one needs for a step, i.e. TPOT over that time, as ended requests tell (EWMA, factor 0.05). Longer and longer pauses, since an
engine that is short of memory answers one request too many with a preemption, whose lost work costs more than a free slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from scheduler.output_estimate import EWMA_FACTOR
from scheduler.slot_control import Pace, SlotControl
from scheduler.slots import Slots

PERIOD_NS = 500_000_000
_LOOKS = 3
_STALE_NS = 3 * PERIOD_NS
_FIRST_PAUSE_NS = 2_000_000_000
_LONGEST_PAUSE_NS = 16_000_000_000
_SHRINK = 0.5
_GROW = 2
_FIRST_GROWTH = 16


class _Seen:
    """One backend's last looks: (time, waiting); ``outstanding`` is the last one's. ``met``: the D at which its queue last
    stood, 0 before that."""

    __slots__ = ("grow_after_ns", "looks", "met", "outstanding", "pause_ns")

    def __init__(self) -> None:
        self.looks: deque[tuple[int, int]] = deque(maxlen=_LOOKS)
        self.outstanding = 0
        self.met = 0
        self.pause_ns = _FIRST_PAUSE_NS
        self.grow_after_ns = 0

    def standing(self) -> int:
        """The least of the last looks; 0 until there are enough."""
        return min(count for _, count in self.looks) if len(self.looks) == _LOOKS else 0

    def pause(self, sequences: int, now_ns: int) -> None:
        """No growth for a while: twice as long each time that D meets a queue where it met one before."""
        again = self.met and sequences <= self.met + max(_GROW, self.met // _FIRST_GROWTH)
        self.pause_ns = min(_LONGEST_PAUSE_NS, 2 * self.pause_ns) if again else _FIRST_PAUSE_NS
        self.grow_after_ns = now_ns + self.pause_ns
        self.met = sequences
        self.looks.clear()


class WaitingSlots(SlotControl):
    """Follows each engine's waiting count; a backend that was not looked at lately keeps its D."""

    period_ns = PERIOD_NS
    reads_waiting = True

    def __init__(self, slots: Mapping[str, Slots], least: int = 1, most: int = 1024, now_ns: int = 0) -> None:
        super().__init__(slots, least, most, now_ns)
        self._seen = {name: _Seen() for name in slots}
        self._step_share = 0.0

    def observe_pace(self, pace: Pace) -> None:
        if pace.dispatched_ns is not None:
            share = pace.tpot_ns / (pace.last_token_ns - pace.dispatched_ns)
            self._step_share += EWMA_FACTOR * (share - self._step_share)

    def observe_waiting(self, backend: str, *, waiting: int, outstanding: int, now_ns: int) -> None:
        seen = self._seen[backend]
        while seen.looks and seen.looks[0][0] <= now_ns - _STALE_NS:
            seen.looks.popleft()
        seen.looks.append((now_ns, waiting))
        seen.outstanding = outstanding

    def decide(self, now_ns: int, *, queued: bool) -> dict[str, int]:
        changes = {}
        for name, seen in self._seen.items():
            sequences = self.sequences(name)
            wanted = self._wanted(seen, sequences, now_ns, queued=queued)
            if wanted != sequences:
                changes[name] = wanted
        return changes

    def _wanted(self, seen: _Seen, sequences: int, now_ns: int, *, queued: bool) -> int:
        if not seen.looks or seen.looks[-1][0] <= now_ns - PERIOD_NS:
            return sequences
        for_a_step = round(seen.outstanding * self._step_share)
        standing = seen.standing()
        if standing > for_a_step:
            ran = min(sequences, seen.outstanding) - standing
            seen.pause(sequences, now_ns)
            return min(sequences, max(self._least, ran, int(_SHRINK * sequences)))
        idle = seen.looks[-1][1] <= for_a_step
        if now_ns >= seen.grow_after_ns and idle and queued and seen.outstanding >= sequences:
            step = _GROW if seen.met else max(_GROW, sequences // _FIRST_GROWTH)
            return min(self._most, sequences + step)
        return sequences
