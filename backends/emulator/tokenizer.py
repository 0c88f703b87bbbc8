"""The embedded server's tokenizer: how text becomes token ids and back, by rules a client can predict.

* Text is split at whitespace; each word of at most 16 characters is one token, so a prompt of n words has n tokens. A
  longer word is cut into pieces of 16 characters, one token each (text without spaces must not count as one token).
* ``VOCABULARY``: 4,096 words of four letters (two syllables out of 64), ids 16 to 4,111. All generated text is made of
  these, so it decodes exactly, whitespace apart.
* Any other word has an id from its CRC-32, in [65,536, 2^30); pieces after a word's first carry bit 2^30. Such ids
  decode for as long as the server remembers the word (the last 65,536 seen); a forgotten one decodes to ``<id>``.
* The chat template puts a role marker before and an end marker after each message, and one assistant marker at the end:
  2 tokens a message and 1 more (``/tokenize`` with ``messages`` tells). Completions add nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from backends.protocol import AddedTokens

PIECE_CHARS = 16
FIRST_WORD_ID = 16
TOKENS_PER_MESSAGE = 2
TOKENS_PER_GENERATION_PROMPT = 1
TOKENS_BEFORE_CONTENT = 1

_FIRST_HASHED_ID = 1 << 16
_CONTINUES = 1 << 30
_REMEMBERED = 1 << 16
_SPECIALS = {0: "<|end|>", 1: "<|system|>", 2: "<|user|>", 3: "<|assistant|>", 4: "<|tool|>"}
_ROLE_IDS = {"system": 1, "developer": 1, "user": 2, "assistant": 3, "tool": 4, "function": 4}

_SYLLABLES = tuple(consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeio")
VOCABULARY = tuple(first + second for first in _SYLLABLES for second in _SYLLABLES)
_ID_OF_WORD = {word: FIRST_WORD_ID + index for index, word in enumerate(VOCABULARY)} | {
    text: token_id for token_id, text in _SPECIALS.items()
}


def count_tokens(text: str) -> int:
    """Tokens of ``text``; the length of ``Tokenizer.encode`` without making it."""
    words = text.split()
    if not words or max(map(len, words)) <= PIECE_CHARS:
        return len(words)
    return sum(-(-len(word) // PIECE_CHARS) for word in words)


def chat_added() -> AddedTokens:
    """What the chat template adds around the content of a single message: its role marker in front, the rest behind."""
    return AddedTokens(TOKENS_BEFORE_CONTENT, chat_overhead(1) - TOKENS_BEFORE_CONTENT)


def chat_overhead(messages: int, *, add_generation_prompt: bool = True) -> int:
    """Tokens that the chat template adds to the contents of ``messages`` messages."""
    return TOKENS_PER_MESSAGE * messages + (TOKENS_PER_GENERATION_PROMPT if add_generation_prompt else 0)


class Tokenizer:
    """Encodes and decodes; remembers words outside the vocabulary (see the module docstring)."""

    def __init__(self) -> None:
        self._remembered: dict[int, str] = {}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in text.split():
            known = _ID_OF_WORD.get(word)
            if known is not None:
                ids.append(known)
                continue
            ids.append(self._hashed(word[:PIECE_CHARS]))
            ids.extend(
                self._hashed(word[start : start + PIECE_CHARS]) | _CONTINUES
                for start in range(PIECE_CHARS, len(word), PIECE_CHARS)
            )
        return ids

    def encode_chat(self, messages: Iterable[tuple[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
        """``messages``: (role, content) pairs."""
        ids: list[int] = []
        for role, content in messages:
            ids.append(_ROLE_IDS.get(role, _ROLE_IDS["user"]))
            ids.extend(self.encode(content))
            ids.append(0)
        if add_generation_prompt:
            ids.append(_ROLE_IDS["assistant"])
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        parts: list[str] = []
        for token_id in ids:
            piece = self.piece(token_id)
            parts.append(piece if token_id & _CONTINUES or not parts else " " + piece)
        return "".join(parts)

    def piece(self, token_id: int) -> str:
        """The text of one token, without the space before it."""
        index = token_id - FIRST_WORD_ID
        if 0 <= index < len(VOCABULARY):
            return VOCABULARY[index]
        if token_id in _SPECIALS:
            return _SPECIALS[token_id]
        return self._remembered.get(token_id & ~_CONTINUES, f"<{token_id}>")

    def _hashed(self, piece: str) -> int:
        span = _CONTINUES - _FIRST_HASHED_ID
        token_id = _FIRST_HASHED_ID + zlib.crc32(piece.encode("utf-8", "surrogatepass")) % span
        # Re-inserting keeps the dict in order of last use, so that what is dropped is what was not seen for longest.
        self._remembered.pop(token_id, None)
        self._remembered[token_id] = piece
        if len(self._remembered) > _REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return token_id
