"""Choose hyper-parameters without target labels: every setting is rehearsed with each source playing the target.

Reads top to bottom: `tune` lays out the runs and keeps the books, `run_cells` makes all of them, here or in several
processes, `run_cell` makes one.
"""

from __future__ import annotations

import shlex
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from graphmsda.domains import EvalSet, Task
from graphmsda.engine import folder
from graphmsda.engine.fit import fit
from graphmsda.errors import UserError
from graphmsda.files import write_text
from graphmsda.reading import READING, refuse
from graphmsda.rehearsal import Rehearsal, Sources, load_sources, rehearsals
from graphmsda.tuning.cells import RESULTS, Cell, Row, check_folders, lay_out, read_rows, write_rows
from graphmsda.tuning.grid import Setting, build_grid
from graphmsda.tuning.ranking import label, rank, ranking_table, recipe, verdict
from graphmsda.tuning.workers import map_in_processes

BEST = "best.yaml"

Data = Task | Sources


@dataclass(frozen=True)
class Work:
    """What a process has to know to make any of the runs.

    Attributes:
        stage: Returns the rehearsals.
        origin: Where the data came from, for the record.
        data_root: Folder below which ``weights/`` may hold pretrained ones.
        progress: Show a bar for each run.
    """

    stage: Callable[[], list[Rehearsal]]
    origin: Mapping[str, Any]
    data_root: str | Path | None
    progress: bool


def tune(
    task: Data,
    method: str,
    parameters: Mapping[str, Sequence[Any]],
    *,
    out: str | Path,
    fixed: Mapping[str, Any] | None = None,
    validation: Mapping[str, EvalSet] | None = None,
    players: Sequence[str] | None = None,
    seeds: Sequence[int] = (0,),
    jobs: int = 1,
    progress: bool = False,
    origin: Mapping[str, Any] | None = None,
    data_root: str | Path | None = None,
    reload: Callable[[], Data] | None = None,
    **settings: Any,
) -> list[Row]:
    """Train with every combination of values, each source playing the target in turn, and return a row for each run.

    The target of `task` is never looked at. Every run has a directory of its own below `out`, so the same call goes on
    where it was stopped; ``tune.json`` there holds the rows so far and, at the end, ``best.yaml`` the best setting, for
    ``graphmsda fit --config``.

    Args:
        task: Labelled sources, at least two.
        method: Name of the method.
        parameters: Values of hyper-parameters or of fields of `Settings`, such as ``{"tau": [0.1, 1], "lr": [1e-3]}``.
        out: Folder of the runs.
        fixed: Hyper-parameters that all runs have in common.
        validation: Labelled data of a source that training does not see, by its name; a player that has them is scored
            on them, any other on the samples it was adapted to.
        players: Names of the sources that play the target; by default all.
        seeds: A run for each of these.
        jobs: Processes that train side by side. In a script such a call stands below ``if __name__ == "__main__":``.
        progress: Tell on standard error what is being done.
        origin: What ``best.yaml`` says of the data: ``task``, or ``sources`` and ``target``.
        data_root: Folder below which ``weights/`` may hold pretrained ones (default: ``$GRAPHMSDA_DATA``).
        reload: How a further process gets `task`; by default it is handed over through shared memory.
        **settings: Fields of `Settings` that all runs have in common; the default setting is these and `fixed` alone.

    Returns:
        Rows with ``setting``, ``values``, ``player``, ``seed``, ``accuracy`` (a fraction, None where the run failed),
        ``error`` (why it failed, else None) and ``seconds``.
    """
    out = Path(out)
    _check_lists(seeds, players, jobs)
    base = {name: value for name, value in settings.items() if name not in ("seed", "devices", "nodes")}
    base["parameters"] = dict(fixed or {})
    staged = {one.player: one for one in rehearsals(task, validation, players)}
    grid = build_grid(method, parameters, base, next(iter(staged.values())).task, data_root)
    cells = lay_out(grid, list(staged), seeds, out)
    check_folders(cells, staged, out, data_root)
    stage = partial(_stage_again, reload or partial(_itself, task), validation, players)
    work = Work(stage, origin or {}, data_root, progress and jobs == 1)
    with folder.locked(out):
        rows = read_rows(out, cells)
        left = [cell for cell in cells if cell not in rows]
        tell = _teller(len(cells), len(left)) if progress else None
        if progress:
            _announce(grid, list(staged), seeds, len(rows))
        with closing(run_cells(left, work, staged, jobs)) as done:
            for cell, row in done:
                rows[cell] = row
                write_rows(out, method, cells, rows)
                if tell is not None:
                    tell(cell, row)
        write_rows(out, method, cells, rows)
        found = [rows[cell] for cell in cells]
        failures = [row["error"] for row in found if row["error"] is not None]
        if len(failures) == len(found):
            raise UserError(f"all {len(found)} runs failed, the first of them with: {failures[0]}")
        best = rank(found)[0]
        winner = next(setting for setting in grid if setting.name == best.name)
        write_text(out / BEST, recipe(winner, best, origin or {}, seeds=seeds))
    return found


def run_cells(
    cells: Sequence[Cell], work: Work, staged: Mapping[str, Rehearsal], jobs: int
) -> Generator[tuple[Cell, Row]]:
    """Make the runs in this process or in several, and yield each with its row as it is done."""
    if min(jobs, len(cells)) < 2:
        for cell in cells:
            yield cell, run_cell(cell, work, staged[cell.player])
        return
    with closing(map_in_processes(partial(_run_apart, work), cells, jobs=min(jobs, len(cells)))) as done:
        for number, row in done:
            yield cells[number], row


def run_cell(cell: Cell, work: Work, rehearsal: Rehearsal) -> Row:
    """Make one run and score it on the player's labels; a run that fails gives a row that says why."""
    begin = time.monotonic()
    accuracy, error = None, None
    about: dict[str, Any] = {"rehearsal": {"player": cell.player, **work.origin}}
    try:
        run = fit(
            rehearsal.task,
            out=cell.path,
            progress=work.progress,
            origin=about,
            data_root=work.data_root,
            **cell.settings,
        )
        accuracy = run.evaluate(rehearsal.evaluation).accuracy
    except UserError as mistake:
        error = str(mistake)
    except torch.cuda.OutOfMemoryError:
        error = f"{cell.path}: the GPU has too little memory; give a smaller --batch-size or fewer --jobs"
        torch.cuda.empty_cache()
    except Exception as mistake:  # a night's other runs are worth more than a traceback in the middle of them
        error = f"{cell.path}: {type(mistake).__name__}: {str(mistake).partition(chr(10))[0]}"
    return {
        "setting": cell.setting.name,
        "values": dict(cell.setting.values),
        "player": cell.player,
        "seed": cell.seed,
        "accuracy": accuracy,
        "error": error,
        "seconds": round(time.monotonic() - begin, 2),
    }


_staged: dict[str, Rehearsal] = {}


def _run_apart(work: Work, cell: Cell) -> Row:
    """Make a run in a process of its own, which gets the data with its first one and keeps them."""
    if not _staged:
        _staged.update({one.player: one for one in work.stage()})
    return run_cell(cell, work, _staged[cell.player])


def _stage_again(
    load: Callable[[], Data], validation: Mapping[str, EvalSet] | None, players: Sequence[str] | None
) -> list[Rehearsal]:
    return rehearsals(load(), validation, players)


def _itself(task: Data) -> Data:
    return task


def _check_lists(seeds: Sequence[int], players: Sequence[str] | None, jobs: int) -> None:
    for name, given in (("--seeds", seeds), ("--players", players or ())):
        if len(set(given)) < len(given):
            raise UserError(f"{name} {' '.join(map(str, given))}: one is given twice; give each once")
    if not seeds:
        raise UserError("--seeds: none is given; give at least one, such as 0")
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: out of range; give a whole number from 1")


def _announce(grid: Sequence[Setting], players: Sequence[str], seeds: Sequence[int], done: int) -> None:
    runs = len(grid) * len(players) * len(seeds)
    sizes = [(len(grid), "setting"), (len(players), "player"), (len(seeds), "seed")]
    product = " x ".join(f"{count} {word}{'' if count == 1 else 's'}" for count, word in sizes)
    before = f", {done} of them done before" if done else ""
    print(f"graphmsda: {product} = {runs} runs{before}; playing the target: {', '.join(players)}", file=sys.stderr)


def _teller(total: int, left: int) -> Callable[[Cell, Row], None]:
    """Return what tells of each run that is done, and how long the others may take."""
    begin, done = time.monotonic(), 0

    def tell(cell: Cell, row: Row) -> None:
        nonlocal done
        done += 1
        name = label(cell.setting.name, cell.setting.values)
        result = f"failed ({row['error']})" if row["accuracy"] is None else f"{100 * row['accuracy']:.1f} %"
        seconds = (time.monotonic() - begin) / done * (left - done)
        time_left = "" if done == left else f", about {seconds / 60:.0f} min left" if seconds >= 90 else ""
        number = total - left + done
        where = f"{name} -> {cell.player}, seed {cell.seed}"
        print(f"{number}/{total} {where}: {result}{time_left}", file=sys.stderr, flush=True)

    return tell


def run_command(given: Namespace, parameters: Mapping[str, Sequence[Any]], settings: dict[str, Any]) -> None:
    """Do what ``graphmsda tune`` is asked, and say what to type next.

    Args:
        given: The command line: data, `players`, `seeds`, `jobs`, `out`.
        parameters: Values of each parameter.
        settings: What all runs have in common.
    """
    reading = {name: getattr(given, name) for name in READING if getattr(given, name) is not None}
    origin: dict[str, Any] = {"task": given.task} if given.task is not None else {}
    if given.task is None:
        refuse(given, ["variant"], "without --task, but only benchmarks have variants")
        origin = {"sources": [str(Path(place)) for place in given.sources or ()]}
        origin |= {} if given.target is None else {"target": str(Path(given.target))}
    elif given.sources or given.target:
        raise UserError("--task was given with --sources or --target; give either a task or your own folders")
    origin["reading"] = {name: str(v) if isinstance(v, Path) else v for name, v in reading.items()}
    root, variant = reading.pop("data_root", None), reading.pop("variant", None)
    reload = partial(load_sources, given.task, given.sources or (), root=root, variant=variant, **reading)
    data = reload(progress=True)
    for note in dict.fromkeys(data.notes):
        print(f"graphmsda: {note}", file=sys.stderr)
    if settings.get("backbone", "auto") == "auto":
        settings["backbone"] = data.backbone
    shape = data.sources[0].x.shape
    if given.task is None and len(shape) == 4 and shape[2] == shape[3]:  # the target's images might tip the scale
        origin["reading"]["image_size"] = int(shape[3])
    seeds = given.seeds or [settings.get("seed", 0)]
    method, fixed = settings.pop("method", "mrf"), settings.pop("parameters")
    rows = tune(
        data, method, parameters, out=given.out, fixed=fixed, players=given.players, seeds=seeds, jobs=given.jobs,
        progress=True, origin=origin, data_root=root, reload=reload, **settings,
    )  # fmt: skip
    places = rank(rows)
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}"
    scored = "its held-out part" if data.validation else "the samples it was adapted to"
    print(f"\nAccuracy (%) on the source that played the target, on {scored}, last step, {which}")
    print(f"{ranking_table(places)}\n\n{verdict(places, [row['error'] for row in rows if row['error'] is not None])}")
    print(f"All runs are in {given.out / RESULTS}, the best setting in {given.out / BEST}; next:")
    where = ""
    if given.task is None and given.target is None:  # then the recipe alone does not say what to adapt to
        flags = [word for name, value in origin["reading"].items() for word in (f"--{name.replace('_', '-')}", value)]
        where = f" {shlex.join(['--sources', *origin['sources'], *map(str, flags)])} --target YOUR-TARGET"
    print(f"  graphmsda fit --config {shlex.quote(str(given.out / BEST))}{where} --out RUN-DIRECTORY")
