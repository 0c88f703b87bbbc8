"""Which vLLM versions the scheduler class was tried on, and the sentence for any other.

vLLM's scheduler is not a public interface: between minor versions queues are added and methods change, and a scheduler that
misses one would serve unfairly without a word. So a version is supported when the engine tests passed on it.
"""

from __future__ import annotations

import re

SUPPORTED = ((0, 32),)
"""(major, minor) of vLLM; docs/inside-vllm.md lists the same."""

_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.|[^\d.]|$)")


class UnsupportedVersionError(RuntimeError):
    """A vLLM that was not tried; the message says which were, and how to go on regardless."""


def check_version(version: str, *, allow_untested: bool) -> None:
    """``version``: vLLM's own (``0.32.0``, ``0.32.1+cpu``, ``0.32.0rc1``). Raises UnsupportedVersionError."""
    release = _RELEASE.match(version)
    if allow_untested or (release is not None and (int(release[1]), int(release[2])) in SUPPORTED):
        return
    tried = ", ".join(f"{major}.{minor}.x" for major, minor in SUPPORTED)
    raise UnsupportedVersionError(
        f"lmperf's scheduler class supports vLLM {tried}; this is vLLM {version}. Install a supported version, or put "
        "the policy in front of the server (lmperf gateway), or set allow_untested_version = true in the configuration "
        "file to try it all the same"
    )
