"""Prompts of an exact token length, unique to each request except where ``prefix_blocks`` says that text is shared.

A prompt is a row of segments, each the first n tokens of an endless text that follows from a 64-bit *name*: one segment
for every prefix block (equal names, equal text), then the request's own. A text opens with its name, spelt in tokens,
and goes on with a slice of a pool made once. So building costs a few slices, and no two prompts start alike by
accident: a prefix cache hashes blocks in chains, so a first block that differs makes all later ones differ.

The last tokens of a session's turn, too few to fill a block, take the text of the block that the next turn will name:
a conversation grows, letter by letter.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from loadgen.workload.blocks import BLOCK_TOKENS, block_names, key_of, mix, session_key
from loadgen.workload.vocabulary import COMMON_WORDS
from scheduler.request import Request

POOL_TOKENS = 1 << 16
_NAME_BITS = 64
_NAME_WORDS_MOST = 1 << 12
_KEPT_PREFIXES = 64


class Prompt(NamedTuple):
    """``content``: the text. ``tokens``: the prompt tokens that the server is expected to count, template included."""

    content: str
    tokens: int


class PromptBuilder(Protocol):
    """Builds the prompt of a request; the same request gives the same prompt."""

    def build(self, request: Request) -> Prompt: ...


class Segment(NamedTuple):
    name: int
    tokens: int


class Layout:
    """Cuts prompts into segments. ``overhead_tokens``: what the server's template adds around the content, the last
    ``behind_tokens`` of them behind it; those in front are the beginning of the first block. So blocks are shared where
    ``prefix_blocks`` says, but for one that the content's end cuts short: what stands behind it there is not the text of a
    longer prompt.
    """

    def __init__(
        self, *, seed: int, block_tokens: int = BLOCK_TOKENS, overhead_tokens: int = 0, behind_tokens: int = 0
    ) -> None:
        self.block_tokens = block_tokens
        self.overhead_tokens = overhead_tokens
        self._front_tokens = overhead_tokens - behind_tokens
        self._seed = seed
        self._request_key = key_of(seed, "request")
        self._block_key = key_of(seed, "block")

    def content_tokens(self, request: Request) -> int:
        """Tokens that the content must have; at least one, since servers refuse an empty prompt."""
        return max(1, request.prompt_tokens - self.overhead_tokens)

    def shared(self, request: Request) -> list[Segment]:
        """The segments of the request's prefix blocks."""
        size = self.block_tokens
        left = self.content_tokens(request)
        segments = []
        skipped = self._front_tokens
        for block in request.prefix_blocks:
            tokens = min(left, size - min(size, skipped))
            skipped = max(0, skipped - size)
            if tokens:
                segments.append(Segment(mix((block ^ self._block_key) & ((1 << 64) - 1)), tokens))
                left -= tokens
        return segments

    def own(self, request: Request, tokens: int) -> Segment:
        """The last ``tokens`` tokens: the request's alone, or the start of a session's next block."""
        if request.session_id is not None and request.prefix_blocks and tokens < self.block_tokens:
            first = len(request.prefix_blocks)
            block = block_names(session_key(self._seed, request.session_id), first, first + 1)[0]
            return Segment(mix(block ^ self._block_key), tokens)
        return Segment(mix(request.id ^ self._request_key), tokens)


class WordPool:
    """Texts of words separated by one space, each word a unit; :meth:`text` is described in the module docstring."""

    def __init__(self, words: Sequence[str], *, seed: int, size: int = POOL_TOKENS) -> None:
        if len(set(words)) < 2:
            raise ValueError(f"a pool of {len(set(words))} words cannot tell prompts apart; two or more would be right")
        words = list(dict.fromkeys(words))
        self._size = size
        order = np.random.default_rng([seed, len(words)]).integers(0, len(words), size=size).tolist()
        # Twice round, so that a slice from any place is one piece.
        picked = [words[i] for i in order] * 2
        self._text = " ".join(picked)
        lengths = np.fromiter((len(word) + 1 for word in picked), dtype=np.int64, count=len(picked))
        self._starts = array("q", np.concatenate([[0], np.cumsum(lengths)]).tolist())
        self._bits = min(len(words), _NAME_WORDS_MOST).bit_length() - 1
        self._digits = [word + " " for word in words[: 1 << self._bits]]
        self._name_words = -(-_NAME_BITS // self._bits)
        self.characters_per_word = self._starts[-1] / len(picked)

    def text(self, name: int, count: int) -> str:
        """The first ``count`` (>= 1) words of the text called ``name``."""
        digits, bits, mask = self._digits, self._bits, (1 << self._bits) - 1
        spelt = min(count, self._name_words)
        parts = [digits[(name >> shift) & mask] for shift in range(0, spelt * bits, bits)]
        rest = count - spelt
        first = name % self._size
        starts, text = self._starts, self._text
        while rest > 0:
            some = min(rest, self._size)
            parts.append(text[starts[first] : starts[first + some]])
            rest -= some
        return "".join(parts)[:-1]


class WordTexts:
    """The texts of requests over one pool, a word a token. The last few shared prefixes are kept: a long system prompt
    is put together once, not for every request.
    """

    def __init__(self, layout: Layout, pool: WordPool) -> None:
        self._layout = layout
        self._pool = pool
        self._kept: OrderedDict[tuple[int, ...], tuple[str, int]] = OrderedDict()

    def of(self, request: Request, tokens: int) -> str:
        """The text of ``request`` with ``tokens`` words."""
        if not request.prefix_blocks:
            return self._pool.text(*self._layout.own(request, tokens))
        shared, shared_tokens = self._prefix(request, tokens)
        if shared_tokens == tokens:
            return shared
        own = self._pool.text(*self._layout.own(request, tokens - shared_tokens))
        return f"{shared} {own}" if shared else own

    def _prefix(self, request: Request, tokens: int) -> tuple[str, int]:
        kept = self._kept.get(request.prefix_blocks)
        if kept is not None and kept[1] < tokens:
            self._kept.move_to_end(request.prefix_blocks)
            return kept
        segments = self._layout.shared(request)
        text = " ".join([self._pool.text(name, count) for name, count in segments])
        prefix = text, sum(segment.tokens for segment in segments)
        if prefix[1] < tokens:
            # Only a prefix that this prompt's end did not cut is everybody's.
            self._kept[request.prefix_blocks] = prefix
            if len(self._kept) > _KEPT_PREFIXES:
                self._kept.popitem(last=False)
        return prefix


class WordPrompts:
    """For a server that counts one token a whitespace-separated word, such as the embedded one."""

    def __init__(
        self,
        *,
        seed: int = 0,
        block_tokens: int = BLOCK_TOKENS,
        overhead_tokens: int = 0,
        behind_tokens: int = 0,
        words: Sequence[str] = COMMON_WORDS,
    ) -> None:
        self._layout = Layout(
            seed=seed, block_tokens=block_tokens, overhead_tokens=overhead_tokens, behind_tokens=behind_tokens
        )
        self._texts = WordTexts(self._layout, WordPool(words, seed=seed))

    def build(self, request: Request) -> Prompt:
        content = self._layout.content_tokens(request)
        return Prompt(self._texts.of(request, content), content + self._layout.overhead_tokens)
