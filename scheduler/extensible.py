"""A mark for classes that others extend: also where these are compiled (``lmperf.compiled``), a plain class may.

Inside an engine's Python (:mod:`backends.vllm_policy`) nothing is compiled, and mypy_extensions need not be there.
"""

from __future__ import annotations

try:
    from mypy_extensions import mypyc_attr
except ImportError:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

    def mypyc_attr(*_attrs: str, **_kwattrs: object) -> Callable[[T], T]:
        """Marks nothing."""
        return lambda marked: marked


__all__ = ["mypyc_attr"]
