"""Which images of a domain belong to a part, by the list files that come with PACS and DomainNet.

The lists name images by path. Images are looked up by class folder and name without suffix, so that the same lists
serve a folder, an archive and a re-encoded copy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphmsda.data.benchmarks.benchmark import item_key
from graphmsda.data.listing import Listing
from graphmsda.data.readers.lists import read_list
from graphmsda.errors import UserError

MOST_NAMED = 5


def find_list(place: Path, name: str, folders: Sequence[str]) -> Path | None:
    """Return the list file called `name` in `place` or in one of its `folders`."""
    candidates = (place / folder / name for folder in ("", *folders))
    return next((candidate for candidate in candidates if os.path.isfile(candidate)), None)


def rows_by_key(listing: Listing) -> dict[str, int]:
    """Return the row of each image by what it is called."""
    return {item_key(name): row for row, name in enumerate(listing.item_names)}


def rows_in_list(listing: Listing, rows: Mapping[str, int], path: Path, *, classes: int) -> list[int]:
    """Return the rows of the images that a list names, in the order of the list.

    Where the listing has labels, the class is the folder's name and the number in the list must agree with it; where
    it has none, the numbers are not looked at.

    Args:
        listing: The whole domain.
        rows: What `rows_by_key` says of it.
        path: Lines of ``path label``.
        classes: Number of classes; labels run from 0 or from 1.
    """
    lines = read_list(path, labelled=listing.labels is not None)
    absent = [line.path for line in lines if item_key(line.path) not in rows]
    if absent:
        first = ", ".join(absent[:MOST_NAMED])
        raise UserError(
            f"{path}: {len(absent):,} of the {len(lines):,} images it names are not in {listing.origin} "
            f"(first: {first}); complete the images or take the list that belongs to them"
        )
    found = [rows[item_key(line.path)] for line in lines]
    if listing.labels is not None:
        folders = [listing.labels[row] for row in found]
        _check_labels(path, list(zip(folders, (line.label or "" for line in lines), strict=True)), classes)
    return list(dict.fromkeys(found))


def _check_labels(path: Path, pairs: Sequence[tuple[str, str]], classes: int) -> None:
    folder_of: dict[str, str] = {}
    for folder, label in pairs:
        if not (label.isascii() and label.isdigit() and int(label) <= classes):
            raise UserError(
                f"{path}: label {label!r} of class {folder} is not a number from 0 to {classes}; mend the list"
            )
        if folder_of.setdefault(label, folder) != folder:
            raise UserError(
                f"{path}: label {label} stands for the class folders {folder_of[label]} and {folder}; "
                "take the list that belongs to these images"
            )
