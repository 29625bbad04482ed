"""The data of a finished run: samples of each source that training did not see where there are any, and the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphmsda.data import demo
from graphmsda.data.named import NamedTask, find_task
from graphmsda.domains import EvalSet, Samples, Task
from graphmsda.errors import UserError
from graphmsda.run import Run

KEPT = 4  # tasks in memory: many runs of few tasks are compared


@dataclass(frozen=True)
class RunData:
    """What a model is judged by.

    Attributes:
        sources: Labelled samples by source; the names are the task's.
        target: Unlabelled samples of the target, as training had them.
        held_out: Whether training did not see the sources' samples.
        test: Labelled samples of the target, where there are any: for measuring how good a score or an estimate is.
    """

    sources: tuple[EvalSet, ...]
    target: Samples
    held_out: bool
    test: EvalSet | None = None


def find_data(run: Run, task: Task | NamedTask | None = None, **reading: Any) -> RunData:
    """Return the data of a run: those given, or read again from where the run had them.

    Args:
        run: The run.
        task: Its data, where they are in memory already.
        reading: What has changed since, of `graphmsda.reading.READING`: ``data_root``, ``variant``, ``cache``.
    """
    return data_of(run.about["data"], run.path, task, **reading)


def data_of(about: Mapping[str, Any], path: Path, task: Task | NamedTask | None = None, **reading: Any) -> RunData:
    """Return the data of a run by what its configuration says of them; `path` is its folder, for what goes wrong."""
    if isinstance(task, NamedTask):
        return _of_named(task)
    rehearsal = about.get("rehearsal")
    origin = about if rehearsal is None else rehearsal
    given = (origin.get("reading") or {}) | {name: value for name, value in reading.items() if value is not None}
    if "variant" in origin and "variant" not in given:
        given["variant"] = origin["variant"]
    options = tuple(sorted((name, str(v) if name in ("cache", "data_root") else v) for name, v in given.items() if v))
    if isinstance(task, Task):
        return _of_task(task, None if "sources" not in about else _held_parts(task, about["sources"], options))
    if rehearsal is not None:
        places = tuple(rehearsal.get("sources", ()))
        return _of_rehearsal(rehearsal.get("task"), places, rehearsal["player"], options)
    if "task" in about:
        return _named(about["task"], options)
    if "sources" in about:
        return _own(tuple(about["sources"]), about["target"], options)
    raise UserError(f"{path}: does not say where its data lie; give a run of `graphmsda fit`, or its task")


@lru_cache(maxsize=KEPT)
def _named(name: str, options: tuple[tuple[str, Any], ...]) -> RunData:
    given = dict(options)
    root, variant = given.pop("data_root", None), given.pop("variant", None)
    return _of_named(find_task(name, root=root, variant=variant, progress=True, **given))


def _of_named(named: NamedTask) -> RunData:
    names = [source.name for source in named.task.sources]
    held = named.validation
    if not held and str(named.record.get("task", "")).startswith("demo:"):
        held = {name: _demo_test(name) for name in names if name in demo.DOMAINS}
    data = _of_task(named.task, tuple(held[name] for name in names) if set(names) <= held.keys() else None)
    return RunData(data.sources, data.target, data.held_out, named.test)


def _of_task(task: Task, held: Sequence[EvalSet] | None = None) -> RunData:
    sources = held or tuple(EvalSet(source.name, source.x, source.y) for source in task.sources)
    return RunData(tuple(sources), task.target.x, held is not None)


def _demo_test(name: str) -> EvalSet:
    x, y, _ = demo.render(name, "test")
    return EvalSet(name, torch.tensor(x), torch.tensor(y))


def _of_rehearsal(
    name: str | None, places: tuple[str, ...], player: str, options: tuple[tuple[str, Any], ...]
) -> RunData:
    from graphmsda.rehearsal import rehearsals

    # What lies in a user's folders may change while a process runs; benchmarks do not.
    sources = _sources.__wrapped__(name, places, options) if name is None else _sources(name, places, options)
    (staged,) = rehearsals(sources, only=[player])
    held = dict(sources.validation)
    if not held and name is not None and name.startswith("demo:"):
        held = {source.name: _demo_test(source.name) for source in sources.sources}
    rest = [source.name for source in staged.task.sources]
    data = _of_task(staged.task, tuple(held[other] for other in rest) if set(rest) <= held.keys() else None)
    return RunData(data.sources, data.target, data.held_out, held.get(player) or staged.evaluation)


@lru_cache(maxsize=1)
def _sources(name: str | None, places: tuple[str, ...], options: tuple[tuple[str, Any], ...]) -> Any:
    from graphmsda.rehearsal import load_sources

    given = dict(options)
    root, variant = given.pop("data_root", None), given.pop("variant", None)
    return load_sources(name, places, root=root, variant=variant, **given)


def _own(places: tuple[str, ...], target: str, options: tuple[tuple[str, Any], ...]) -> RunData:
    from graphmsda.data.task import load_task_report

    task = load_task_report(places, target, progress=True, **_of_loading(options))[0]
    return _of_task(task, _held_parts(task, places, options))


def _held_parts(task: Task, places: Sequence[str], options: tuple[tuple[str, Any], ...]) -> tuple[EvalSet, ...] | None:
    """Return the validation or test parts of places that have such, None where one has none."""
    from graphmsda.data.formats import open_listing, take_part
    from graphmsda.data.task import Loading, build_eval_set

    how = Loading(**_of_loading(options))
    held = []
    for place, source in zip(places, task.sources, strict=True):
        listing = open_listing(place, labelled=True, format=how.format, root=how.root, alone=True)
        part = next((part for part in ("validation", "test") if part in (listing.parts or ())), None)
        if part is None:
            return None
        size = task.target.x.shape[-1] if task.is_images else 0
        held.append(build_eval_set(take_part(listing, part, told=False), source.name, task.classes, size, how))
    return tuple(held)


def _of_loading(options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return {name: value for name, value in options if name not in ("data_root", "variant")}


def draw(x: Samples, most: int, seed: int = 0) -> Tensor:
    """Return the places of at most `most` samples, drawn the same way each time, in their order."""
    if len(x) <= most:
        return torch.arange(len(x))
    return torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:most].sort().values
