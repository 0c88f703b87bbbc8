"""A count of tokens in an answer, left as the server wrote it until it is asked for.

A field of this type takes any JSON, so that nonsense in it costs the count and not the answer that it came with.
"""

from __future__ import annotations

import msgspec

from tenants.measures.counts import believed

ToldCount = msgspec.Raw
"""The type of a field that holds a count."""

NOT_TOLD = msgspec.Raw(b"null")

_decode = msgspec.json.Decoder(int | None).decode


def is_told(field: ToldCount) -> bool:
    """True for whatever is not null, nonsense included."""
    return bytes(field) != b"null"


def count_of(field: ToldCount) -> int | None:
    """The count in tokens, None where none that can be believed is told (:mod:`tenants.measures.counts`)."""
    try:
        return believed(_decode(field))
    except ValueError:
        return None
