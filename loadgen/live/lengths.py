"""Whether a server gave the answers' lengths that it was asked for, and prompts counted what they were meant to."""

from __future__ import annotations

from collections.abc import Callable

from scheduler.request import Outcome, Status

_TOLERANCE = 0.01


LengthState = tuple[int, int, int, int]
"""Output tokens asked for and got, prompt tokens meant and counted."""


class LengthCheck:
    """Stands before the recorder; counts over requests that ended OK."""

    def __init__(self, on_outcome: Callable[[Outcome], None]) -> None:
        self._on_outcome = on_outcome
        self._asked = self._got = self._meant = self._counted = 0

    def __call__(self, outcome: Outcome) -> None:
        self._on_outcome(outcome)
        request = outcome.request
        if outcome.status is not Status.OK:
            return
        if outcome.output_tokens is not None and request.target_output_tokens is not None:
            self._asked += request.target_output_tokens
            self._got += outcome.output_tokens
        if outcome.prompt_tokens is not None:
            self._meant += request.prompt_tokens
            self._counted += outcome.prompt_tokens

    def state(self) -> LengthState:
        return (self._asked, self._got, self._meant, self._counted)

    def add(self, state: LengthState) -> None:
        """Add what another worker counted."""
        asked, got, meant, counted = state
        self._asked, self._got = self._asked + asked, self._got + got
        self._meant, self._counted = self._meant + meant, self._counted + counted

    def warnings(self) -> list[str]:
        """What a reader should know, with the measured difference."""
        found = []
        if self._asked and abs(self._got / self._asked - 1) > _TOLERANCE:
            found.append(
                f"output lengths: the server gave {self._got / self._asked - 1:+.1%} of the tokens that were asked for (it "
                "does not obey ignore_eos, or its answers end by themselves)"
            )
        if self._meant and abs(self._counted / self._meant - 1) > _TOLERANCE:
            found.append(
                f"prompt lengths: the server counted {self._counted / self._meant - 1:+.1%} of the tokens that were meant; "
                "name its tokenizer for exact ones (--tokenizer DIR)"
            )
        return found
