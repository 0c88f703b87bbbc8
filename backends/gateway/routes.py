"""Which requests wait in the queue: all that may make a server work, in whatever API.

* GET, HEAD, OPTIONS and DELETE pass: of all known servers one generates there, at one path.
* Every other request is queued, also one that nobody knows: a path that a new server version adds must not be a way around
  the policy. The price of a mistake is that a harmless request waits for its turn.
* A few POSTs are known to generate nothing (tokenizing, counting, cancelling) and pass.
* A batch works on after its answer, where no queue can see it: refused.

The gateway's own paths hide an upstream's of the same name in every spelling; SGLang generates a token at ``/health`` too.

A path is judged as a server may read it that takes ``//``, ``/./``, ``/../`` and a last slash out, and where the judgement
hangs on the path it goes upstream in just that spelling.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from backends.gateway.dialects.dialect import Dialect
from backends.gateway.dialects.messages import MESSAGES
from backends.gateway.dialects.openai import CHAT, COMPLETIONS
from backends.gateway.dialects.other import OTHER
from backends.gateway.dialects.responses import RESPONSES
from backends.gateway.refusal import Reason, Refusal

_PASSING_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})
_WORKING_GETS = frozenset({"/health_generate"})
"""SGLang, TensorRT-LLM: one token."""
_OWN = frozenset({"/health", "/ready", "/metrics", "/admin"})

# Some clients leave /v1 out, and some servers have a path under both names; so these stand without it.
_DIALECTS = {
    dialect.path.removeprefix("/v1"): dialect
    for dialect in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
    if dialect.path is not None
}
_PASSING = frozenset(
    {
        "/tokenize", "/detokenize", "/apply-template", "/chat_tokenize", "/ping",
        "/messages/count_tokens", "/responses/input_tokens",
        *(f"{path}/{step}" for path in _DIALECTS for step in ("render", "derender")),
    }
)  # fmt: skip
_CANCEL = re.compile(r"/responses/[\w-]+/cancel", re.ASCII)
_BATCHES = frozenset({"/batches", "/messages/batches"})


@dataclass(frozen=True, slots=True)
class Route:
    """``dialect`` None: outside the queue. ``path``: how it goes upstream; None: as it came."""

    dialect: Dialect | None
    path: str | None


def route_of(method: str, path: str) -> Route:
    """``path``: decoded, without its query. Raises Refusal for what the gateway does not let through."""
    path = posixpath.normpath(f"/{path.strip('/')}")
    if path in _OWN or path.startswith("/admin/"):
        raise Refusal(404, Reason.NO_ROUTE, "no such path")
    if method in _PASSING_METHODS and path not in _WORKING_GETS:
        return Route(None, None)
    if method == "HEAD":  # its answer announces a body that never comes, and the slot would wait for it
        raise Refusal(405, Reason.NO_ROUTE, "this path generates; ask with GET")
    bare = path.removeprefix("/v1")
    dialect = _DIALECTS.get(bare)
    if dialect is not None:
        return Route(dialect, dialect.path)
    if bare in _PASSING or _CANCEL.fullmatch(bare):
        return Route(None, path)
    if bare in _BATCHES:
        raise Refusal(
            400,
            Reason.BAD_REQUEST,
            "a batch is worked on outside the queue, after its answer; send its requests one by one",
        )
    return Route(OTHER, None)
