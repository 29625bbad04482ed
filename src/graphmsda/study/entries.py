"""Numbers with what is known of them, in rows and tables, for any format to write."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from graphmsda.study.paper import Figure

ON = "x"  # of a loss term in an ablation; formats put their own sign in its place


@dataclass(frozen=True)
class Entry:
    """One number of a table: fractions or seconds.

    Attributes:
        values: One for each seed or repeat.
        asked: How many there should be.
        paper: What the paper has there.
        best: Whether it is the best of its column.
        chosen: Whether, among sources, this one is the choice of single best.
    """

    values: tuple[float, ...] = ()
    asked: int = 0
    paper: Figure | None = None
    best: bool = False
    chosen: bool = False

    @property
    def mean(self) -> float | None:
        """Mean, None where there is nothing yet."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation, None of a single value."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def complete(self) -> bool:
        """Whether all values asked for are there."""
        return bool(self.values) and len(self.values) == self.asked


@dataclass(frozen=True)
class Line:
    """A row of a table: what it is called, and its numbers by column; one `chosen` among others is never the best."""

    labels: tuple[str, ...]
    entries: Mapping[str, Entry]
    chosen: bool = False


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: What it shows.
        heads: Heads of the columns that name a row; the first groups rows where it is called standard.
        columns: Heads of the columns of numbers.
        lines: The rows.
        notes: Sentences below.
        seconds: Whether numbers are seconds, of which the least is best, rather than fractions shown in percent.
        apart: Columns set apart from the others; nothing in them counts as best.
        plain: Columns of numbers that are neither fractions nor seconds, shown as they are.
        least: Columns whose least number is the best.
    """

    title: str
    heads: tuple[str, ...]
    columns: tuple[str, ...]
    lines: Sequence[Line]
    notes: Sequence[str] = field(default_factory=tuple)
    seconds: bool = False
    apart: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    least: tuple[str, ...] = ()


def mark_best(table: Table) -> Table:
    """Return the table with the best number of each column marked, where there are several."""
    best: dict[str, float] = {}
    for column in (each for each in table.columns if each not in table.apart):
        entries = [line.entries.get(column) for line in table.lines if not line.chosen]
        means = [round(entry.mean, 6) for entry in entries if entry and entry.mean is not None]
        if len(means) > 1:
            best[column] = min(means) if table.seconds or column in table.least else max(means)

    def is_best(line: Line, column: str) -> bool:
        mean = line.entries[column].mean
        return not line.chosen and mean is not None and round(mean, 6) == best.get(column)

    lines = [
        replace(line, entries={column: replace(e, best=is_best(line, column)) for column, e in line.entries.items()})
        for line in table.lines
    ]
    return replace(table, lines=lines)
