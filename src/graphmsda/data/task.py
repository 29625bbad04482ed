"""Folders, files and names to a `Task`, with every mistake told in one sentence."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from graphmsda.data.formats import open_listing
from graphmsda.data.listing import Listing
from graphmsda.data.listing import choose_image_size as choose_image_size
from graphmsda.domains import Domain, EvalSet, Task, Unlabelled
from graphmsda.errors import UserError

MOST_UNREADABLE = 0.05  # of a domain: a few damaged files are daily life, more mean that something went wrong
CHUNK = 256  # images decoded between two movements of the progress bar


def load_task(
    sources: Sequence[str | Path], target: str | Path, *, image_size: int | None = None, progress: bool = False
) -> Task:
    """Read labelled `sources` and an unlabelled `target` from folders or ``.npz`` files.

    Args:
        sources: Folders laid out as ``class/image``, or ``.npz`` files with ``x`` and ``y``.
        target: A folder of images, however arranged, or an ``.npz`` file with ``x``. Labels in it are not looked at.
        image_size: Side to which images are resized; by default 32 for small images, 224 for others, and the arrays'
            own size where all domains are arrays of one size.
        progress: Show a progress bar on stderr while decoding.
    """
    return load_task_report(sources, target, image_size=image_size, progress=progress)[0]


def load_task_report(
    sources: Sequence[str | Path], target: str | Path, *, image_size: int | None = None, progress: bool = False
) -> tuple[Task, list[str]]:
    """Do as `load_task`, and also return one sentence for each domain of which images had to be skipped."""
    if isinstance(sources, str | Path):
        sources = [sources]
    if not sources:
        raise UserError("no source domain was given; give at least one labelled folder or .npz file")
    if image_size is not None and image_size < 1:
        raise UserError(f"image_size is {image_size}; give a side of at least 1 pixel, such as 32 or 224")
    listings = [*(open_listing(path, labelled=True) for path in sources), open_listing(target, labelled=False)]
    _check_places(listings)
    _check_kinds(listings)
    classes = _shared_classes(listings[:-1])
    if image_size is None:
        image_size = choose_image_size(listings)

    index = {name: number for number, name in enumerate(classes)}
    names = _unique_names(listings)
    notes: list[str] = []
    domains: list[Domain] = []
    with _bar(sum(map(len, listings)), shown=progress) as advance:
        for name, listing in zip(names, listings, strict=True):
            x, kept = _read(listing, image_size, notes, advance)
            if listing.labels is not None:
                y = torch.tensor([index[listing.labels[item]] for item in kept], dtype=torch.int64)
                domains.append(Domain(name, x, y))
    return Task(tuple(domains), Unlabelled(names[-1], x), classes), notes


def find_task(name: str) -> tuple[Task, EvalSet]:
    """Return an embedded task and the target's test part by name, such as ``demo:neon``."""
    from graphmsda.data import demo

    known = task_names()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UserError(f"there is no embedded task {name!r}; {hint}choose one of {', '.join(known)}")
    return demo.load(name.removeprefix("demo:"))


def task_names() -> list[str]:
    """Return the names that `find_task` knows.

    >>> task_names()
    ['demo:plain', 'demo:neon', 'demo:texture', 'demo:camera', 'demo:chalk']
    """
    from graphmsda.data import demo

    return [f"demo:{domain}" for domain in demo.DOMAINS]


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


def _check_kinds(listings: Sequence[Listing]) -> None:
    first = listings[0]
    for other in listings[1:]:
        if first.feature_count == other.feature_count:
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


def _shared_classes(sources: Sequence[Listing]) -> tuple[str, ...]:
    sets = [set(source.labels or ()) for source in sources]
    for source, found in zip(sources, sets, strict=True):
        if len(found) < 2:
            raise UserError(
                f"{source.origin}: only one class ({min(found)}) in it; give sources with at least two classes"
            )
    everything = set().union(*sets)
    missing = [
        f"{source.origin} lacks {_enumerate(sorted(everything - found, key=_class_order))}"
        for source, found in zip(sources, sets, strict=True)
        if found != everything
    ]
    if missing:
        raise UserError(f"the classes of the sources differ: {'; '.join(missing)}; give all sources the same classes")
    return tuple(sorted(everything, key=_class_order))


def _class_order(name: str) -> tuple[bool, int, str]:
    number = int(name) if re.fullmatch(r"-?[0-9]{1,18}", name) else None
    return number is None, number or 0, name


def _enumerate(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more


def _unique_names(listings: Sequence[Listing]) -> list[str]:
    """Return the names of the domains, told apart by their parent folder, or failing that by a number."""
    names = [listing.name for listing in listings]
    count = Counter(names)
    names = [
        f"{name} ({listing.origin.absolute().parent.name})" if count[name] > 1 else name
        for name, listing in zip(names, listings, strict=True)
    ]
    result: list[str] = []
    for name in names:
        unique, number = name, 1
        while unique in result:
            number += 1
            unique = f"{name} {number}"
        result.append(unique)
    return result


def _read(
    listing: Listing, image_size: int | None, notes: list[str], advance: Callable[[str, int], None]
) -> tuple[Tensor, list[int]]:
    """Decode a whole domain, chunk by chunk; return the samples and the items they came from."""
    x: Tensor | None = None
    kept: list[int] = []
    failures: list[tuple[int, str]] = []
    for start in range(0, len(listing), CHUNK):
        indices = range(start, min(start + CHUNK, len(listing)))
        decoded = listing.read(indices, image_size)
        if x is None:  # one allocation for all, since joining chunks at the end would hold everything twice
            x = torch.empty((len(listing), *decoded.x.shape[1:]), dtype=decoded.x.dtype)
        x[len(kept) : len(kept) + len(decoded.kept)] = decoded.x
        kept += [indices[position] for position in decoded.kept]
        failures += [(indices[position], reason) for position, reason in decoded.failures]
        advance(listing.name, len(indices))
    assert x is not None  # listings are never empty
    if failures:
        notes.append(_account(listing, failures))
    return x[: len(kept)], kept


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


@contextmanager
def _bar(total: int, *, shown: bool) -> Iterator[Callable[[str, int], None]]:
    """Yield a function that moves the progress bar by a number of images of a domain."""
    if not shown:
        yield lambda name, count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("reading {task.fields[place]}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task("", total=total, place="")
        yield lambda name, count: bar.update(row, advance=count, place=name)
