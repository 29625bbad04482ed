"""Paths and names to a `Task`, with every mistake told in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from graphmsda.data.classes import evaluation_indices, match_classes
from graphmsda.data.formats import open_listing
from graphmsda.data.listing import Listing, take, unique_names
from graphmsda.data.listing import choose_image_size as choose_image_size
from graphmsda.data.progress import amount_bar
from graphmsda.data.store import open_store
from graphmsda.domains import Domain, EvalSet, Samples, Task, Unlabelled
from graphmsda.errors import UserError

MOST_UNREADABLE = 0.05  # of a domain: a few damaged files are daily life, more mean that something went wrong
LARGEST_SIDE = 4096  # of images in training: some fifty megabytes each
CHUNK = 256  # samples read between two movements of the progress bar


@dataclass(frozen=True)
class Loading:
    """How data are read.

    Attributes:
        image_size: Side to which images are resized; by default 32 for small images, 224 for others, and the arrays'
            own size where all domains are arrays of one size.
        classes: What becomes of classes that some sources lack: ``error``, ``common`` or ``union``.
        format: One of `graphmsda.data.formats.FORMATS`, where paths do not tell.
        root: Folder to which paths in list files relate, where it cannot be found from the list.
        cache: Folder for decoded pictures; ``none`` keeps them for this process only.
        progress: Show a progress bar on stderr.
        notes: Gains a sentence for each thing the user should know.
    """

    image_size: int | None = None
    classes: str = "error"
    format: str | None = None
    root: Path | None = None
    cache: str | Path | None = None
    progress: bool = False
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.image_size
        if size is not None and (not isinstance(size, int) or not 1 <= size <= LARGEST_SIDE):
            raise UserError(
                f"image_size is {size}; give a side of at least 1 pixel and at most {LARGEST_SIDE}, such as 32 or 224"
            )
        for name, place in (("root", self.root), ("cache", self.cache)):  # what a recipe says may be anything
            if place is not None and not isinstance(place, str | Path):
                raise UserError(f"{name} is {place!r}; give the path of a folder")
        if self.root is not None:
            object.__setattr__(self, "root", Path(self.root).expanduser())


def load_task(sources: Sequence[str | Path], target: str | Path, **options: Any) -> Task:
    """Read labelled `sources` and an unlabelled `target`.

    Where a place has a train and a test part, the train part is taken. Of the target no label is looked at.

    Args:
        sources: Whatever `open_listing` can list with labels: ``class/image`` folders, archives, lists, tables, arrays.
        target: The same, or images in any arrangement.
        **options: Fields of `Loading`.
    """
    return load_task_report(sources, target, **options)[0]


def load_task_report(sources: Sequence[str | Path], target: str | Path, **options: Any) -> tuple[Task, list[str]]:
    """Do as `load_task`, and also return a sentence for each thing the user should know of the data."""
    how = Loading(**options)
    if isinstance(sources, str | Path):
        sources = [sources]
    if not sources:
        raise UserError("no source domain was given; give at least one labelled folder or file")
    listings = [
        open_listing(path, labelled=labelled, part="train", format=how.format, root=how.root, alone=True)
        for path, labelled in (*((path, True) for path in sources), (target, False))
    ]
    _check_places(listings)
    told = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    reading = {name: value for name, value in told.items() if name not in ("progress", "notes") and value is not None}
    origin = {"reading": reading, "sources": [str(Path(path)) for path in sources], "target": str(Path(target))}
    task = build_task(listings[:-1], listings[-1], unique_names(listings), how)
    return replace(task, origin=origin), how.notes


def build_task(sources: Sequence[Listing], target: Listing, names: Sequence[str], how: Loading) -> Task:
    """Match the classes of the sources and decode everything."""
    listings = [*sources, target]
    _check_kinds(listings, how.notes)
    matched = match_classes(sources, how.classes)
    image_size = how.image_size or choose_image_size(listings)
    how.notes.extend(note for listing in listings for note in listing.notes)
    how.notes.extend(matched.notes)
    domains = []
    for name, listing, rows, indices in zip(names, sources, matched.rows, matched.indices, strict=False):
        chosen = listing if len(rows) == len(listing) else take(listing, rows)
        x, kept = read_samples(chosen, image_size, how)
        domains.append(Domain(name, x, torch.tensor(indices, dtype=torch.int64)[kept]))
    x, _ = read_samples(target, image_size, how)
    return Task(tuple(domains), Unlabelled(names[-1], x), matched.classes, sources[0].feature_names)


def build_eval_set(listing: Listing, name: str, classes: Sequence[str], image_size: int, how: Loading) -> EvalSet:
    """Decode labelled data to measure a model with `classes` on."""
    indices = evaluation_indices(listing.labels or (), classes, listing.origin, how.notes)
    x, kept = read_samples(listing, image_size, how)
    return EvalSet(name, x, torch.tensor(indices, dtype=torch.int64)[kept])


def read_samples(listing: Listing, image_size: int | None, how: Loading) -> tuple[Samples, list[int]]:
    """Return the samples of a listing and the items they came from; pictures come out of the cache."""
    x: Samples
    with amount_bar(f"reading {listing.name}", len(listing), enabled=how.progress) as show:
        if listing.feature_count is None and image_size is not None:
            done = 0

            def advance(count: int) -> None:
                nonlocal done
                done += count
                show(done)

            stored = open_store(listing, image_size, cache=how.cache, advance=advance)
            x, kept, failures = stored.x, stored.kept, stored.failures
            how.notes.extend(stored.notes)
        else:  # arrays of one shape, and feature vectors, are in memory as they are
            decoded = listing.read(range(len(listing)), None)
            x, kept, failures = decoded.x, decoded.kept, decoded.failures
    if failures:
        how.notes.append(_account(listing, failures))
    return x, kept


def _check_places(listings: Sequence[Listing]) -> None:
    for number, listing in enumerate(listings):
        here = listing.origin.resolve()
        for other in listings[:number]:
            there = other.origin.resolve()
            if here == there:
                role = "both a source and the target" if listing is listings[-1] else "two sources"
                raise UserError(f"{listing.origin}: given as {role}; give each domain once")
            if here in there.parents or there in here.parents:
                inner, outer = (other, listing) if here in there.parents else (listing, other)
                raise UserError(f"{inner.origin}: lies inside {outer.origin}, another domain; give separate folders")


def _check_kinds(listings: Sequence[Listing], notes: list[str]) -> None:
    first = listings[0]
    for other in listings[1:]:
        if first.feature_count == other.feature_count:
            check_columns(str(first.origin), first.feature_names, other, notes)
            continue
        if first.feature_count is None or other.feature_count is None:
            pictures, features = (first, other) if first.feature_count is None else (other, first)
            raise UserError(
                f"{pictures.origin} holds images and {features.origin} feature vectors; give one kind for all domains"
            )
        raise UserError(
            f"{first.origin} has {first.feature_count} features and {other.origin} {other.feature_count}; "
            "give the same features for all domains"
        )


def check_columns(first: str, one: tuple[str, ...] | None, other: Listing, notes: list[str]) -> None:
    """Refuse the columns of `first`, which are `one`, in another order, which would train well and mean nothing."""
    two = other.feature_names
    if one is None or two is None or one == two:
        return
    place = next(place for place, (name, its) in enumerate(zip(one, two, strict=True)) if name != its)
    if sorted(one) == sorted(two):
        raise UserError(
            f"{other.origin}: its columns are those of {first} in another order (feature {place + 1} is "
            f"{two[place]!r}, not {one[place]!r}); write them in one order"
        )
    notes.append(
        f"{other.origin}: its columns have other names than those of {first} and were taken in their order "
        f"(feature {place + 1} is {two[place]!r} and {one[place]!r})"
    )


def _account(listing: Listing, failures: list[tuple[int, str]]) -> str:
    """Return a note on the skipped images, or raise if there are too many."""
    item, reason = failures[0]
    found = f"{listing.origin}: {len(failures)} of {len(listing)} images could not be read"
    first = f"(first: {listing.item_names[item]}, {reason})"
    if len(failures) == len(listing):
        raise UserError(f"{found} {first}; give a folder with readable images")
    if len(failures) > MOST_UNREADABLE * len(listing):
        raise UserError(f"{found} {first}; mend or remove them, for at most {MOST_UNREADABLE:.0%} are skipped")
    return f"{found} and were skipped {first}"
