"""How long a step takes: the law of :mod:`scheduler.server_model.spec` in whole picoseconds, so that sums are exact."""

from __future__ import annotations

from scheduler.server_model.spec import PS_PER_US, StepLaw


class StepTime:
    """``growth_ps``: what a step of decodes grows by from one to the next, a sequence. ``attended_ps``: a pair of a prefilled
    token and one that it attends to."""

    __slots__ = ("_a_ps", "_b_ps", "_c_ps", "attended_ps", "growth_ps")

    def __init__(self, law: StepLaw) -> None:
        self._a_ps = max(1, round(law.a_us * PS_PER_US))
        self._b_ps = round(law.b_us * PS_PER_US)
        self._c_ps = round(law.c_us * PS_PER_US)
        self.growth_ps = round(law.d_us * PS_PER_US)
        self.attended_ps = round(law.attended_us * PS_PER_US)

    def step_ps(self, prefill_tokens: int, decoders: int, decode_kv: int) -> int:
        """One step, less what its prefilled tokens attend to."""
        return self._a_ps + self._b_ps * prefill_tokens + self._c_ps * decoders + self.growth_ps * decode_kv


def attended_pairs(tokens: int, computed: int) -> int:
    """Pairs of a prefilled token and a token that it attends to, itself included, in a chunk of ``tokens`` after
    ``computed`` ones. Chunks of one prompt add up to the prompt's."""
    return tokens * computed + tokens * (tokens + 1) // 2
