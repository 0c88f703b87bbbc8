"""A table whose figures are never cut: where a line is too short for all of them, there are several tables, and names fold.

Each of these has the names again, and as many of the figures as stand on a line.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

Cell = str | Text

_GAP = 2
"""Between two columns, and both edges together."""

_NAME, _SHORT_NAME, _LEAST_NAME = 28, 14, 8
"""How wide a name may be before it folds, so that more figures stand beside it; so that all of them do; and where one figure
has no room then."""


@dataclass(slots=True)
class FittedTable:
    """``names``: heads of the columns that say whose a line is, which may fold; ``figures``: of all others, of which ``left``
    are justified to the left; ``caption``: below the last table. To be printed by a rich console."""

    title: str | None
    names: Sequence[str]
    figures: Sequence[str]
    caption: str | None = None
    left: Collection[str] = ()
    _rows: list[tuple[Cell, ...]] = field(default_factory=list)
    _sections: list[int] = field(default_factory=list)

    def add_row(self, *cells: Cell) -> None:
        """Names, then figures."""
        if len(cells) != len(self.names) + len(self.figures):
            raise ValueError(f"{len(cells)} cells for {len(self.names)} names and {len(self.figures)} figures")
        self._rows.append(cells)

    def add_section(self) -> None:
        """What follows stands apart from what came before."""
        self._sections.append(len(self._rows))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        names = [self._width(column, head) for column, head in enumerate(self.names)]
        first = len(names)
        full = [self._width(column, head) for column, head in enumerate(self.figures, first)]
        whole = range(len(full))
        if _total([*names, *full]) <= options.max_width:
            yield self._table(names, full, whole, last=True)
            return
        # A head folds between its words, and a cell never.
        tight = [
            self._width(column, max(head.split(), key=len, default=""))
            for column, head in enumerate(self.figures, first)
        ]
        short = [min(width, _SHORT_NAME) for width in names]
        if _total([*short, *tight]) <= options.max_width:
            yield self._table(
                _squeezed(names, options.max_width - _total([0] * first + tight)), tight, whole, last=True
            )
            return
        room = 0
        for most in (_NAME, _LEAST_NAME):
            if room < max(tight, default=0) + _GAP:
                room = options.max_width - _total([min(width, most) for width in names])
        cuts = [0]
        used = 0
        for number, width in enumerate(tight):
            if number > cuts[-1] and used + width + _GAP > room:
                cuts.append(number)
                used = 0
            used += width + _GAP
        for start, end in pairwise([*cuts, len(tight)]):
            shown = range(start, end)
            widths = [tight[number] for number in shown]
            left = options.max_width - _total([0] * len(names) + widths)
            yield self._table(_squeezed(names, left), widths, shown, last=end == len(tight))

    def _width(self, column: int, head: str) -> int:
        return max(len(head), *(_length(row[column]) for row in self._rows), 1)

    def _table(self, names: Sequence[int], figures: Sequence[int], shown: range, *, last: bool) -> Table:
        table = ruled(self.title, self.caption if last else None)
        for head, width in zip(self.names, names, strict=True):
            table.add_column(head, overflow="fold", width=width)
        for number, width in zip(shown, figures, strict=True):
            head = self.figures[number]
            table.add_column(head, justify="left" if head in self.left else "right", overflow="fold", width=width)
        first = len(self.names)
        for number, row in enumerate(self._rows, 1):
            table.add_row(*row[:first], *(row[first + figure] for figure in shown))
            if number in self._sections:
                table.add_section()
        return table


def _length(cell: Cell) -> int:
    return (cell if isinstance(cell, Text) else Text(cell)).cell_len


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * len(widths)


def _squeezed(widths: Sequence[int], room: int) -> list[int]:
    """The widest made narrower until all are in ``room``, or as narrow as a name may be."""
    found = list(widths)
    while sum(found) > room and max(found) > _LEAST_NAME:
        found[found.index(max(found))] -= 1
    return found


def ruled(title: str | None = None, caption: str | None = None) -> Table:
    """An empty table as every command prints them: a rule under the head, no frame."""
    return Table(
        title=title,
        caption=caption,
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        title_justify="left",
        caption_justify="left",
    )
