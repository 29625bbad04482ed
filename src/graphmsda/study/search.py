"""A search: a study whose cells are proposed one after the other, each from what came of those before it.

::

    trials/mm/trial-1.json    a setting to try for a target; the first is the default
    recipes/mm/mrf.yaml       the best one, for ``fit --config`` and ``study table --recipes``

A trial is a file that only one process can make, and its runs are cells like any other, so a search is stopped, resumed
and shared as every study is. Nothing else is kept: the next setting is proposed from the trials and results that lie in
the folder.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from graphmsda.engine.settings import FREE_TO_CHANGE, Settings
from graphmsda.errors import UserError
from graphmsda.files import write_text
from graphmsda.study import attempts
from graphmsda.study.cells import RESULT, Cell, Study, open_study, read_study
from graphmsda.study.data import Data, load
from graphmsda.study.executors import Executor, here
from graphmsda.study.run import check_cells, run_study
from graphmsda.study.space import Past, check_optuna, propose
from graphmsda.study.trials import DEFAULT, Search, is_higher_better, judge, make_trial, ranked, read_trials
from graphmsda.study.work import Work, staged
from graphmsda.tuning.cells import plain
from graphmsda.tuning.grid import place_of, told

RECIPES = "recipes"
HELD_OUT = ("source-accuracy", "importance-weighted", "deep-embedded-validation")  # which need such parts of sources


def run_search(
    out: str | Path,
    data: Data,
    search: Search,
    *,
    trials: int,
    executor: Executor = here,
    jobs: int = 1,
    progress: bool = False,
    recipes: Path | None = None,
) -> Study:
    """Try settings until there are so many trials, and write the best one down as a recipe.

    Args:
        out: The study's folder, which several such calls may share.
        data: Its data.
        search: What is searched.
        trials: How many settings are tried for the target in all, by whomever; the default is the first.
        executor: Where cells are worked on.
        jobs: How many at a time: as many trials are proposed together as keep them busy.
        progress: Tell on standard error what is being done.
        recipes: Folder for the best setting; by default it lies in the study's.
    """
    check_optuna()
    out = Path(out)
    about = {"kind": "search", **data.about(), **search.about()}
    open_study(out, about, make=False)
    ends = [{name: value} for name, part in search.space.items() for value in part.ends]
    first = [cell for values in [None, *ends] for cell in search.cells(data, values)]
    check_cells(first, Work(out, data, "search"), progress)
    _check_held_out(search, data)
    default = default_values(search, data)
    open_study(out, about)
    together = max(1, math.ceil(jobs / len(search.cells(data, None))))
    worked: set[int] = set()

    def work(numbers: Sequence[int]) -> None:
        worked.update(numbers)
        known = read_trials(out, search.target)
        own = {number: search.cells(data, known[number]) for number in numbers}
        cells = [cell for number in numbers for cell in own[number]]
        study = run_study(
            out, "search", data, cells, executor=executor, jobs=jobs, progress=progress, about=search.about()
        )
        for number in numbers if progress else ():
            value = judge(study, own[number], search.score)
            result = "failed" if value is None else f"{search.score} {value:.4g}"
            setting = ", ".join(f"{name} {told(each)}" for name, each in (known[number] or {}).items()) or DEFAULT
            print(
                f"graphmsda: -> {search.target}, trial {number} of {trials}, {setting}: {result}",
                file=sys.stderr,
                flush=True,
            )

    def left(*, begun: bool) -> list[int]:
        """Trials that are not finished, with or without those that somebody is at."""
        found = {number: search.cells(data, values) for number, values in read_trials(out, search.target).items()}
        return [n for n, cells in found.items() if n not in worked and not _is_finished(out, cells, begun=begun)]

    if orphans := left(begun=True):  # what a killed command has begun comes first
        work(orphans)
    while True:
        mine: list[int] = []
        while len(mine) < together and (number := _begin(out, data, search, default, trials)) is not None:
            mine.append(number)
        if not mine:
            break
        work(mine)
    if others := left(begun=False):  # which they finish, or this command should they vanish
        work(others)
    if progress and len(read_trials(out, search.target)) < trials:
        print("graphmsda: all settings that the given values allow have been tried", file=sys.stderr)
    study = read_study(out)
    _write_best(out, data, search, study, recipes or out / RECIPES)
    return study


def default_values(search: Search, data: Data) -> dict[str, Any]:
    """Return what the default has for each parameter of the search."""
    (cell, *_) = search.cells(data, None)
    task, settings = staged(cell, load(data, cell.target))
    resolved = Settings(**settings).resolved(task, dict(data.reading).get("data_root"))
    places = {name: place_of(search.method, name) for name in search.space}
    return {
        name: resolved.parameters[field] if home == "method" else getattr(resolved, field)
        for name, (home, field) in places.items()
    }


def _check_held_out(search: Search, data: Data) -> None:
    """Refuse a score that needs labelled source samples that training has not seen, where there are none."""
    if search.score in HELD_OUT and data.benchmark != "demo" and not load(data, search.target).validation:
        raise UserError(
            f"--score {search.score}: no part of the sources is kept apart here, and on what was trained on it would "
            "say little; choose another, such as rehearsal"
        )


def _begin(out: Path, data: Data, search: Search, default: Mapping[str, Any], trials: int) -> int | None:
    """Make the next trial and return its number; None where there are enough, or nothing is left to try."""
    while True:
        known = read_trials(out, search.target)
        number = max(known, default=0) + 1
        if number > trials:
            return None
        values = propose(search.space, _past(out, data, search, default, known)) if known else None
        if known and values is None:
            return None
        if make_trial(out, search.target, number, values, values or default):
            return number
        time.sleep(0.1)  # another was faster: its trial counts for the next proposal


def _past(
    out: Path, data: Data, search: Search, default: Mapping[str, Any], known: Mapping[int, Mapping[str, Any] | None]
) -> list[Past]:
    study = read_study(out)
    sign = 1 if is_higher_better(search.score) else -1
    found = []
    for values in known.values():
        cells = search.cells(data, values)
        value = judge(study, cells, search.score)
        running = any(cell.path not in study.rows and cell.path not in study.errors for cell in cells)
        found.append(Past(default if values is None else values, None if value is None else sign * value, running))
    return found


def _is_finished(out: Path, cells: Sequence[Cell], *, begun: bool) -> bool:
    """Whether nothing is left to do of a trial, or nothing that nobody is at."""
    left = [cell for cell in cells if not (out / "runs" / cell.path / RESULT).is_file()]
    if not begun:
        return not left
    states = [attempts.newest(out / "cells" / cell.path)[1] for cell in left]
    return not left or any(one.get("state") == attempts.RUNNING and not attempts.is_gone(one) for one in states)


def _write_best(out: Path, data: Data, search: Search, study: Study, recipes: Path) -> None:
    trials = {number: search.cells(data, values) for number, values in read_trials(out, search.target).items()}
    places = ranked(study, trials, search.score)
    if not places:
        errors = [study.errors[cell.path] for cells in trials.values() for cell in cells if cell.path in study.errors]
        why = f"the first failed with: {errors[0]}" if errors else f"{search.score} says nothing of such runs"
        raise UserError(
            f"--out {out}: no trial for {search.target} has a score, {why}; mend that or give another --score"
        )
    number, value = places[0]
    cell = trials[number][0]
    rest = {name: each for name, each in cell.settings.items() if name == "preset" or name not in FREE_TO_CHANGE}
    settings = {"method": search.method, **rest, "parameters": dict(cell.parameters)}
    head = f"# Chosen by {search.score}, {value:.4g}, of {len(places)} settings: trial {number} ({cell.setting}).\n"
    head += f"# Target: {search.target}. Seeds: {', '.join(map(str, search.seeds))}.\n"
    body = yaml.safe_dump({"settings": settings}, sort_keys=False, allow_unicode=True)
    file = recipes / plain(search.target) / f"{search.method}.yaml"
    write_text(file, head + body)
