"""Tasks by name: ``demo:neon``, ``digits-five:mm``, ``pacs:sketch``."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphmsda.data import demo
from graphmsda.data.benchmarks.benchmark import data_root
from graphmsda.data.benchmarks.catalogue import open_task_listings
from graphmsda.data.benchmarks.catalogue import task_names as benchmark_tasks
from graphmsda.data.task import Loading, build_eval_set, build_task
from graphmsda.domains import EvalSet, Task
from graphmsda.errors import UserError


@dataclass(frozen=True)
class NamedTask:
    """A task with what belongs to it.

    Attributes:
        task: Labelled sources and the unlabelled target.
        test: The target's test part.
        validation: Labelled data of each source that training does not see, by the source's name.
        record: What a result must say of its data: the variant, the files, the draws.
        notes: A sentence for each thing the user should know.
        backbone: The network the paper uses on it, where `auto` would not choose it.
    """

    task: Task
    test: EvalSet
    validation: dict[str, EvalSet]
    record: dict[str, Any]
    notes: list[str]
    backbone: str = "auto"


def find_task(name: str, *, root: str | Path | None = None, variant: str | None = None, **options: Any) -> NamedTask:
    """Return a task by name.

    Args:
        name: A benchmark and its target, such as ``digits-five:mm``, or ``demo:neon``.
        root: Folder below which benchmarks lie; see `graphmsda.data.benchmarks.benchmark.data_root`.
        variant: One of the benchmark's variants; by default its first.
        **options: Fields of `graphmsda.data.task.Loading`.
    """
    benchmark, _, domain = name.partition(":") if isinstance(name, str) else ("", "", "")
    if benchmark == "demo" and domain in demo.DOMAINS:
        task, test = demo.load(domain)
        return NamedTask(task, test, {}, {"task": name}, [])
    if benchmark == "demo" or not domain:
        known = task_names()
        close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"there is no task {name!r}; {hint}choose one of {', '.join(known)}")
    found = open_task_listings(name, data_root(root), variant)
    how = Loading(**{"image_size": found.benchmark.image_size, **options})
    names = [*found.source_names, found.target_name]
    task = build_task(found.sources, found.target, names, how)
    size = task.target.x.shape[-1]

    def labelled(listing: Any, name: str) -> EvalSet:
        return build_eval_set(listing, name, task.classes, size, how)

    validation = zip(found.source_names, found.validation, strict=True)
    return NamedTask(
        task,
        labelled(found.test, found.target_name),
        {source: labelled(listing, source) for source, listing in validation},
        {"task": name, "variant": found.variant, "benchmark": dict(found.record)},
        how.notes,
        found.benchmark.backbone,
    )


def find_test(
    name: str, classes: Sequence[str], *, root: str | Path | None = None, variant: str | None = None, **options: Any
) -> EvalSet:
    """Return the target's test part alone, for a model that knows `classes`; arguments as in `find_task`."""
    if name.startswith("demo:"):
        return find_task(name).test
    found = open_task_listings(name, data_root(root), variant)
    how = Loading(**options)
    return build_eval_set(found.test, found.target_name, classes, how.image_size or found.benchmark.image_size, how)


def task_names() -> list[str]:
    """Return the names that `find_task` knows.

    >>> task_names()[:3], "pacs:sketch" in task_names()
    (['demo:plain', 'demo:neon', 'demo:texture'], True)
    """
    return [*(f"demo:{domain}" for domain in demo.DOMAINS), *benchmark_tasks()]
