"""Prompts for servers whose tokens are not ours to name: fitted with a tokenizer, or by a ratio learnt on the way.

:class:`TokenizerPrompts` looks for words that stay one token each wherever they stand; a text of them is exact without
being encoded, which is verified on the first prompts and then trusted. Where the tokenizer offers no such words, the
text is cut to the character that gives the exact count, by bisection with a bounded number of encodings.

:class:`RatioPrompts` knows no tokenizer: characters per token, corrected by the counts that the server reports
(exponentially weighted, a plain mean at first).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from loadgen.workload.blocks import BLOCK_TOKENS
from loadgen.workload.prompts import Layout, Prompt, Segment, WordPool, WordTexts
from loadgen.workload.vocabulary import COMMON_WORDS
from scheduler.request import Request

Encode = Callable[[str], Sequence[int]]

_WORDS_LEAST = 32
_REPEATS = 4
_VERIFIED = 16
_ENCODINGS_MOST = 24
_SAMPLE_WORDS = 512
_RATIO_FACTOR = 0.05
_MORE_WORDS = 1.1


class RatioPrompts:
    """Prompts of about the wanted length. ``characters_per_token``: where the ratio starts; default: a token a word."""

    def __init__(
        self,
        *,
        seed: int = 0,
        block_tokens: int = BLOCK_TOKENS,
        overhead_tokens: int = 0,
        behind_tokens: int = 0,
        characters_per_token: float | None = None,
        words: Sequence[str] = COMMON_WORDS,
    ) -> None:
        if characters_per_token is not None and not characters_per_token > 0:
            raise ValueError(f"characters_per_token is {characters_per_token}; a number > 0 would be right")
        layout = Layout(
            seed=seed, block_tokens=block_tokens, overhead_tokens=overhead_tokens, behind_tokens=behind_tokens
        )
        self._text = _CharacterTexts(layout, seed, characters_per_token, words)
        self._observed = 0

    @property
    def characters_per_token(self) -> float:
        return self._text.ratio

    def build(self, request: Request) -> Prompt:
        tokens = self._text.layout.content_tokens(request)
        text = self._text.of(request, max(1, round(tokens * self._text.ratio)))
        return Prompt(text, tokens + self._text.layout.overhead_tokens)

    def observe(self, characters: int, prompt_tokens: int) -> None:
        """The server counted ``prompt_tokens`` for a prompt of ``characters`` (template included in the count only)."""
        content = prompt_tokens - self._text.layout.overhead_tokens
        if content < 1 or characters < 1:
            return
        self._observed += 1
        weight = max(_RATIO_FACTOR, 1 / self._observed)
        self._text.ratio += weight * (characters / content - self._text.ratio)


class TokenizerPrompts:
    """Prompts of exactly the wanted length by ``encode``.

    ``encode`` is called a few hundred times here, then once for each of the first prompts only. What it adds by itself
    around any text (a BOS) is found out and counted apart from ``overhead_tokens``, which then is the template without
    it. When even a cut text cannot have the exact count, the nearest one is built and its true count is told.
    """

    def __init__(
        self,
        encode: Encode,
        *,
        seed: int = 0,
        block_tokens: int = BLOCK_TOKENS,
        overhead_tokens: int = 0,
        behind_tokens: int = 0,
        words: Sequence[str] = COMMON_WORDS,
    ) -> None:
        self._encode = encode
        self._added = len(encode(""))
        self.layout = Layout(
            seed=seed, block_tokens=block_tokens, overhead_tokens=overhead_tokens, behind_tokens=behind_tokens
        )
        singles = self._single(list(dict.fromkeys(words)))
        self._words = WordTexts(self.layout, WordPool(singles, seed=seed)) if len(singles) >= _WORDS_LEAST else None
        self._unverified = _VERIFIED
        sample = " ".join(words[:_SAMPLE_WORDS])
        ratio = len(sample) / max(1, self.count(sample))
        self._cut = _CharacterTexts(self.layout, seed, ratio, words)

    @property
    def exact_words(self) -> bool:
        """True while prompts are made of words that are one token each."""
        return self._words is not None

    def count(self, text: str) -> int:
        """Tokens of ``text`` itself."""
        return len(self._encode(text)) - self._added

    def build(self, request: Request) -> Prompt:
        tokens = self.layout.content_tokens(request)
        if self._words is not None:
            text = self._words.of(request, tokens)
            if not self._unverified:
                return Prompt(text, tokens + self.layout.overhead_tokens)
            if self.count(text) == tokens:
                self._unverified -= 1
                return Prompt(text, tokens + self.layout.overhead_tokens)
            # Words that are single alone and not in company: this tokenizer is never trusted again.
            self._words = None
        text, counted = self._fitted(request, tokens)
        return Prompt(text, counted + self.layout.overhead_tokens)

    def _single(self, words: list[str]) -> list[str]:
        """Those of ``words`` that are one token at the start of a text and after a space, found by halving: a group
        passes as a whole when it has as many tokens as words (none can have fewer than one).
        """
        text = " ".join(word for word in words for _ in range(_REPEATS))
        if self.count(text) == _REPEATS * len(words):
            return [word for word in words if self.count(word) == 1]
        if len(words) < 2:
            return []
        middle = len(words) // 2
        return self._single(words[:middle]) + self._single(words[middle:])

    def _fitted(self, request: Request, tokens: int) -> tuple[str, int]:
        """The text cut so that it counts ``tokens``: bisection over its characters. A longer text has more tokens but
        for rare merges at the cut, so a nearest cut always exists.
        """
        reach = max(2, round(tokens * self._cut.ratio * 1.5) + 8)
        text = self._cut.of(request, reach)
        spent = 1
        while self.count(text) < tokens and spent < _ENCODINGS_MOST:
            reach *= 2
            text = self._cut.of(request, reach)
            spent += 1
        low, high = 1, len(text)
        best, best_count = text, self.count(text)
        while low <= high and spent < _ENCODINGS_MOST and best_count != tokens:
            middle = (low + high) // 2
            piece = _ended(text[:middle])
            counted = self.count(piece)
            spent += 1
            if abs(counted - tokens) < abs(best_count - tokens):
                best, best_count = piece, counted
            if counted < tokens:
                low = middle + 1
            else:
                high = middle - 1
        return best, best_count


class _CharacterTexts:
    """Texts of a wanted number of characters; a prefix block always has the same text, whatever is learnt meanwhile."""

    def __init__(self, layout: Layout, seed: int, ratio: float | None, words: Sequence[str]) -> None:
        self.layout = layout
        self._pool = WordPool(words, seed=seed)
        self.ratio = self._pool.characters_per_word if ratio is None else ratio
        self._block_ratio = self.ratio

    def of(self, request: Request, characters: int) -> str:
        """The first ``characters`` of the request's text."""
        shared = self._shared(request)
        text = "".join(self._piece(segment, round(segment.tokens * self._block_ratio)) for segment in shared)
        if len(text) < characters:
            rest = self.layout.content_tokens(request) - sum(segment.tokens for segment in shared)
            text += self._piece(self.layout.own(request, max(1, rest)), characters - len(text))
        return _ended(text[:characters])

    def _shared(self, request: Request) -> list[Segment]:
        return self.layout.shared(request) if request.prefix_blocks else []

    def _piece(self, segment: Segment, characters: int) -> str:
        # Nearly always enough at once: texts differ in the length of their words.
        words = max(1, round(characters / self._pool.characters_per_word * _MORE_WORDS)) + 1
        text = self._pool.text(segment.name, words)
        while len(text) + 1 < characters:
            words += max(1, round((characters - len(text)) / self._pool.characters_per_word))
            text = self._pool.text(segment.name, words)
        return (text + " ")[:characters]


def _ended(text: str) -> str:
    """``text`` with a letter in place of a space at its end, which a chat template would trim and so not count."""
    return f"{text[:-1]}s" if text.endswith(" ") else text
