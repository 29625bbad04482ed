"""Cells of an accuracy table: one run of a method on one task with one seed, several at a time in worker processes."""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch

from graphmsda import EvalSet, Task, UserError, fit
from graphmsda.data import demo
from graphmsda.data.benchmarks.catalogue import find_benchmark
from graphmsda.data.named import NamedTask, find_task
from graphmsda.engine.settings import Settings
from graphmsda.forked import cores
from graphmsda.norm import DomainBatchNorm
from graphmsda.rehearsal import Sources, load_sources, rehearsals
from graphmsda.run import Run
from graphmsda.selection import gather
from graphmsda.selection.data import find_data
from graphmsda.study import scoring
from record import rounded
from selection import read_run


@dataclass(frozen=True)
class Cell:
    """One run: what is trained, on which task, and under which name its result is kept.

    Attributes:
        benchmark: Name of the benchmark, or ``demo``.
        target: The real target.
        playing: The source that plays the target, the real one being left out altogether; None: no rehearsal.
        method: Name of the method.
        setting: What this choice of parameters and settings is called.
        seed: Seed of the run.
        parameters: Hyper-parameters that differ from the method's defaults.
        settings: Settings that were asked for.
        recipe: Settings of the benchmark's recipe, below those that were asked for.
        reading: Where data lie and how they are read, as `find_task` takes it.
        also: Methods that can be read off this run, trained in the same way.
    """

    benchmark: str
    target: str
    playing: str | None
    method: str
    setting: str
    seed: int
    parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    @property
    def code(self) -> tuple[str, str]:
        """Method and setting: cells that have both in common run the same compiled code."""
        return self.method, self.setting

    @property
    def all_settings(self) -> dict[str, Any]:
        """Everything that `fit` is given, the recipe's part included."""
        own = {**self.recipe, **self.settings, "method": self.method, "seed": self.seed}
        return own | {"parameters": {**self.recipe.get("parameters", {}), **self.parameters}}

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes it the same cell as a row of results: see `accuracy_rows.key_of`."""
        epochs = self.all_settings.get("epochs", Settings().epochs)
        return self.method, self.setting, self.target, self.playing, self.seed, epochs

    def named(self) -> dict[str, Any]:
        """Return the part of a row that tells which cell it is."""
        rehearsing = {} if self.playing is None else {"playing": self.playing}
        about = {"method": self.method, "setting": self.setting, "target": self.target, **rehearsing}
        return about | {"seed": self.seed, "epochs": self.key[-1]}

    def folder(self, commit: str) -> str:
        """Return a name for what is being trained: another one where anything differs, the code included."""
        digest = hashlib.sha256(f"{self} {commit}".encode()).hexdigest()[:12]
        return f"{self.method}-{self.playing or self.target}-{self.seed}-{digest}"

    def command(self) -> str:
        """Return the command that runs this cell and no other, wherever the data lie."""
        words = ["python", "benchmarks/accuracy.py", "--benchmark", self.benchmark, "--methods", self.method]
        words += ["--targets", self.target] + (["--rehearse", "--players", self.playing] if self.playing else [])
        words += ["--seeds", str(self.seed)]
        for name, value in {"epochs": self.key[-1], **self.reading, **self.settings}.items():
            if name not in ("root", "cache"):
                words += [f"--{name.replace('_', '-')}", str(value)]
        if self.parameters:
            words += ["--set", *(f"{name}={plain(value)}" for name, value in self.parameters.items())]
        named = [] if self.setting == "default" else ["--name", self.setting]
        file = f"results/{self.benchmark}{'-rehearsals' if self.playing else ''}.json"
        return shlex.join([*words, *named, "--out", file])


def plain(value: Any) -> str:
    """Return a hyper-parameter as ``--set`` takes it.

    >>> plain(True), plain(0.3), plain(None)
    ('true', '0.3', 'null')
    """
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else "null" if value is None else str(value)


def domains_of(benchmark: str) -> tuple[str, ...]:
    """Return the domains of a benchmark."""
    return tuple(demo.DOMAINS) if benchmark == "demo" else tuple(find_benchmark(benchmark).domains)


@dataclass(frozen=True)
class Stage:
    """What a cell is trained on, and what scores it: labelled parts of the target, held-out ones of the sources."""

    task: Task
    scored_on: tuple[EvalSet, ...]
    validation: Mapping[str, EvalSet]
    backbone: str


@lru_cache(maxsize=8)
def load(name: str, reading: tuple[tuple[str, Any], ...], whole: bool) -> NamedTask | Sources:
    """Return a task, or its sources without ever opening the target, read at most once by each process."""
    return find_task(name, **dict(reading)) if whole else load_sources(name, **dict(reading))


def load_for(cell: Cell) -> NamedTask | Sources:
    """Return the data of a cell: of a rehearsal, all sources of the real target."""
    return load(f"{cell.benchmark}:{cell.target}", tuple(sorted(cell.reading.items())), cell.playing is None)


def fill_store(cells: Sequence[Cell]) -> None:
    """Decode what cells need, so that processes that train find it in the store and do not race to fill it."""
    for cell in {(cell.target, cell.playing is None): cell for cell in cells}.values():
        load_for(cell)
    load.cache_clear()


def stage_of(cell: Cell) -> Stage:
    """Return the real task, or the one in which a source plays the target and the real target does not exist.

    A player is scored as the real target would be: on its held-out part, and where the benchmark tests a target on all
    of its samples, on all of the player's.
    """
    found = load_for(cell)
    if isinstance(found, NamedTask):
        return Stage(found.task, (found.test,), found.validation, found.backbone)
    (rehearsal,) = rehearsals(found, only=[str(cell.playing)])
    scored_on: tuple[EvalSet, ...] = (rehearsal.evaluation,)
    if cell.playing in found.validation and find_benchmark(cell.benchmark).transductive:
        (player,) = (source for source in found.sources if source.name == cell.playing)
        scored_on += (EvalSet(player.name, player.x, player.y),)
    validation = {name: part for name, part in found.validation.items() if name != cell.playing}
    return Stage(rehearsal.task, scored_on, validation, found.backbone)


def train_cell(cell: Cell, out: Path) -> list[dict[str, Any]]:
    """Train, score the last step's model and return a row for it and for each method that can be read off it.

    A run that was stopped goes on where ``out`` has it; it is gone once the rows are made.
    """
    stage = stage_of(cell)
    settings = cell.all_settings
    if settings.get("backbone", "auto") == "auto":
        settings["backbone"] = stage.backbone
    named = load_for(cell)
    real = named if isinstance(named, NamedTask) else None
    given = {"data_root": cell.reading.get("root"), "origin": real and real.record}
    watch = stage.scored_on[0] if real else None  # for the oracle column alone
    with counted(out.with_suffix(".minutes")) as minutes:
        run = fit(stage.task, settings.pop("method"), out=out, watch=watch, **given, **settings)
        scores = score(run, stage)
        if real and importlib.util.find_spec("scipy"):  # a machine that only trains may lack it
            data = find_data(run, real)
            scores["selection"] = rounded(read_run(run, data, gather(run, data)))
    discard(out)
    about = {"steps": run.about["steps"], "minutes": round(minutes[0], 2), "parameters": dict(cell.parameters)}
    about["settings"] = dict(cell.settings)
    rows = [{**cell.named(), **scores, **about}]
    for other in cell.also:
        forget_target(run)
        read_off = {"trained": f"with {cell.method}", "oracle_accuracy": None}  # nobody watched it like this
        rows.append({**cell.named(), "method": other, **score(run, stage), **about, **read_off})
    return rows


def discard(out: Path) -> None:
    """Remove what `train_cell` keeps of a run."""
    shutil.rmtree(out, ignore_errors=True)
    out.with_suffix(".minutes").unlink(missing_ok=True)


@contextmanager
def counted(file: Path) -> Iterator[list[float]]:
    """Add the minutes spent inside to those in a file, and give them back when all of it is over."""
    begin, before = time.monotonic(), float(file.read_text()) if file.is_file() else 0.0
    spent: list[float] = []
    try:
        yield spent
    finally:
        spent.append(before + (time.monotonic() - begin) / 60)
        file.write_text(str(spent[0]))


def score(run: Run, stage: Stage) -> dict[str, Any]:
    """Return accuracies (fractions) and what can be said of the predictions without a label."""
    return scoring.score(run, stage.scored_on, stage.task.target.x, list(stage.validation.items()))


def forget_target(run: Run) -> None:
    """Make Source-only of a run of AdaBN: the same weights, the target read with the sources' statistics."""
    for module in run.method.modules():
        if isinstance(module, DomainBatchNorm):
            module.count[-1] = 0  # as if it had never been met


def work(tasks: connection.Connection, log: Path, threads: int) -> None:
    """Train the cells that come with folders until there is None, sending back rows or one line of error."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)  # warnings of libraries are not for the table
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # outside `fit` too, so that a cell's minutes are kept
    threading.Thread(target=stop_with_parent, daemon=True).start()
    while (given := tasks.recv()) is not None:
        try:
            found: list[dict[str, Any]] | str = train_cell(*given)
        except UserError as error:
            found = re.sub(r"; the last good state .*? is kept in [^;]*", "", str(error))  # it is gone with the folder
        except Exception as error:
            found = f"{type(error).__name__}: {' '.join(str(error).split())}"
        discard(given[1])  # what failed is begun anew
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()  # room for the processes that share the GPU
        tasks.send(found)


def stop_with_parent() -> None:
    """Stop this process as a polite kill does once the one that started it is gone, however that came about."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


class Worker:
    """A process that trains one cell at a time."""

    def __init__(self, scratch: Path, number: int, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.scratch, self.log = scratch, scratch / f"worker-{number}.log"
        self.tasks, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, self.log, threads))
        self.process.start()
        theirs.close()
        self.cell: Cell | None = None

    def give(self, cell: Cell, commit: str) -> None:
        """Hand out the next cell."""
        self.cell = cell
        self.tasks.send((cell, self.scratch / cell.folder(commit)))

    def take(self) -> list[dict[str, Any]] | str:
        """Return the rows of the cell, or why there are none."""
        try:
            found: list[dict[str, Any]] | str = self.tasks.recv()
        except (EOFError, OSError):
            self.process.join()
            said = self.log.read_text(errors="replace").split("\n") if self.log.is_file() else []
            last = next((line.strip() for line in reversed(said) if line.strip()), "it said nothing")
            found = f"its process ended with exit code {self.process.exitcode}: {last}"
        return found

    def ask_to_stop(self) -> None:
        """Tell the process to end: an idle one when its connection closes, a busy one after its step."""
        self.tasks.close()
        if self.cell is not None:
            self.process.terminate()

    def stop(self, patience: float = 15.0) -> None:
        """Wait for the process to end, and end it where it does not listen."""
        self.process.join(patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.log.unlink(missing_ok=True)


def run_cells(
    cells: Sequence[Cell], jobs: int, deadline: float, scratch: Path, commit: str
) -> Iterator[tuple[Cell, list[dict[str, Any]] | str]]:
    """Yield each finished cell with its rows, or with one line of error; at the deadline end what is not finished.

    Args:
        cells: What to train, in this order, but that the first cell of a method's setting goes ahead of others of it,
            if there is anything else to do: on a GPU it compiles what they then find compiled.
        jobs: How many processes train at a time; they share out the machine's cores.
        deadline: When to stop, on the clock of `time.monotonic`.
        scratch: A folder for what is being trained. Cells that another call with the same folder did not finish go on.
        commit: What the code is: cells of another commit begin anew.
    """
    waiting, started = list(cells), 0
    threads = max(1, cores() // jobs)
    known: set[tuple[str, str]] = set()  # methods and settings of which a cell has finished
    workers: list[Worker] = []
    try:
        while True:
            while waiting and time.monotonic() < deadline:
                free = next((worker for worker in workers if worker.cell is None), None)
                if free is None:
                    if len(workers) == jobs:
                        break
                    free, started = Worker(scratch, started, threads), started + 1
                    workers.append(free)
                begun = {worker.cell.code for worker in workers if worker.cell is not None} - known
                first = next((number for number, cell in enumerate(waiting) if cell.code not in begun), 0)
                free.give(waiting.pop(first), commit)
            busy = {worker.tasks: worker for worker in workers if worker.cell is not None}
            ready = connection.wait(list(busy), timeout=max(0.0, deadline - time.monotonic())) if busy else []
            if not ready:
                return
            for tasks in ready:
                worker = busy[tasks]  # type: ignore[index]
                cell, found = worker.cell, worker.take()
                worker.cell = None
                if not worker.process.is_alive():
                    workers.remove(worker)
                if cell is not None:
                    known.add(cell.code)
                    yield cell, found
    finally:
        for worker in workers:
            worker.ask_to_stop()
        for worker in workers:
            worker.stop()
