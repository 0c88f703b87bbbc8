"""Whose request is whose, in a trace that does not say: rules that give every row a tenant.

Grammar (one rule a trace)::

    rule      ::= "round_robin:" name ("," name)*            rows in turn
                | "weights:" name "=" number ("," ...)*      rows in the given shares, evenly spread, no randomness
                | "column:" column                           the value of a column names the tenant
                | column op number ":" name ["," name]       e.g. prompt_tokens >= 1000: rag, chat   (then, else)
    op        ::= ">=" | "<=" | ">" | "<" | "=="
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from loadgen.trace.rows import TraceRows

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_THRESHOLD = re.compile(r"^\s*(\w[\w .-]*?)\s*(>=|<=|==|>|<)\s*(-?[\d.]+)\s*:\s*([^,]+?)\s*(?:,\s*([^,]+?)\s*)?$")


@dataclass(frozen=True, slots=True)
class TenantRule:
    """A parsed rule; ``apply`` gives the rows their tenants."""

    text: str
    kind: str
    names: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    column: str = ""
    op: str = ""
    limit: float = 0.0

    @classmethod
    def parse(cls, text: str) -> TenantRule:
        """Raises ValueError that shows the grammar."""
        kind, _, rest = text.partition(":")
        kind, rest = kind.strip(), rest.strip()
        if kind == "round_robin" and rest:
            return cls(text, kind, names=_names(text, rest))
        if kind == "weights" and rest:
            pairs = [part.partition("=") for part in rest.split(",")]
            try:
                weights = tuple(float(value) for _, _, value in pairs)
            except ValueError as error:
                raise _bad(text) from error
            names = tuple(name.strip() for name, _, _ in pairs)
            if min(weights) <= 0 or not all(names) or len(set(names)) != len(names):
                raise _bad(text)
            return cls(text, kind, names=names, weights=weights)
        if kind == "column" and rest:
            return cls(text, kind, column=rest)
        match = _THRESHOLD.match(text)
        if match is None:
            raise _bad(text)
        column, op, limit, then, otherwise = match.groups()
        try:
            number = float(limit)
        except ValueError as error:
            raise _bad(text) from error
        return cls(text, "threshold", names=(then, otherwise or "default"), column=column, op=op, limit=number)

    def apply(self, rows: TraceRows) -> TraceRows:
        """Raises KeyError for a column that the trace lacks, ValueError (with the row) for a value that is no
        number.
        """
        n = len(rows)
        if self.kind == "round_robin":
            return rows.with_tenants(self.names, (np.arange(n) % len(self.names)).astype(np.int32))
        if self.kind == "weights":
            return rows.with_tenants(self.names, _spread(self.weights, n))
        values = rows.column(self.column)
        if self.kind == "column":
            names = tuple(dict.fromkeys(value or "default" for value in values))
            codes = {name: code for code, name in enumerate(names)}
            return rows.with_tenants(names, np.array([codes[value or "default"] for value in values], dtype=np.int32))
        compare = _OPERATORS[self.op]
        codes_ = np.empty(n, dtype=np.int32)
        for row, value in enumerate(values):
            try:
                number = float(value)
            except ValueError as error:
                raise ValueError(
                    f"tenant rule {self.text!r}: row {row + 1}, column {self.column!r} holds {value!r}, not a number"
                ) from error
            codes_[row] = 0 if compare(number, self.limit) else 1
        return rows.with_tenants(self.names, codes_)


def _names(text: str, rest: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in rest.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise _bad(text)
    return names


def _spread(weights: tuple[float, ...], n: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Row i goes to the tenant that is furthest behind its share (largest-remainder sequence): after any number of rows
    each tenant has its share within one row.
    """
    share = np.array(weights) / sum(weights)
    given = np.zeros(len(weights))
    codes = np.empty(n, dtype=np.int32)
    for row in range(n):
        code = int(np.argmax(share * (row + 1) - given))
        codes[row] = code
        given[code] += 1
    return codes


def _bad(text: str) -> ValueError:
    return ValueError(
        f"tenant rule {text!r} is not understood; write one of: round_robin:a,b | weights:a=3,b=1 | column:NAME | "
        "prompt_tokens >= 1000: rag, chat"
    )
