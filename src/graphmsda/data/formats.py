"""What lies at a path: the kind is recognised from the path, and asked for where it is not plain."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol, cast

from graphmsda.data.images import is_image_name
from graphmsda.data.listing import Listing, take
from graphmsda.errors import UserError

EXPECTED = "give a folder of images, an archive of one, a list file, or an .npz, .mat, .parquet or .csv file"
PARTS = {
    "train": "train", "training": "train",
    "val": "validation", "valid": "validation", "validation": "validation", "crossval": "validation",
    "test": "test", "testing": "test",
}  # fmt: skip


# Name of each format, and the function that opens it.
FORMATS = {
    "folder": "graphmsda.data.readers.folder:open_folder",
    "archive": "graphmsda.data.readers.archive:open_archive",
    "list": "graphmsda.data.readers.lists:open_list",
    "npz": "graphmsda.data.readers.arrays:open_arrays",
    "mat": "graphmsda.data.readers.matlab:open_matlab",
    "parquet": "graphmsda.data.readers.parquet:open_parquet",
    "csv": "graphmsda.data.readers.tables:open_csv",
    "image": "graphmsda.data.readers.folder:open_image",
}
SUFFIXES = {
    ".zip": "archive", ".tar": "archive", ".tgz": "archive", ".tar.gz": "archive",
    ".tbz2": "archive", ".tar.bz2": "archive", ".txz": "archive", ".tar.xz": "archive", ".txt": "list", ".lst": "list",
    ".npz": "npz", ".mat": "mat", ".parquet": "parquet", ".csv": "csv",
}  # fmt: skip
FILES = ("npz", "mat", "csv", "image")  # formats of which a folder is never one
BESIDE = ("list", "mat")  # formats whose openers look for other parts beside a file
GLANCE = 200  # entries of a folder looked at to see what it is for


class Opener(Protocol):
    """Lists what a path of one format holds; without `labelled` nothing that could be a label is looked at.

    All parts are listed, each item marked with its own in `Listing.parts`; `open_listing` takes the one asked for.
    """

    def __call__(self, path: Path, *, labelled: bool, root: Path | None) -> Listing:
        """List it; `root` matters to files that hold paths."""


def open_listing(
    path: str | Path,
    *,
    labelled: bool,
    part: str | None = None,
    format: str | None = None,
    root: Path | None = None,
    alone: bool = False,
) -> Listing:
    """List what lies at `path`.

    Args:
        path: A folder, archive, list, table, array file or, without labels, a single image.
        labelled: Whether labels are wanted; otherwise nothing that could be a label is looked at.
        part: ``train``, ``validation`` or ``test``, where the place has such a level; ignored where it has none. By
            default everything, or of a list file named for a part, such as ``train.txt``, that part.
        format: One of `FORMATS`, where the path does not tell.
        root: Folder to which the paths in a list or table relate; by default found from where the file lies.
        alone: Leave out files that lie beside the one given and hold its other parts: who names ``x_test.txt`` wants
            that one, whatever part is looked for elsewhere.
    """
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"{path!r}: not a path; {EXPECTED}")
    origin = Path(path).expanduser()
    if not os.path.exists(origin):
        raise UserError(f"{origin}: not found; {EXPECTED}")
    if format is not None and format not in FORMATS:
        raise UserError(f"--format {format}: unknown; choose one of {', '.join(FORMATS)}")
    format = format or recognise(origin)
    module, _, function = FORMATS[format].partition(":")
    if format in FILES and origin.is_dir():
        raise UserError(f"{origin}: a folder; give a {format} file, or leave out --format {format}")
    opener = cast(Opener, getattr(importlib.import_module(module), function))
    if alone and format in BESIDE:
        opener = cast(Opener, partial(cast(Callable[..., Listing], opener), alone=True))
    listing = opener(origin, labelled=labelled, root=root)
    if part is None and format == "list" and origin.is_file():
        from graphmsda.data.readers.lists import part_named

        own = part_named(origin)
        return listing if own is None else take_part(listing, own, told=False)
    return listing if part is None else take_part(listing, part)


def take_part(listing: Listing, part: str, *, told: bool = True) -> Listing:
    """Return one part of a listing that has parts, with a note if it is to be `told`; any other as it is."""
    if listing.parts is None:
        return listing
    rows = [row for row, here in enumerate(listing.parts) if here == part]
    if not rows:
        there = ", ".join(sorted(set(listing.parts)))
        raise UserError(f"{listing.origin}: has no {part} part, only {there}; give the folder or file to use itself")
    note = f"{listing.origin}: using its {part} part, {len(rows):,} of {len(listing):,} samples"
    return take(listing, rows, *([note] if told else []))


def recognise(path: Path) -> str:
    """Return the name of the format of what lies at `path`, or ask for it.

    >>> recognise(Path("pictures.tar.gz"))
    'archive'
    """
    if path.is_dir():
        kinds = sorted(_kinds_inside(path))
        if len(kinds) > 1:
            raise UserError(f"{path}: could be read as {' or as '.join(kinds)}; say which with --format")
        return kinds[0] if kinds else "folder"
    name = path.name.lower()
    for suffix, kind in SUFFIXES.items():
        if name.endswith(suffix):
            return kind
    if is_image_name(name):
        return "image"
    raise UserError(f"{path}: its name does not tell what it is; {EXPECTED}, or say with --format")


def _kinds_inside(folder: Path) -> set[str]:
    """Return what a folder could be, from what lies in it and a little of what lies one level below."""
    kinds: set[str] = set()
    folders: list[str] = []
    try:
        for name, path in _visible(folder):
            stem, _, suffix = name.lower().rpartition(".")
            if suffix == "parquet":
                kinds.add("parquet")
            elif suffix == "txt" and stem in PARTS:
                kinds.add("list")
            elif is_image_name(name):
                kinds.add("folder")
            elif len(folders) < GLANCE and os.path.isdir(path):
                folders.append(path)
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed ({error.strerror}); give a folder you may read") from error
    if any(os.path.basename(path).lower() == "data" and _holds(path, _is_parquet) for path in folders):
        kinds.add("parquet")
    if "list" in kinds:
        # Images beside a list are those it names; only folders that could be classes make a second way to read it.
        kinds -= {"folder"}
    if kinds and _look_like_classes(folders):
        kinds.add("folder")
    return kinds


def _look_like_classes(folders: Sequence[str]) -> bool:
    """Return whether at least two folders hold images, themselves or below a level of parts or of ``images``."""
    count = 0
    for folder in folders:
        if os.path.basename(folder).lower() in (*PARTS, "images"):
            count += sum(_holds(inner, is_image_name) for inner in _glance(folder) if os.path.isdir(inner))
        else:
            count += _holds(folder, is_image_name)
        if count > 1:
            return True
    return False


def _holds(folder: str, wanted: Callable[[str], bool]) -> bool:
    return any(wanted(os.path.basename(path)) for path in _glance(folder))


def _glance(folder: str) -> list[str]:
    """Return some of what lies in a folder: enough to see what it is for, however large it is."""
    try:
        return [path for _, path in islice(_visible(folder), GLANCE)]
    except OSError:
        return []


def _visible(folder: str | Path) -> Iterator[tuple[str, str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield entry.name, entry.path


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(".parquet")
