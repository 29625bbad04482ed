"""Where a picture lies says to which part and class it belongs: the rules that folders and archives share."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence

from graphmsda.data.formats import PARTS
from graphmsda.errors import UserError


def arrange(
    place: object, paths: Sequence[str], *, labelled: bool, wrapped: bool = False
) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Return the class and the part of each picture; None for the classes if not asked for, for the parts if none.

    Below `place` may lie one folder ``images`` that holds everything else, then ``train`` beside ``test`` or
    ``validation`` (`PARTS` has the spellings), then the class folders. Anything deeper belongs to its class.

    Args:
        place: What to call the folder or archive in errors.
        paths: Path of each picture below `place`, with ``/`` between folders.
        labelled: Whether classes are wanted; without, any arrangement will do.
        wrapped: Whether a single folder around all others is passed over, as archives often have one.

    >>> arrange("digits", ["train/3/1.png", "test/7/2.png"], labelled=True)
    (('3', '7'), ('train', 'test'))
    """
    above = [path[: path.rfind("/") + 1] for path in paths]  # few are different, and nothing else decides
    places = list(dict.fromkeys(above))
    start = _start(places, wrapped)
    parts: tuple[str, ...] | None = None
    has_parts = _are_parts(_folders(places, start))
    if has_parts:
        part_of = {path: PARTS[_folder(path, start).lower()] for path in places}
        parts = tuple(map(part_of.__getitem__, above))
    if not labelled:
        return None, parts

    folder_of = {path: _folder(path, path.index("/", start) + 1 if has_parts else start) for path in places}
    loose = [path for path, place_above in zip(paths, above, strict=True) if not folder_of[place_above]]
    _refuse_loose(place, loose, len(paths))
    class_of = {path: class_name(folder) for path, folder in folder_of.items()}
    return tuple(map(class_of.__getitem__, above)), parts


def class_name(folder: str) -> str:
    """Return the class that a folder's name stands for.

    File systems differ in how they spell accented letters, and classes are matched by name across them.
    """
    return unicodedata.normalize("NFC", printable(folder))


def printable(path: str | os.PathLike[str]) -> str:
    """Return a path as text that can be printed, even if its bytes are no valid text."""
    return os.fspath(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def path_order(path: str) -> str:
    """Sort by folder first: the order in which pictures of folders and zip files are listed.

    It is that of ``path.split("/")``, compared in one go: no name holds the character that comes before all others.
    """
    return path.replace("/", "\0")


def _start(paths: Sequence[str], wrapped: bool) -> int:
    """Return how many characters of each path name folders that hold everything else and mean nothing."""
    start = 0
    while True:
        names = _folders(paths, start)
        if len(names) != 1 or "" in names:
            return start
        (name,) = names
        after = start + len(name) + 1
        # A folder straight above the pictures is a class, though the only one.
        wraps = wrapped and name.lower() not in PARTS and any("/" in path[after:] for path in paths)
        if not wraps and name.lower() != "images":
            return start
        start = after


def _folder(path: str, start: int) -> str:
    """Return the name of the folder that begins at `start`; nothing if the picture's own name does."""
    end = path.find("/", start)
    return "" if end < 0 else path[start:end]


def _folders(paths: Sequence[str], start: int) -> set[str]:
    return {_folder(path, start) for path in paths}


def _are_parts(names: set[str]) -> bool:
    found = {PARTS.get(name.lower()) for name in names}
    return "train" in found and None not in found


def _refuse_loose(place: object, loose: Sequence[str], count: int) -> None:
    if not loose:
        return
    if len(loose) < count:
        raise UserError(
            f"{place}: {place}/{printable(loose[0])} lies beside the class folders; "
            "move each image into the folder of its class, or elsewhere"
        )
    folder, _, _ = loose[0].rpartition("/")
    where = f"{place}/{printable(folder)}" if folder else f"{place}"
    raise UserError(
        f"{where}: its {len(loose)} images lie directly in it, so their classes are unknown; "
        "put them into one folder per class, such as cat/1.jpg and dog/2.jpg"
    )
