"""Messages in batches over a stream socket: a length in 4 bytes (big endian), then a msgpack list of messages.

What is sent in one turn of the event loop goes in one write, at the turn's end or at :meth:`Link.flush`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec

Message = TypeVar("Message")

_HEAD = struct.Struct(">I")
_encode = msgspec.msgpack.Encoder().encode


class Link(asyncio.Protocol, Generic[Message]):
    """One end. ``kind``: the type of what comes in. ``on_lost`` is called once, when the socket is closed, by either end;
    ``closed`` is done then."""

    def __init__(
        self,
        kind: Any,  # noqa: ANN401 (a union is no type)
        on_messages: Callable[[Sequence[Message]], object],
        on_lost: Callable[[], object],
    ) -> None:
        self._decode = msgspec.msgpack.Decoder(list[kind]).decode
        self._on_messages = on_messages
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._batch: list[object] = []
        self.closed: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def over(
        cls,
        sock: socket.socket,
        kind: Any,  # noqa: ANN401 (see above)
        on_messages: Callable[[Sequence[Message]], object],
        on_lost: Callable[[], object],
    ) -> Link[Message]:
        """A link over a connected Unix socket, which becomes the link's."""
        loop = asyncio.get_running_loop()
        _, link = await loop.create_unix_connection(lambda: cls(kind, on_messages, on_lost), sock=sock)
        return link

    def send(self, message: object) -> None:
        """Add to the batch of this turn; after the other end is gone nothing happens."""
        if self._transport is None:
            return
        self._batch.append(message)
        if len(self._batch) == 1:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the batch now."""
        batch, self._batch = self._batch, []
        if batch and self._transport is not None:
            data = _encode(batch)
            self._transport.write(_HEAD.pack(len(data)) + data)

    def close(self) -> None:
        """Write what is left and close; the other end sees the end of the stream."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # uvloop keeps a write until the end of its turn unless the buffer has no room.
        self._transport.set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        self._received += data
        received, start, end = self._received, 0, len(self._received)
        messages: list[Message] = []
        while end - start >= _HEAD.size:
            (size,) = _HEAD.unpack_from(received, start)
            body = start + _HEAD.size
            if end - body < size:
                break
            with memoryview(received) as view:
                messages += self._decode(view[body : body + size])
            start = body + size
        if start:
            del received[:start]
        if messages:
            self._on_messages(messages)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the protocol's signature)
        self._transport = None
        self.closed.set_result(None)
        self._on_lost()
