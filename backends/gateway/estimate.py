"""How long a prompt is before the server has told: its bytes times the tenant's running tokens-per-byte ratio.

The ratio is that of two decayed sums (factor 0.05 a request), so long prompts, whose length matters, weigh by their bytes;
it is corrected by the ``usage`` of every answer. A prompt given as token ids needs no estimate.
"""

from __future__ import annotations

_FACTOR = 0.05
_START_TOKENS_PER_BYTE = 0.25
_START_BYTES = 1_000.0


class PromptEstimate:
    """One tenant's. Starts at a quarter token a byte, with the weight of 1,000 bytes."""

    __slots__ = ("_bytes", "_tokens")

    def __init__(self) -> None:
        self._bytes = _START_BYTES
        self._tokens = _START_BYTES * _START_TOKENS_PER_BYTE

    @property
    def tokens_per_byte(self) -> float:
        return self._tokens / self._bytes

    def tokens(self, prompt_bytes: int) -> int:
        """At least 1."""
        return max(1, round(prompt_bytes * self.tokens_per_byte))

    def learn(self, prompt_bytes: int, prompt_tokens: int) -> None:
        """The server told the length of a prompt of so many bytes."""
        if prompt_bytes > 0 and prompt_tokens > 0:
            self._bytes += _FACTOR * (prompt_bytes - self._bytes)
            self._tokens += _FACTOR * (prompt_tokens - self._tokens)
