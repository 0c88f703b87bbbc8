"""Content encodings that a server uses although ``accept-encoding: identity`` was sent: gzip and deflate.

Output comes in pieces of bounded size, so that a small body cannot unfold into unbounded memory at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

_PIECE = 64 << 10
_AUTO_GZIP_ZLIB = zlib.MAX_WBITS | 32


class InflateError(ValueError):
    """The body is not what its content-encoding says, or the encoding is not known here."""


def inflater(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    """A decoder for one body: segment in, decoded pieces out. Raises InflateError at once for an unknown encoding."""
    if encoding not in {"gzip", "x-gzip", "deflate"}:
        raise InflateError(f"content-encoding {encoding!r} came although identity was asked for; it is not supported")
    stream = zlib.decompressobj(_AUTO_GZIP_ZLIB)
    begun = False

    def inflate(segment: bytes) -> Iterator[bytes]:
        nonlocal stream, begun
        if not begun and segment:
            begun = True
            # RFC 9110 means zlib by "deflate"; some servers send it bare. A zlib header's low nibble is always 8.
            if encoding == "deflate" and segment[0] & 0x0F != 8:
                stream = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            piece = stream.decompress(segment, _PIECE)
            while piece:
                yield piece
                piece = stream.decompress(stream.unconsumed_tail, _PIECE)
        except zlib.error as exc:
            raise InflateError(f"the body is not valid {encoding}: {exc}") from exc

    return inflate
