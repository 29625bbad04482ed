"""Rehearsals: each source in turn plays the unlabelled target, and its own labels tell how well that went.

The real target takes no part. `rehearsals` never looks at it, and `load_sources` does not even open it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from graphmsda.data import demo
from graphmsda.data.benchmarks.benchmark import data_root, resolve_domain
from graphmsda.data.benchmarks.catalogue import find_benchmark
from graphmsda.data.formats import open_listing
from graphmsda.data.listing import Listing, unique_names
from graphmsda.data.named import task_names
from graphmsda.data.task import Loading, build_eval_set, build_task
from graphmsda.domains import Domain, EvalSet, Task
from graphmsda.errors import UserError


@dataclass(frozen=True)
class Rehearsal:
    """A task in which a source plays the target.

    Attributes:
        player: Name of that source.
        task: The other sources, and the player without its labels.
        evaluation: Labelled samples of the player, for measuring the finished model alone.
    """

    player: str
    task: Task
    evaluation: EvalSet


@dataclass(frozen=True)
class Sources:
    """The labelled domains of a task without its target.

    Attributes:
        sources: Labelled domains.
        classes: Names of the classes, by index.
        feature_names: What feature vectors are made of, where the data say so.
        validation: Labelled data of a source that training does not see, by the source's name.
        notes: A sentence for each thing the user should know.
        backbone: The network the paper uses on it, where `auto` would not choose it.
    """

    sources: tuple[Domain, ...]
    classes: tuple[str, ...]
    feature_names: tuple[str, ...] | None = None
    validation: Mapping[str, EvalSet] = field(default_factory=dict)
    notes: Sequence[str] = ()
    backbone: str = "auto"


def rehearsals(
    task: Task | Sources, validation: Mapping[str, EvalSet] | None = None, only: Sequence[str] | None = None
) -> list[Rehearsal]:
    """Return a rehearsal for each source; all of them share the tensors of `task`, whose target is not looked at.

    Args:
        task: Labelled sources, at least two.
        validation: Labelled data of a source that training does not see, by the source's name. A player that has such
            data is scored on them, any other on the samples it was adapted to.
        only: Names of the sources that play; by default all.
    """
    if validation is None:
        validation = task.validation if isinstance(task, Sources) else {}
    names = [source.name for source in task.sources]
    if len(names) < 2:
        raise UserError(
            f"there is one source, {names[0]!r}: when it plays the target none is left to train on; give at least two "
            "labelled sources"
        )
    for name in only or ():
        if name not in names:
            raise UserError(f"--players {name}: there is no such source; choose from {', '.join(names)}")
    found = []
    for player in task.sources:
        if only and player.name not in only:
            continue
        rest = tuple(source for source in task.sources if source is not player)
        scored = validation.get(player.name) or EvalSet(player.name, player.x, player.y)
        staged = Task(rest, player.unlabelled(), task.classes, task.feature_names)
        found.append(Rehearsal(player.name, staged, scored))
    return found


def load_sources(
    name: str | None = None,
    places: Sequence[str | Path] = (),
    *,
    root: str | Path | None = None,
    variant: str | None = None,
    **options: Any,
) -> Sources:
    """Read the sources of a task by name or from places of your own; nothing of the target is opened.

    Args:
        name: A benchmark and its target, such as ``digits-five:mm``, or ``demo:neon``.
        places: Labelled domains instead: whatever `graphmsda.data.formats.open_listing` can list.
        root: Folder below which benchmarks lie; see `graphmsda.data.benchmarks.benchmark.data_root`.
        variant: One of the benchmark's variants; by default its first.
        **options: Fields of `graphmsda.data.task.Loading`.
    """
    if name is None:
        return _from_places(places, Loading(**options))
    benchmark, _, target = name.partition(":") if isinstance(name, str) else ("", "", "")
    if benchmark == "demo" and target in demo.DOMAINS:
        return Sources(tuple(_demo_domain(other) for other in demo.DOMAINS if other != target), demo.CLASSES)
    if benchmark == "demo" or not target:
        close = difflib.get_close_matches(str(name), task_names(), n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"there is no task {name!r}; {hint}choose one of {', '.join(task_names())}")
    return _from_benchmark(benchmark, target, data_root(root), variant, options)


def _demo_domain(name: str) -> Domain:
    x, y, _ = demo.render(name, "train")
    return Domain(name, torch.tensor(x), torch.tensor(y))


def _from_benchmark(name: str, target: str, root: Path, variant: str | None, options: Mapping[str, Any]) -> Sources:
    benchmark = find_benchmark(name)
    left_out = resolve_domain(benchmark, target)
    how = Loading(**{"image_size": benchmark.image_size, **options})
    place = root / benchmark.name
    names = [domain for domain in benchmark.domains if domain != left_out]
    trained, held = (
        [benchmark.open(place, domain, part, labelled=True, variant=variant) for domain in names]
        for part in ("train", "validation")
    )
    sources, classes, features = _read(trained, names, how)
    size = sources[0].x.shape[-1]
    validation = {
        domain: build_eval_set(listing, domain, classes, size, how) for domain, listing in zip(names, held, strict=True)
    }
    return Sources(sources, classes, features, validation, how.notes, benchmark.backbone)


def _from_places(places: Sequence[str | Path], how: Loading) -> Sources:
    if isinstance(places, str | Path):
        places = [places]
    if not places:
        raise UserError("no data: give --sources PATH PATH ..., or --task NAME such as demo:neon")
    listings = [
        open_listing(path, labelled=True, part="train", format=how.format, root=how.root, alone=True) for path in places
    ]
    for number, listing in enumerate(listings):
        for other in listings[:number]:
            here, there = listing.origin.resolve(), other.origin.resolve()
            if here == there:
                raise UserError(f"{listing.origin}: given as two sources; give each domain once")
            if here in there.parents or there in here.parents:
                raise UserError(f"{listing.origin} and {other.origin}: one lies in the other; give separate folders")
    sources, classes, features = _read(listings, unique_names(listings), how)
    return Sources(sources, classes, features, {}, how.notes)


def _read(
    listings: Sequence[Listing], names: Sequence[str], how: Loading
) -> tuple[tuple[Domain, ...], tuple[str, ...], tuple[str, ...] | None]:
    # A task needs a target: a source stands in for it, read out of the cache again and dropped here.
    task = build_task(listings, listings[0], [*names, names[0]], how)
    return task.sources, task.classes, task.feature_names
