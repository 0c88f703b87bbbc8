"""Work in small steps, so that an event loop need not wait for the whole of it."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""A generator that yields after each step; what it returns is the result."""


def finished(steps: Steps[T]) -> T:
    """Do all that is left, now; the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
