"""Which public format a file has, told from its content and never from its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from loadgen.trace.errors import TraceError
from loadgen.trace.public import azure, burstgpt, capture, hashed, sharegpt, vllm_bench
from loadgen.trace.public.text import head_of
from loadgen.trace.rows import TraceRows


class Format(NamedTuple):
    """``matches(head, first)``: the beginning of the file as text, and its first line as a JSON object ({} if it is
    none).
    """

    name: str
    title: str
    matches: Callable[[str, dict[str, Any]], bool]
    read: Callable[[Path], TraceRows]


FORMATS: tuple[Format, ...] = (
    Format(azure.NAME, azure.TITLE, lambda head, _: azure.matches(head), azure.read),
    Format(burstgpt.NAME, burstgpt.TITLE, lambda head, _: burstgpt.matches(head), burstgpt.read),
    Format(sharegpt.NAME, sharegpt.TITLE, lambda head, _: sharegpt.matches(head), sharegpt.read),
    Format(hashed.BAILIAN, hashed.BAILIAN_TITLE, lambda _, first: hashed.matches_bailian(first), hashed.read_bailian),
    Format(
        hashed.MOONCAKE, hashed.MOONCAKE_TITLE, lambda _, first: hashed.matches_mooncake(first), hashed.read_mooncake
    ),
    Format(capture.NAME, capture.TITLE, lambda _, first: capture.matches(first), capture.read),
    Format(vllm_bench.NAME, vllm_bench.TITLE, lambda head, _: vllm_bench.matches(head), vllm_bench.read),
)


def detect(path: Path) -> Format:
    """The format of the file at ``path``. Raises TraceError that lists the known ones."""
    if not path.is_file():
        raise TraceError(path, "no such file")
    head = head_of(path)
    first = _first_object(head)
    for form in FORMATS:
        if form.matches(head, first):
            return form
    known = "\n".join(f"  {form.name}: {form.title}" for form in FORMATS)
    begins = head.partition("\n")[0][:80]
    raise TraceError(
        path,
        f"no known trace format (it begins {begins!r}). Known:\n{known}\n"
        "Any other CSV or JSONL log: lmperf trace import --map arrival=COLUMN,tenant=COLUMN,prompt_tokens=COLUMN,...",
    )


def read_public(path: Path | str, name: str | None = None) -> TraceRows:
    """The rows of a public trace; ``name`` forces a format. Raises TraceError, and ValueError for an unknown name."""
    file = Path(path)
    if name is None:
        return detect(file).read(file)
    for form in FORMATS:
        if form.name == name:
            return form.read(file)
    raise ValueError(f"unknown trace format {name!r}; known: {', '.join(form.name for form in FORMATS)}")


def _first_object(head: str) -> dict[str, Any]:
    try:
        first = msgspec.json.decode(head.lstrip().partition("\n")[0])
    except msgspec.DecodeError:
        return {}
    return first if isinstance(first, dict) else {}
