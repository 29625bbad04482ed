"""One cell of a study: taken, trained, scored and written down, whoever does it and wherever."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from graphmsda import __version__
from graphmsda.backbones import build_backbone
from graphmsda.data.named import NamedTask
from graphmsda.domains import Task
from graphmsda.engine import folder
from graphmsda.engine.fit import fit
from graphmsda.engine.settings import Settings
from graphmsda.environment import hardware
from graphmsda.errors import UserError
from graphmsda.files import write_text
from graphmsda.methods import build_method
from graphmsda.rehearsal import rehearsals
from graphmsda.study import attempts
from graphmsda.study.cells import RESULT, Cell, Row, read_row
from graphmsda.study.data import Data, load
from graphmsda.study.protocol import REHEARSAL, read_as, stage, steps_of
from graphmsda.study.scoring import score, target_scores

MOST_LOST = 3  # processes that may die on one cell before it counts as failed


@dataclass(frozen=True)
class Work:
    """What a process has to know to work on any cell of a study; it can be sent to other machines.

    Attributes:
        out: The study's folder.
        data: Its data.
        kind: ``timing``, or any other kind of study, in which cells are trained.
        gpus: Names of the GPUs among which local processes choose, by their number.
        watch: Whether to read the accuracy on the target while training too, for the column oracle alone.
    """

    out: Path
    data: Data
    kind: str = "table"
    gpus: tuple[str, ...] = ()
    watch: bool = False


@dataclass(frozen=True)
class Item:
    """A cell to work on.

    Attributes:
        cell: The cell.
        before: Number of attempts at it when this command began: one that failed since is not tried again.
        lost: Number of an attempt that has shown no sign of life for too long.
    """

    cell: Cell
    before: int = 0
    lost: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        cell: The cell.
        state: ``done``, ``failed``, or ``busy`` where another works on it.
        row: The result.
        error: Why it failed, in one sentence.
        seconds: What it took here; 0 where another did it.
    """

    cell: Cell
    state: str
    row: Row | None = None
    error: str | None = None
    seconds: float = 0.0


def work_on(work: Work, item: Item) -> Outcome:
    """Do one cell, unless another has it or has done it; nothing but an interruption is raised."""
    cell, place = item.cell, work.out / "cells" / item.cell.path
    begin = time.monotonic()
    try:
        row = read_row(work.out, cell)
        if row is not None:
            return Outcome(cell, "done", row)
        number, about = attempts.newest(place)
        if number > item.before and about.get("state") == attempts.FAILED:
            return Outcome(cell, "failed", error=str(about["error"]))
        attempt = attempts.take(place, lost=item.lost)
        if attempt is None:
            return Outcome(cell, "busy")
    except UserError as mistake:
        return Outcome(cell, "failed", error=str(mistake))
    if attempt.number - item.before > MOST_LOST:
        error = f"{cell.label}: {MOST_LOST} processes were killed while at it, perhaps for want of memory"
        attempt.end(attempts.FAILED, error)
        return Outcome(cell, "failed", error=error)
    try:
        row = read_row(work.out, cell) or _finish(work, cell, attempt)
        if row is None:  # given up by others, who have the cell now
            return Outcome(cell, "busy")
        return Outcome(cell, "done", row, seconds=time.monotonic() - begin)
    except Exception as mistake:  # a night's other cells are worth more than a traceback in the middle of them
        error = _told(mistake, cell)
        attempt.end(attempts.FAILED, error)
        return Outcome(cell, "failed", error=error, seconds=time.monotonic() - begin)
    except BaseException:
        attempt.end(attempts.STOPPED)
        raise
    finally:
        gc.collect()
        if torch.cuda.is_available() and torch.cuda.memory_reserved():
            torch.cuda.empty_cache()  # room for processes that share the GPU


def _finish(work: Work, cell: Cell, attempt: attempts.Attempt) -> Row | None:
    out = work.out / "runs" / cell.path
    if work.kind == "timing":
        from graphmsda.study.timing import time_cell

        row = time_cell(cell, work.data)
    else:
        row = train_cell(cell, work.data, out, watch=work.watch)
    if not attempt.is_mine():
        return None
    row |= {**origin(), "date": time.strftime("%Y-%m-%d")}
    write_text(out / RESULT, json.dumps(row, ensure_ascii=False, indent=1) + "\n")
    attempt.end(attempts.DONE)
    shutil.rmtree((out / folder.CHECKPOINT).parent, ignore_errors=True)  # only training would want it
    return read_row(work.out, cell)


def train_cell(cell: Cell, data: Data, out: Path, *, watch: bool = False) -> Row:
    """Train, or go on with training, and score the last step's model; `watch` is as of `Work`."""
    begin = time.monotonic()
    named = load(data, cell.target)
    task, settings = staged(cell, named)
    root = dict(data.reading).get("data_root")
    reading = {name: str(value) if isinstance(value, Path) else value for name, value in data.reading}
    record: dict[str, Any] = {"reading": reading, **named.record, "standard": cell.standard}
    test, sources = named.test, [source.name for source in named.task.sources]
    if cell.standard == REHEARSAL:
        record = {"rehearsal": {"player": cell.source, **record}}
        test = rehearsals(named.task, named.validation, [str(cell.source)])[0].evaluation
        sources.remove(str(cell.source))
    elif cell.source is not None:
        sources = [cell.source]
    run = fit(task, out=out, origin=record, data_root=root, watch=test if watch else None, **settings)
    held = {name: named.validation[name] for name in sources if name in named.validation}
    scores = score(run, [test], task.target.x, [(read_as(cell.standard, name), held[name]) for name in held])
    if cell.standard != REHEARSAL:
        scores["scores"] = target_scores(run, named, sources)
    chosen = run.about["settings"]
    return {
        "benchmark": data.benchmark,
        **cell.named(),
        "epochs": chosen["epochs"],
        "steps": run.about["steps"],
        "backbone": chosen["backbone"],
        "batch_size": chosen["batch_size"],
        **scores,
        "minutes": round((time.monotonic() - begin) / 60, 3),
    }


def staged(cell: Cell, named: NamedTask) -> tuple[Task, dict[str, Any]]:
    """Return what a cell is trained on, and all that `graphmsda.engine.fit.fit` is given."""
    settings = {**cell.settings, "method": cell.method, "seed": cell.seed, "parameters": dict(cell.parameters)}
    if settings.get("backbone", "auto") == "auto":
        settings["backbone"] = named.backbone
    if not settings.get("steps_per_epoch"):
        whole = Settings(**settings).resolved(named.task)
        settings["steps_per_epoch"] = steps_of(named.task, cell.standard, whole.batch_size)
    return stage(named.task, cell.standard, cell.source), settings


def check_cell(cell: Cell, named: NamedTask, data_root: str | Path | None = None) -> None:
    """Build a cell's method without memory: a value out of range is told before any training."""
    task, settings = staged(cell, named)
    resolved = Settings(**settings).resolved(task, data_root)
    domains = len(task.domains)
    with torch.device("meta"):
        backbone = build_backbone(resolved.backbone, task.target.x.shape[1:], domains, dropout=resolved.dropout)
        build_method(resolved.method, backbone, len(task.classes), domains, resolved.parameters)


@cache
def origin() -> dict[str, str]:
    """Return what made a result: version, commit where there is one, hardware and PyTorch."""
    git = ["git", "-C", str(Path(__file__).parents[1])]

    def ask(*words: str) -> str:
        return subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", "__init__.py")  # else an installed package inside of some other repository
        commit = ask("rev-parse", "--short", "HEAD") + ("+changes" if ask("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return {"graphmsda": __version__, "commit": commit, "hardware": hardware(), "torch": str(torch.__version__)}


def _told(mistake: Exception, cell: Cell) -> str:
    if isinstance(mistake, UserError):
        return str(mistake)
    if isinstance(mistake, torch.cuda.OutOfMemoryError):
        return f"{cell.label}: the GPU has too little memory; give a smaller --batch-size or fewer --jobs"
    return f"{cell.label}: {type(mistake).__name__}: {' '.join(str(mistake).split())[:500]}"
