"""A study from its cells to their results, which may be stopped, resumed and shared."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from graphmsda.engine.settings import Settings
from graphmsda.errors import UserError
from graphmsda.methods import complete_parameters
from graphmsda.study import attempts
from graphmsda.study.board import Board, showing
from graphmsda.study.cells import Cell, Study, add_cells, open_study, read_row, read_study
from graphmsda.study.data import Data, load
from graphmsda.study.executors import Executor, here, visible_gpus
from graphmsda.study.work import Item, Outcome, Work, check_cell

PAUSE = 2.0  # seconds between two looks at cells that others work on
MOST_IDLE = 3  # rounds without any attempt after which something is wrong with the workers


def run_study(
    out: str | Path,
    kind: str,
    data: Data,
    cells: Sequence[Cell],
    *,
    executor: Executor = here,
    jobs: int = 1,
    progress: bool = False,
    about: Mapping[str, Any] | None = None,
    watch: bool = False,
) -> Study:
    """Finish all cells of a study that are not finished yet, and return what then lies in its folder.

    Several such calls may be at work on one folder, on one machine or on several. Cells that others are at are left to
    them, and taken over should they vanish. A cell that failed before is tried again, once.

    Args:
        out: The study's folder.
        kind: ``table``, ``ablation``, ``sensitivity`` or ``timing``.
        data: Its data.
        cells: What is asked; what the folder has beyond that is left as it is.
        executor: Where cells are worked on.
        jobs: How many at a time, for the estimate of the time left.
        progress: Show on standard error what is being done.
        about: What else has to be the same for all commands that share the folder.
        watch: Read the accuracy on the target while training too, for the column oracle alone.
    """
    out = Path(out)
    work = Work(out, data, kind, visible_gpus() if executor is not here else (), watch)
    places = {cell.path: out / "cells" / cell.path for cell in cells}
    left = {cell.path: cell for cell in cells if not (out / "runs" / cell.path / "result.json").is_file()}
    about = {"kind": kind, **data.about(), **(about or {})}
    open_study(out, about, make=False)
    check_cells(list(left.values()), work, progress)
    open_study(out, about)
    add_cells(out, cells)
    if executor is not here:
        load.cache_clear()  # others read for themselves
    before = {path: attempts.newest(places[path])[0] for path in left}
    rows = {cell.path: row for cell in cells if (row := read_row(out, cell)) is not None}
    others, idle = attempts.Watch(), 0

    def find_running() -> set[str]:
        return {path for path in left if attempts.newest(places[path])[1].get("state") == attempts.RUNNING}

    board = Board(cells, rows, jobs, find_running)
    if progress:
        print(f"graphmsda: {len(cells)} cells, {len(rows)} of them done before; study in {out}", file=sys.stderr)
    with showing(board, enabled=progress) as show:
        while left:
            newest = {path: attempts.newest(places[path])[0] for path in left}
            looks = {path: others.look(places[path]) for path in left}
            for cell in list(left.values()):  # what others have finished meanwhile
                if (row := read_row(out, cell)) is not None:
                    show(Outcome(left.pop(cell.path), "done", row))
            items = [Item(cell, before[path], looks[path][1]) for path, cell in left.items() if not looks[path][0]]
            if not items:
                time.sleep(PAUSE if left else 0)
                continue
            idle += 1
            with closing(executor(work, items)) as outcomes:
                for outcome in outcomes:
                    idle = 0
                    show(outcome)
                    if outcome.state != "busy":
                        left.pop(outcome.cell.path, None)
            if any(attempts.newest(places[path])[0] > number for path, number in newest.items()):
                idle = 0
            if idle >= MOST_IDLE:
                raise UserError(
                    f"{out}: {len(left)} cells are left but no worker takes one; run the same command again, with "
                    "--jobs 1 to see why"
                )
    return read_study(out)


def check_cells(cells: Sequence[Cell], work: Work, progress: bool) -> None:
    """Read the data of what is left, so that processes do not race to decode them, and tell mistakes early."""
    for cell in {(cell.method, cell.setting): cell for cell in cells}.values():
        with _names_flag(work.kind):  # what can be told before data are read
            Settings(**{**cell.settings, "method": cell.method})
            complete_parameters(cell.method, cell.parameters, cell.settings.get("preset"))
    notes: dict[str, None] = {}
    for target in dict.fromkeys(cell.target for cell in cells):
        named = load(work.data, target)
        notes |= dict.fromkeys(named.notes)
        for cell in {(c.standard, c.method, c.setting): c for c in cells if c.target == target}.values():
            with _names_flag(work.kind):
                check_cell(cell, named, dict(work.data.reading).get("data_root"))
    for note in notes if progress else ():
        print(f"graphmsda: {note}", file=sys.stderr)


@contextmanager
def _names_flag(kind: str) -> Iterator[None]:
    """Put the flag that was typed in the place of that of a single run."""
    try:
        yield
    except UserError as error:
        if kind not in ("sensitivity", "search"):
            raise
        raise UserError(re.sub(r"^--set ", "--param ", str(error))) from error
