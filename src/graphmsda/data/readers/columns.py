"""What the columns of a table are called, and what that makes them: labels, images, parts or mere row numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graphmsda.data.formats import PARTS
from graphmsda.errors import UserError

# What columns are called, in small letters, the best first.
LABEL_COLUMNS = (
    "label", "labels", "fine_label", "class", "classes", "class_name", "classname", "category", "target", "targets",
    "y", "label_name", "label_id", "class_id", "coarse_label", "gnd",
)  # fmt: skip
PICTURE_COLUMNS = (
    "image", "img", "picture", "photo", "image_path", "img_path", "path", "filepath", "file_path", "file", "filename",
    "file_name", "image_name", "image_file",
)  # fmt: skip
PART_COLUMNS = ("split", "part", "partition", "subset")
NUMBER_COLUMNS = ("", "id", "index", "unnamed: 0", "__index_level_0__")  # they number the rows and say nothing of them


def plain(name: str) -> str:
    """Return a column's name as it is compared."""
    return name.strip().lower()


def named_column(header: Sequence[str], names: Sequence[str]) -> int | None:
    """Return the column with the first of `names` that there is."""
    ranks = {name: rank for rank, name in reversed(list(enumerate(names)))}
    found = [(ranks[plain(name)], number) for number, name in enumerate(header) if plain(name) in ranks]
    return min(found)[1] if found else None


def label_column(path: Path, header: Sequence[str]) -> tuple[int | None, tuple[str, ...]]:
    """Return the column whose name says label, and a note where others might be meant."""
    number = named_column(header, LABEL_COLUMNS)
    others = [name for n, name in enumerate(header) if plain(name) in LABEL_COLUMNS and n != number]
    if number is None or not others:
        return number, ()
    also = ", ".join(map(repr, others))
    return number, (f"{path}: labels were taken from the column {header[number]!r} (also there: {also})",)


def no_label(path: Path, header: Sequence[str]) -> UserError:
    """Return the complaint that no column holds labels."""
    return UserError(f"{path}: no column with labels (found: {shown_names(header)}); call it label")


def part_names(path: Path, column: str, values: Sequence[str]) -> tuple[str, ...]:
    """Return the part that each cell of a column such as ``split`` names."""
    unknown = sorted({value for value in values if plain(value) not in PARTS})
    if unknown:
        raise UserError(
            f"{path}: column {column!r} names unknown parts ({shown_names(unknown)}); write train, validation or test"
        )
    return tuple(PARTS[plain(value)] for value in values)


def check_pictures(path: Path, pictures: Sequence[Path], root: Path) -> None:
    """Complain of pictures that are not there: how many, and the first five."""
    absent = [picture for picture in pictures if not picture.is_file()]
    if absent:
        raise UserError(
            f"{path}: {len(absent):,} of {len(pictures):,} images it names are not below {root} "
            f"(first: {', '.join(map(str, absent[:5]))}); put them there or give their folder as --root"
        )


def shown_names(names: Sequence[str], most: int = 10) -> str:
    """Return the first of `names` for a sentence."""
    return ", ".join(repr(name) for name in names[:most]) + (
        f" and {len(names) - most} more" if len(names) > most else ""
    )
