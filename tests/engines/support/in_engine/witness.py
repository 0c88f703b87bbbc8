"""What the engine's own HTTP server saw of each request: an ASGI middleware that writes one JSON line a request.

Loaded inside the engine's process (``--middleware witness.Witness``), so it shares nothing with lmperf: no code, no
parser, no clock but the host's monotonic one. It is what the client's trace is judged against. It writes to the file
that ``ENGINE_WITNESS`` names:

    path, tenant (the header), model, max_tokens, ignore_eos, received_ns, first_sent_ns, last_sent_ns (of chunks with
    output; monotonic), chunk_tokens (ids in each), usage (the engine's own), status
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class Witness:
    def __init__(self, app: App) -> None:
        self._app = app
        self._file = Path(os.environ["ENGINE_WITNESS"])

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(("/v1/chat/", "/v1/completions")):
            await self._app(scope, receive, send)
            return
        seen = Sighting(scope)

        async def watched_receive() -> Message:
            message = await receive()
            seen.received(message)
            return message

        async def watched_send(message: Message) -> None:
            # Stamped before the bytes leave: no client can honestly have them earlier.
            seen.sending(message, time.monotonic_ns())
            if seen.complete:
                # Written before the client can know that it has all of its answer, so that a test never looks too early.
                self._write(seen)
            await send(message)

        try:
            await self._app(scope, watched_receive, watched_send)
        finally:
            self._write(seen)

    def _write(self, seen: Sighting) -> None:
        if not seen.written:
            seen.written = True
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(seen.line()) + "\n")


class Sighting:
    """One request and its answer, from the bytes that pass."""

    def __init__(self, scope: Message) -> None:
        headers = {name.decode().lower(): value.decode() for name, value in scope["headers"]}
        self._path = scope["path"]
        self._tenant = headers.get("x-lmperf-tenant")
        self._received_ns = time.monotonic_ns()
        self._request = b""
        self._rest = b""
        self._status: int | None = None
        self._usage: dict[str, Any] | None = None
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self._chunk_tokens: list[int] = []
        self.complete = False
        self.written = False

    def received(self, message: Message) -> None:
        self._request += message.get("body", b"")

    def sending(self, message: Message, now_ns: int) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            return
        self.complete = not message.get("more_body", False) or b"data: [DONE]" in message.get("body", b"")
        *events, self._rest = (self._rest + message.get("body", b"")).split(b"\n\n")
        for event in events:
            data = event.removeprefix(b"data: ")
            if data.startswith(b"{"):
                self._event(json.loads(data), now_ns)

    def _event(self, chunk: dict[str, Any], now_ns: int) -> None:
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk.get("choices", ()):
            ids = choice.get("token_ids") or []
            text = choice.get("text") or choice.get("delta", {}).get("content")
            if ids or text:
                self._first_ns = self._first_ns or now_ns
                self._last_ns = now_ns
                self._chunk_tokens.append(len(ids))

    def line(self) -> dict[str, Any]:
        body = json.loads(self._request or b"{}")
        return {
            "path": self._path,
            "tenant": self._tenant,
            "model": body.get("model"),
            "max_tokens": body.get("max_tokens"),
            "ignore_eos": body.get("ignore_eos"),
            "received_ns": self._received_ns,
            "first_sent_ns": self._first_ns,
            "last_sent_ns": self._last_ns,
            "chunk_tokens": self._chunk_tokens,
            "usage": self._usage,
            "status": self._status,
        }
