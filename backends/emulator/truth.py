"""The truth file: when the server really received each request and handed each token to the socket.

JSON Lines, one a request, in order of their ends. Times are ns of the host's monotonic clock (``time.monotonic_ns``),
which all processes of a host share: a client's own stamps can be held against them. ``planned_ns`` beside
``token_ns`` is when the model says that the token existed; the difference is the server's lateness.
"""

from __future__ import annotations

from io import FileIO
from pathlib import Path

import msgspec

from backends.emulator.engine import Generation


class TruthRecord(msgspec.Struct, frozen=True, kw_only=True):
    """``response_id``: the id in the answer. ``client_id``: the request's ``X-Request-Id``, if any. ``finished``:
    False when the client left first.
    """

    response_id: str
    client_id: str | None
    tenant: str
    prompt_tokens: int
    output_tokens: int
    finished: bool
    received_ns: int
    first_token_ns: int | None
    last_token_ns: int | None
    token_ns: list[int]
    planned_ns: list[int]
    preemptions: int


class TruthWriter:
    """Appends records; each is in the file when ``write`` returns."""

    def __init__(self, path: Path) -> None:
        self._file = FileIO(path, "w")

    def write(
        self, generation: Generation, *, response_id: str, client_id: str | None, tenant: str, finished: bool
    ) -> None:
        token_ns = generation.token_ns.tolist() if generation.token_ns is not None else []
        record = TruthRecord(
            response_id=response_id,
            client_id=client_id,
            tenant=tenant,
            prompt_tokens=generation.request.prompt_tokens,
            output_tokens=generation.emitted,
            finished=finished,
            received_ns=generation.received_ns,
            first_token_ns=token_ns[0] if token_ns else None,
            last_token_ns=token_ns[-1] if token_ns else None,
            token_ns=token_ns,
            planned_ns=generation.planned_ns.tolist() if generation.planned_ns is not None else [],
            preemptions=generation.preemptions,
        )
        line = memoryview(msgspec.json.encode(record) + b"\n")
        while line:
            line = line[self._file.write(line) :]

    def close(self) -> None:
        self._file.close()


def read_truth(path: Path) -> list[TruthRecord]:
    """All records of a truth file."""
    decoder = msgspec.json.Decoder(TruthRecord)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]
