"""Parquet files as dataset hubs publish them: images or feature vectors, and labels, perhaps in several files."""

from __future__ import annotations

import io
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from graphmsda.data.formats import PARTS
from graphmsda.data.images import Unreadable, image_sizes
from graphmsda.data.listing import Listing, PictureListing, digest_of, file_identity, place_name, take
from graphmsda.data.readers.arrays import ArrayListing
from graphmsda.data.readers.columns import (
    PART_COLUMNS,
    check_pictures,
    label_column,
    named_column,
    no_label,
    part_names,
    shown_names,
)
from graphmsda.data.readers.folder import FolderListing
from graphmsda.data.readers.parquet_columns import is_text, picture_column, read_features, read_labels
from graphmsda.data.readers.row_groups import open_footer, read_cell, read_column
from graphmsda.errors import UserError

GROUPS_FOR_SIZES = 4  # of rows, in which image headers are looked at: each may be many megabytes


@dataclass(frozen=True, eq=False)
class ParquetListing(PictureListing):
    """Images whose bytes lie in a column of Parquet files.

    Attributes:
        files: The files, in order.
        column: The column with the images.
        groups: File, number within it and first row overall of each group of rows.
        count: Rows in all.
    """

    files: tuple[Path, ...]
    column: str
    groups: tuple[tuple[int, int, int], ...]
    count: int

    def __len__(self) -> int:
        return self.count

    @property
    def item_names(self) -> list[str]:
        """File and row of each image."""
        names: list[str] = []
        starts = {file: start for file, group, start in self.groups if group == 0}
        for file, start in starts.items():
            end = starts.get(file + 1, self.count)
            names += [f"{self.files[file].name}[{row}]" for row in range(end - start)]
        return names

    def open_item(self, index: int) -> BinaryIO:
        """Return the bytes of an image."""
        number = bisect_right(self.groups, index, key=lambda group: group[2]) - 1
        file, group, start = self.groups[number]
        try:
            value = read_cell(self.files[file], group, self.column, index - start)
        except Exception as error:  # damaged files make the reader raise nearly anything
            raise Unreadable(f"damaged ({type(error).__name__})") from error
        if isinstance(value, dict):
            value = value.get("bytes")
        if not isinstance(value, bytes):
            raise Unreadable("no image in this row")
        return io.BytesIO(value)

    def sides(self, limit: int) -> list[int]:
        """Return the smaller side of up to `limit` images, from their headers, all in a few groups of rows."""
        step = max(1, len(self.groups) // GROUPS_FOR_SIZES)
        starts = [start for _, _, start in self.groups] + [self.count]
        chosen = list(range(0, len(self.groups), step))[:GROUPS_FOR_SIZES]
        each = -(-limit // len(chosen))

        def files() -> Iterator[BinaryIO]:
            for group in chosen:
                for index in range(starts[group], min(starts[group] + each, starts[group + 1])):
                    try:
                        yield self.open_item(index)
                    except Unreadable:
                        continue

        return [min(size) for size in image_sizes(files())][:limit]

    def identity(self) -> str:
        """Hash the files' names, sizes and times of change, and the column."""
        return digest_of(self.column, [(file.name, *file_identity(file)) for file in self.files])


def open_parquet(path: Path, *, labelled: bool, root: Path | None = None) -> Listing:
    """List a Parquet file, or all those below a folder; without `labelled` a label column is never read.

    Args:
        path: A file, or a folder such as ``data/train-00000-of-00002.parquet`` or ``train/0000.parquet`` lie in.
        labelled: Whether labels are wanted.
        root: Folder to which paths of images relate; by default that of the file.
    """
    with _explained(path):
        files, parts, notes = _files(path)
        schema, groups, count = _open_all(path, files)
        header = list(schema.names)
        label, more = label_column(path, header) if labelled else (None, ())
        if labelled and label is None:
            raise no_label(path, header)
        notes = [*notes, *more]
        marks = _parts(path, files, parts, schema, groups, count)
        labels = None if label is None else read_labels(path, files, schema, header[label])
        filled = None if labels is None else tuple(name or "" for name in labels)
        name = place_name(path.with_suffix("") if path.is_file() else path)
        picture = picture_column(path, schema, notes)
        listing: Listing
        if picture is None:
            x, columns = read_features(path, files, schema, label)
            listing = ArrayListing(name, path, filled, x, parts=marks, notes=tuple(notes), columns=columns)
        elif is_text(schema.field(picture).type):
            base = root or (path if path.is_dir() else path.parent)
            pictures = tuple(base / str(cell) for file in files for cell in read_column(file, picture).to_pylist())
            check_pictures(path, pictures, base)
            listing = FolderListing(name, path, filled, pictures, parts=marks, notes=tuple(notes), base=base)
        else:
            listing = ParquetListing(
                name, path, filled, tuple(files), picture, groups, count, parts=marks, notes=tuple(notes)
            )
        return listing if labels is None else _with_labels_alone(listing, labels)


def _files(path: Path) -> tuple[list[Path], list[str | None], list[str]]:
    """Return the files of a place and the part that each one's name, or its folder's, tells."""
    if path.is_file():
        return [path], [None], []
    files = sorted(file for file in path.rglob("*.parquet") if file.is_file() and not file.name.startswith("."))
    if not files:
        raise UserError(f"{path}: no .parquet file in it; give a folder that holds some")
    found = {file: _part_of(file.relative_to(path)) for file in files}
    named = [file for file in files if found[file] is not None]
    if not named:
        return files, [None] * len(files), []
    left_out = [file.name for file in files if found[file] is None]
    notes = [f"{path}: files whose names tell no part are left out: {shown_names(left_out)}"] if left_out else []
    return named, [found[file] for file in named], notes


def _part_of(relative: Path) -> str | None:
    words = [word for name in relative.parts for word in re.split(r"[^a-z]+", name.lower())]
    return next((PARTS[word] for word in words if word in PARTS), None)


def _open_all(path: Path, files: Sequence[Path]) -> tuple[Any, tuple[tuple[int, int, int], ...], int]:
    """Return the columns that all files share, their groups of rows, and the rows in all, from the footers alone."""
    schema, groups, count = None, [], 0
    for number, file in enumerate(files):
        with _explained(file):
            own, rows = open_footer(file)
        if schema is None:
            schema = own
        elif own.names != schema.names or own.types != schema.types:
            raise UserError(
                f"{file}: its columns ({shown_names(own.names)}) are not those of {files[0].name} "
                f"({shown_names(schema.names)}); give files of one table"
            )
        for group, size in enumerate(rows):
            groups.append((number, group, count))
            count += size
    if not count:
        raise UserError(f"{path}: has no rows; give at least one")
    return schema, tuple(groups), count


def _parts(
    path: Path,
    files: Sequence[Path],
    parts: Sequence[str | None],
    schema: Any,
    groups: Sequence[tuple[int, int, int]],
    count: int,
) -> tuple[str, ...] | None:
    """Return the part of each row, from the files' names or from a column such as ``split``."""
    if None not in parts:
        ends = [start for _, _, start in groups[1:]] + [count]
        return tuple(
            str(parts[file]) for (file, _, start), end in zip(groups, ends, strict=True) for _ in range(end - start)
        )
    column = named_column(schema.names, PART_COLUMNS)
    if column is None or not is_text(schema.field(column).type):
        return None
    name = schema.names[column]
    return part_names(path, name, [str(cell) for file in files for cell in read_column(file, name).to_pylist()])


def _with_labels_alone(listing: Listing, labels: Sequence[str | None]) -> Listing:
    rows = [row for row, label in enumerate(labels) if label is not None]
    if len(rows) == len(labels):
        return listing
    if not rows:
        raise UserError(f"{listing.origin}: none of its {len(labels):,} rows has a label; give labelled data")
    left_out = len(labels) - len(rows)
    return take(listing, rows, f"{listing.origin}: {left_out:,} of {len(labels):,} rows have no label and are left out")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        raise UserError(
            f"{path}: a Parquet file, for which pyarrow is needed; install it with pip install 'graphmsda[formats]'"
        ) from error
    except Exception as error:  # damaged files make the reader raise nearly anything
        raise UserError(
            f"{path}: cannot be read as Parquet; it is damaged or of another kind, fetch it anew"
        ) from error
