"""What the embedded server will answer: how many tokens, which words, why it ends. All known before the first token.

The answer is a function of (server seed, prompt, the request's own seed): the same request gives the same answer. Its
length is ``max_tokens`` when the client forbids an early end (``ignore_eos``, or ``min_tokens`` = ``max_tokens``),
else a lognormal draw with mean m and coefficient of variation v, clipped to [min_tokens, max_tokens]: sigma^2 = ln(1
+ v^2), mu = ln m - sigma^2 / 2 (the moments of the lognormal distribution, solved for its parameters).
"""

from __future__ import annotations

import hashlib
import math
import random
import struct
from dataclasses import dataclass
from statistics import NormalDist

from backends.emulator.tokenizer import FIRST_WORD_ID, VOCABULARY

_STANDARD_NORMAL = NormalDist()
_CYCLE = len(VOCABULARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLengths:
    """Where the model ends by itself: ``mean`` tokens, coefficient of variation ``cv``."""

    mean: float = 256.0
    cv: float = 0.8

    def __post_init__(self) -> None:
        if not self.mean >= 1 or not self.cv >= 0:
            raise ValueError(f"output lengths: mean must be >= 1 and cv >= 0, got {self.mean} and {self.cv}")

    def quantile(self, p: float) -> int:
        """The length at quantile ``p`` (0 < p < 1), at least 1."""
        variance = math.log1p(self.cv * self.cv)
        z = _STANDARD_NORMAL.inv_cdf(p)
        return max(1, round(math.exp(math.log(self.mean) - variance / 2 + math.sqrt(variance) * z)))


class Words:
    """The server's word order: a shuffle of the vocabulary by its seed, read in a circle from an offset."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        indices = list(range(_CYCLE))
        random.Random(seed).shuffle(indices)  # noqa: S311 (words need no secrecy, only repeatability)
        self.ids = [FIRST_WORD_ID + index for index in indices]
        self.text = [" " + VOCABULARY[index] for index in indices]
        self.encoded = [text.encode() for text in self.text]


@dataclass(slots=True, kw_only=True)
class Answer:
    """``tokens`` >= 1 words from ``offset`` on; ``pieces``: each token's visible text, only when a stop string cuts
    it.
    """

    words: Words
    offset: int
    tokens: int
    finish_reason: str
    stop_reason: str | None = None
    pieces: list[str] | None = None

    def token_id(self, index: int) -> int:
        return self.words.ids[(self.offset + index) % _CYCLE]

    def piece(self, index: int) -> str:
        """Visible text of one token, with the space before it unless it is the first."""
        if self.pieces is not None:
            return self.pieces[index]
        text = self.words.text[(self.offset + index) % _CYCLE]
        return text if index else text[1:]

    def text(self) -> str:
        return "".join(self.piece(index) for index in range(self.tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRules:
    """What a request says about its answer."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    seed: int | None = None


def prepare_answer(words: Words, lengths: OutputLengths, prompt: bytes, rules: AnswerRules) -> Answer:
    """The answer to ``prompt`` (its bytes, or those of its token ids)."""
    digest = hashlib.blake2b(prompt, digest_size=16, key=struct.pack("<qq", words.seed, rules.seed or 0)).digest()
    for_length, for_words = struct.unpack("<QQ", digest)
    tokens, finish_reason = rules.max_tokens, "length"
    if not rules.ignore_eos and rules.min_tokens < rules.max_tokens:
        drawn = max(rules.min_tokens, lengths.quantile((for_length + 0.5) / 2**64), 1)
        if drawn < rules.max_tokens:
            tokens, finish_reason = drawn, "stop"
    answer = Answer(words=words, offset=for_words % _CYCLE, tokens=tokens, finish_reason=finish_reason)
    if rules.stop:
        _cut_at_stop(answer, rules)
    return answer


def _cut_at_stop(answer: Answer, rules: AnswerRules) -> None:
    """End the answer with the token that completes a stop string; the string itself and what follows stay invisible."""
    text = ""
    ends: list[int] = []
    longest = max(map(len, rules.stop))
    for index in range(answer.tokens):
        before = len(text)
        text += answer.piece(index)
        ends.append(len(text))
        if index + 1 < rules.min_tokens:
            continue
        search_from = max(0, before - longest + 1)
        found = [(text.find(stop, search_from), stop) for stop in rules.stop if text.find(stop, search_from) >= 0]
        if found:
            cut, stop = min(found)
            starts = [0, *ends[:-1]]
            answer.pieces = [
                text[start : min(end, cut)] if start < cut else "" for start, end in zip(starts, ends, strict=True)
            ]
            answer.tokens, answer.finish_reason, answer.stop_reason = index + 1, "stop", stop
            return
