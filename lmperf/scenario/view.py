"""A scenario's raw data as the checks see it.

Checks of more than one key run whatever the fields look like, so that a scenario with a negative rate *and* a missing
SLO target is told both at once. Each part is validated on its own; a rule speaks only where the parts that it reads are
sound, since what is wrong inside them is reported already.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError

from lmperf.scenario.base import Part
from lmperf.scenario.document import Document, lookup
from lmperf.scenario.faults import Fault, Path
from lmperf.scenario.known import Known

P = TypeVar("P", bound=Part)


class View:
    """A document as the checks see it: sound parts, given keys, tenants."""

    def __init__(self, document: Document, known: Known, *, traffic: bool) -> None:
        self.document = document
        self.known = known
        self.traffic = traffic

    def fault(self, path: Path, problem: str, remedy: str = "") -> Fault:
        return self.document.fault(path, problem, remedy)

    def part(self, path: Path, kind: type[P]) -> P | None:
        """The part at ``path``, or None when it is absent or not sound in itself."""
        raw = lookup(self.document.data, path)
        if not isinstance(raw, dict):
            return None
        try:
            return kind.model_validate(raw)
        except ValidationError:
            return None

    def given(self, path: Path) -> set[str]:
        """The keys at ``path`` that hold something."""
        raw = lookup(self.document.data, path)
        return {key for key, value in raw.items() if value is not None} if isinstance(raw, dict) else set()

    def value(self, path: Path) -> object:
        return lookup(self.document.data, path)

    def number(self, path: Path) -> float | None:
        """The number at ``path``, if there is one."""
        value = self.value(path)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def groups(self) -> list[str]:
        """The names under ``tenants``, as they are written."""
        raw = self.value(("tenants",))
        return list(raw) if isinstance(raw, dict) else []

    def count(self, group: str) -> int:
        count = self.value(("tenants", group, "count"))
        return count if isinstance(count, int) and not isinstance(count, bool) and count >= 1 else 1

    @property
    def traced(self) -> frozenset[str]:
        """The groups whose requests come from the trace: those that name no arrivals of their own."""
        if self.value(("trace",)) is None:
            return frozenset()
        own = {"rate", "share", "users"}
        return frozenset(g for g in self.groups if not own & self.given(("tenants", g)) and self._process(g) == "trace")

    def _process(self, group: str) -> object:
        arrivals = self.value(("tenants", group, "arrivals"))
        return arrivals.get("process", "trace") if isinstance(arrivals, dict) else "trace"


def tenant_names(group: str, count: int) -> list[str]:
    """The tenants that one entry of the scenario makes: itself, or ``group-1`` to ``group-N``, padded with zeros."""
    if count == 1:
        return [group]
    width = len(str(count))
    return [f"{group}-{number:0{width}d}" for number in range(1, count + 1)]


def tenant_groups(view: View) -> dict[str, str]:
    """From every name that may stand for tenants (a group, or one tenant of it) to its group."""
    names = {group: group for group in view.groups}
    for group in view.groups:
        names.update(dict.fromkeys(tenant_names(group, view.count(group)), group))
    return names
