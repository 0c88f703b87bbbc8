"""Server-sent events: bytes in any segmentation in, the data of whole events out. No I/O.

The grammar is the WHATWG HTML standard's, "Interpreting an event stream": lines end in LF, CR or CRLF; an empty line
dispatches; ``data`` lines of one event are joined with LF; one space after the colon is dropped; lines that begin
with a colon are comments. Two deviations, both for servers of language models: the event's name is not kept, since an
error is recognised by its payload, and :meth:`SseDecoder.close` gives out an event whose closing empty line never
came.
"""

from __future__ import annotations

_BOM = b"\xef\xbb\xbf"
_LF, _CR = 0x0A, 0x0D
_OVERHEAD = 64  # an object for every piece held: many empty ones are not free


class SseOverflowError(ValueError):
    """One event is larger than the decoder may hold."""


class SseDecoder:
    """``max_event_bytes`` bounds what is held between two events, so memory does not grow with the answer.

    Invariant: ``_clean`` is True exactly when nothing is held and a line begins, which is what lets a segment made of
    whole ``data: `` events, nearly all there are, be taken apart without looking at its lines.
    """

    __slots__ = ("_clean", "_data", "_data_size", "_first_line", "_limit", "_partial", "_partial_size", "_skip_lf")

    def __init__(self, max_event_bytes: int = 16 << 20) -> None:
        self._limit = max_event_bytes
        self._clean = False  # the first line may begin with a byte order mark
        self._first_line = True
        self._skip_lf = False
        self._partial: list[bytes] = []
        self._partial_size = 0
        self._data: list[bytes] = []
        self._data_size = 0

    @property
    def between_events(self) -> bool:
        """True when nothing is held: the next byte begins a line of a new event."""
        return self._clean

    def feed(self, segment: bytes) -> list[bytes]:
        """The data of every event that ``segment`` completes. SseOverflowError when one event grows past the bound."""
        # A byte is looked for by its number: several times cheaper than as a one-byte string.
        if self._clean and segment.endswith(b"\n\n") and segment.startswith(b"data: ") and _CR not in segment:
            body = segment[6:-2]
            if _LF not in body:
                return [body]
            parts = body.split(b"\n\ndata: ")
            if _LF not in b"".join(parts):
                return parts
        return self._feed_lines(segment)

    def close(self) -> list[bytes]:
        """The event that was still open when the stream ended, if any."""
        events: list[bytes] = []
        if self._partial:
            self._line(b"".join(self._partial), events)
            self._partial.clear()
        self._line(b"", events)
        return events

    def _feed_lines(self, segment: bytes) -> list[bytes]:
        events: list[bytes] = []
        if self._skip_lf and segment:
            self._skip_lf = False
            if segment[0] == _LF:
                segment = segment[1:]
        if not segment:
            return events
        lines = segment.splitlines()
        rest = b"" if segment[-1] in b"\r\n" else lines.pop()
        for line in lines:
            if self._partial:
                self._partial.append(line)
                line = b"".join(self._partial)  # noqa: PLW2901 (the line is whole only together with what was held)
                self._partial.clear()
                self._partial_size = 0
            self._line(line, events)
        if rest:
            self._partial.append(rest)
            self._partial_size += len(rest) + _OVERHEAD
            self._check_size()
        self._skip_lf = segment[-1] == _CR
        self._clean = not (self._skip_lf or self._partial or self._data or self._first_line)
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
                self._data_size = 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._data_size += len(value) + _OVERHEAD
            self._check_size()

    def _check_size(self) -> None:
        if self._data_size + self._partial_size > self._limit:
            raise SseOverflowError(f"one event is larger than {self._limit} bytes")
