"""What nearly every chunk of a stream looks like, so that the next one need not be parsed. No I/O.

The chunks of one answer are the same bytes but for the new text and, where the server tells it, its token id. A server that
writes each event as one HTTP chunk sends

    SIZE CRLF "data: " before TEXT after LF LF CRLF

or the same with a number between ``between`` and ``after``. Bytes that have this form *are* such a chunk: SIZE follows from
their number; TEXT is printable ASCII without a quote or a backslash, so the JSON around it means what it meant. Whatever
has another form is parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from backends.protocol import OnTokens

TEXT_BYTES = bytes(byte for byte in range(0x20, 0x7F) if byte not in b'"\\')
"""What may stand inside a JSON string as it is, and means itself whatever stands beside it."""

_EVENT, _EVENT_END, _CRLF = b"data: ", b"\n\n", b"\r\n"
_LEAST_EVENT = len(_EVENT) + len(_EVENT_END)
_ZERO = ord("0")
_ONE_DIGIT = b"0"
_LENGTHS_KEPT = 1024
_PIECE_KEPT, _PIECES_KEPT, _FORMS_KEPT = 64, 1 << 14, 8

Taker = Callable[[bytes, int], None]
"""Takes a segment and the ns of its receipt."""

Raised = Callable[[BaseException], object]
"""Is told of what was raised by whom tokens are told to."""


@dataclass(frozen=True, slots=True)
class Template:
    """A payload around what varies in it: any text of :data:`TEXT_BYTES` after ``before`` and, with ``between``, any one
    token id after that.
    """

    before: bytes
    between: bytes | None
    after: bytes

    def fits(self, payload: bytes) -> bool:
        """False for a payload of another form; True proves nothing about what varies."""
        return payload.startswith(self.before) and payload.endswith(self.after)


def whole_event(data: bytes) -> bytes | None:
    """The event of ``data`` if that is exactly one HTTP chunk, and the event exactly one ``data: `` line; else None."""
    size, line_end, event = data.removesuffix(_CRLF).partition(_CRLF)
    if not line_end or not data.endswith(_CRLF) or size.lower() != b"%x" % len(event):
        return None
    if len(event) < _LEAST_EVENT or not event.startswith(_EVENT) or not event.endswith(_EVENT_END):
        return None
    body = payload_of(event)
    return None if b"\n" in body or b"\r" in body else event


def payload_of(event: bytes) -> bytes:
    """The payload of what :func:`whole_event` gave."""
    return event[len(_EVENT) : -len(_EVENT_END)]


def taker(
    template: Template,
    *,
    upper: bool,
    stamp: Callable[[int], object],
    count: Callable[[int], object],
    on_tokens: OnTokens | None,
    otherwise: Taker,
    raised: Raised,
) -> Taker:
    """Tells ``stamp`` and ``on_tokens`` of a segment that is exactly one HTTP chunk of ``template`` (and ``count`` that it
    has one token, if it has an id), and leaves every other segment to ``otherwise``. ``on_tokens`` None: is not told of
    them. ``upper``: sizes are written in capitals. ``raised`` is told what ``on_tokens`` raises.

    Closures over what does not change: this runs once a token. Its text is looked for among those proven before.
    """
    between = template.between or b""
    lead, tail = _EVENT + template.before, template.after + _EVENT_END + _CRLF
    around, end = len(tail), -len(tail)
    lines = _SIZE_LINES_UPPER if upper else _SIZE_LINES
    heads: dict[int, bytes] = {}  # what stands before the text, by the length of a chunk
    proven = _proven(template.between)
    counts = template.between is not None
    told = 1 if counts else None

    def head_of(length: int) -> bytes:
        line = lines.get(length) or _size_line(length, upper=upper)
        heads[length] = head = line + lead
        return head

    def proves(piece: bytes) -> bool:
        text, number = piece, _ONE_DIGIT
        if counts:
            text, _, number = piece.partition(between)
        plain = bool(
            text
            and number.isdigit()
            and (number[0] != _ZERO or len(number) == 1)
            and not text.translate(None, TEXT_BYTES)
        )
        if plain and len(piece) <= _PIECE_KEPT:
            if len(proven) >= _PIECES_KEPT:
                proven.clear()
            proven.add(piece)
        return plain

    def take(data: bytes, arrived_ns: int) -> None:
        head = heads.get(len(data)) or head_of(len(data))
        if len(data) > len(head) + around and data.startswith(head) and data.endswith(tail):
            piece = data[len(head) : end]
            if piece in proven or proves(piece):
                stamp(arrived_ns)
                if counts:
                    count(1)
                if on_tokens is None:
                    return
                try:
                    on_tokens(arrived_ns, told)
                except BaseException as exc:  # noqa: BLE001 (the answer's to raise)
                    raised(exc)
                return
        otherwise(data, arrived_ns)

    return take


def _proven(between: bytes | None) -> set[bytes]:
    """What was found to be a plain text (and a token id behind ``between``) in any stream: models repeat themselves."""
    if len(_PROVEN) >= _FORMS_KEPT:
        _PROVEN.clear()
    return _PROVEN.setdefault(between, set())


_PROVEN: dict[bytes | None, set[bytes]] = {}

_SIZE_LINES: dict[int, bytes] = {}
_SIZE_LINES_UPPER: dict[int, bytes] = {}
"""Of all streams: how a chunk begins, by its length in all."""


def _size_line(length: int, *, upper: bool) -> bytes:
    """How a chunk of ``length`` bytes in all begins; if there is none of that length, what no chunk begins with."""
    found = b"\n"
    for digits in range(1, 9):
        line = (b"%X" if upper else b"%x") % max(0, length - digits - 2 * len(_CRLF))
        if len(line) == digits:
            found = line + _CRLF
            break
    lines = _SIZE_LINES_UPPER if upper else _SIZE_LINES
    if len(lines) >= _LENGTHS_KEPT:
        lines.clear()
    lines[length] = found
    return found
