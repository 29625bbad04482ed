"""What a person sees while training runs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol


class Show(Protocol):
    """Takes the number of finished steps and, where there are new ones, the loss terms."""

    def __call__(self, step: int, terms: Mapping[str, float] | None = None) -> None:
        """Show it."""


@contextmanager
def progress_bar(steps: int, done: int, title: str, *, enabled: bool) -> Iterator[Show]:
    """Show steps, loss terms and the time left, on standard error."""
    if not enabled:
        yield lambda step, terms=None: None
    elif sys.stderr.isatty():
        with _bar(steps, done, title) as show:
            yield show
    else:
        yield _lines(steps, done, title)


@contextmanager
def _bar(steps: int, done: int, title: str) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    def fixed(width: int) -> Column:
        return Column(min_width=width, no_wrap=True)

    columns = (
        TextColumn("{task.description}", markup=False, table_column=fixed(len(title))),
        BarColumn(16),
        MofNCompleteColumn(table_column=fixed(2 * len(str(steps)) + 1)),
        TimeRemainingColumn(table_column=fixed(7)),
        TextColumn(
            "{task.fields[terms]}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
        ),
    )
    with Progress(*columns, console=Console(stderr=True), expand=True) as progress:
        bar = progress.add_task(title, total=steps, completed=done, terms="")

        def show(step: int, terms: Mapping[str, float] | None = None) -> None:
            if terms is None:
                progress.update(bar, completed=step)
            else:
                progress.update(bar, completed=step, terms=_told(terms))

        yield show


def _lines(steps: int, done: int, title: str, every: float = 10.0) -> Show:
    begin = last = time.monotonic()

    def show(step: int, terms: Mapping[str, float] | None = None) -> None:
        nonlocal last
        now = time.monotonic()
        if terms is None or (now - last < every and step < steps):
            return
        last = now
        left = (now - begin) / max(1, step - done) * (steps - step)
        print(f"{title}: step {step}/{steps}, {left:.0f} s left, {_told(terms)}", file=sys.stderr, flush=True)

    return show


def _told(terms: Mapping[str, float]) -> str:
    return " ".join(f"{name} {value:.3g}" for name, value in terms.items())
