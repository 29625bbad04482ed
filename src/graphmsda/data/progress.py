"""How far a long piece of work has come: a bar on a terminal, a line now and then elsewhere, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 10.0  # seconds between two lines

Show = Callable[[int], None]


@contextmanager
def amount_bar(title: str, total: int | None, *, unit: str = "images", enabled: bool) -> Iterator[Show]:
    """Yield a function to call with the amount done so far.

    Args:
        title: What is being done, and to what.
        total: The whole amount, where it is known.
        unit: ``bytes`` are shown as kB, MB or GB, with their speed; anything else is counted.
        enabled: Show anything at all.
    """
    if not enabled:
        yield lambda done: None
    elif sys.stderr.isatty():
        with _bar(title, total, unit) as show:
            yield show
    else:
        yield _lines(title, total, unit)


def told(amount: int, unit: str = "bytes") -> str:
    """Return an amount as people write it.

    >>> told(182040794), told(4542), told(25000, "images")
    ('182.0 MB', '4.5 kB', '25,000 images')
    """
    if unit != "bytes":
        return f"{amount:,} {unit}"
    for prefix, step in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if amount >= step:
            return f"{amount / step:.1f} {prefix}B"
    return f"{amount} bytes"


@contextmanager
def _bar(title: str, total: int | None, unit: str) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amount = (DownloadColumn(), TransferSpeedColumn()) if unit == "bytes" else (MofNCompleteColumn(),)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(24), *amount, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        row = progress.add_task(title, total=total)
        yield lambda done: progress.update(row, completed=done)


def _lines(title: str, total: int | None, unit: str) -> Show:
    begin = last = time.monotonic()
    first: int | None = None

    def show(done: int) -> None:
        nonlocal last, first
        now = time.monotonic()
        if first is None or done < first:  # what was there before is no measure of the speed
            first = done
        if now - last < EVERY or done == total:
            return
        last = now
        so_far = told(done, unit)
        if total is not None:
            so_far = f"{so_far if unit == 'bytes' else f'{done:,}'} of {told(total, unit)}"
        left = ""
        if total is not None and done > first:
            left = f", {(now - begin) / (done - first) * (total - done):.0f} s left"
        print(f"{title}: {so_far}{left}", file=sys.stderr, flush=True)

    return show
