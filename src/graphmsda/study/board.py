"""What a person sees while a study runs: a table filling up on a terminal, a line for each cell elsewhere."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from graphmsda.study.cells import Cell, Row
from graphmsda.study.protocol import STANDARDS, TITLES
from graphmsda.study.work import Outcome

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

SCAN = 2.0  # seconds between two looks at which cells are being worked on
RUNNING = "running"


class Show(Protocol):
    """Takes what came of a cell."""

    def __call__(self, outcome: Outcome) -> None:
        """Show it."""


class Board:
    """Where all cells of a study stand.

    Args:
        cells: All that were asked for.
        rows: Results so far, by path.
        jobs: How many are worked on at a time.
        find_running: Returns the paths of cells that anybody works on.
    """

    def __init__(
        self, cells: Sequence[Cell], rows: dict[str, Row], jobs: int = 1, find_running: Callable[[], set[str]] = set
    ) -> None:
        self.cells, self.rows, self.jobs = cells, dict(rows), jobs
        self.failed: dict[str, str] = {}
        self.spent: list[float] = []
        self._find_running, self._running, self._looked = find_running, set[str](), -SCAN

    def take(self, outcome: Outcome) -> None:
        """Note what came of a cell."""
        if outcome.state == "done" and outcome.row is not None:
            self.rows[outcome.cell.path] = outcome.row
            self.failed.pop(outcome.cell.path, None)
        elif outcome.state == "failed":
            self.failed[outcome.cell.path] = outcome.error or "it did not say why"
        if outcome.seconds:
            self.spent.append(outcome.seconds)

    @property
    def left(self) -> int:
        """How many cells are neither finished nor failed."""
        return len(self.cells) - len(self.rows) - len(self.failed)

    def summary(self) -> str:
        """Return one line: how many are done, how many failed, how long the others may take."""
        text = f"{len(self.rows)} of {len(self.cells)} cells done"
        text += f", {len(self.failed)} failed" if self.failed else ""
        if self.left and self.spent:
            seconds = statistics.fmean(self.spent) * self.left / min(self.jobs, self.left)
            text += f", about {_duration(seconds)} left"
        return text

    def body(self) -> list[list[str]]:
        """Return the table: standards and methods by targets; an entry counts its cells, or gives their mean."""
        targets = list(dict.fromkeys(cell.target for cell in self.cells))
        found = [["", "method", *(f"-> {target}" for target in targets)]]
        order = {standard: number for number, standard in enumerate(STANDARDS)}
        lines = dict.fromkeys((cell.standard, cell.method, cell.setting) for cell in self.cells)
        for line in sorted(lines, key=lambda line: order.get(line[0], len(order))):
            own = [cell for cell in self.cells if (cell.standard, cell.method, cell.setting) == line]
            name = line[1] if line[2] == "default" else f"{line[1]} {line[2]}"
            title = TITLES.get(line[0], line[0])
            entries = [self._entry([cell.path for cell in own if cell.target == target]) for target in targets]
            found.append(["" if found[-1][0] == title or _same(found, title) else title, name, *entries])
        return found

    def _entry(self, paths: Sequence[str]) -> str:
        done = [self.rows[path] for path in paths if path in self.rows]
        failed = sum(path in self.failed for path in paths)
        running = sum(path in self._running and path not in self.rows for path in paths)
        if not paths:
            return ""
        if len(done) == len(paths) and all(isinstance(row.get("accuracy"), float) for row in done):
            return f"{100 * statistics.fmean(row['accuracy'] for row in done):.1f}"
        text = f"{len(done)}/{len(paths)}" if len(paths) > 1 else "done" if done else "." if not failed else ""
        return text + (" *" if running else "") + (f" {failed} failed" if failed else "")

    def picture(self) -> Group:
        """Return the table with its summary and the last failure, for a terminal."""
        from rich.console import Group
        from rich.text import Text

        from graphmsda.tables import new_table

        if time.monotonic() - self._looked >= SCAN:
            self._running, self._looked = self._find_running(), time.monotonic()
        head, *body = self.body()
        table = new_table(*head)
        table.columns[0].justify = "left"
        for line in body:
            table.add_row(*line)
        parts: list[RenderableType] = [
            table,
            Text(self.summary() + ("; * is being worked on" if self._running else "")),
        ]
        if self.failed:
            parts.append(Text(f"last failure: {list(self.failed.values())[-1]}", overflow="ellipsis", no_wrap=True))
        return Group(*parts)


@contextmanager
def showing(board: Board, *, enabled: bool) -> Iterator[Show]:
    """Show a board on standard error while cells are worked on."""
    if not enabled:
        yield board.take
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(get_renderable=board.picture, console=Console(stderr=True), refresh_per_second=1, transient=True):
            yield board.take
    else:
        yield _lines(board)


def _lines(board: Board) -> Show:
    def show(outcome: Outcome) -> None:
        board.take(outcome)
        if outcome.state == "busy":
            return
        told = f"failed: {outcome.error}"
        if outcome.row is not None:
            accuracy = outcome.row.get("accuracy")
            told = "done" if accuracy is None else f"{100 * accuracy:.1f} %"
            told += f" in {_duration(outcome.seconds)}" if outcome.seconds else ", by another worker"
        print(f"{outcome.cell.label}: {told}; {board.summary()}", file=sys.stderr, flush=True)

    return show


def _same(lines: Sequence[Sequence[str]], title: str) -> bool:
    """Whether the last title above a line is this one."""
    return next((line[0] for line in reversed(lines) if line[0]), "") == title


def _duration(seconds: float) -> str:
    """Return a time for people.

    >>> _duration(42), _duration(600), _duration(36000)
    ('42 s', '10 min', '10 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.3g} h"
