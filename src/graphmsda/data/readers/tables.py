"""CSV files: feature vectors, one a row, or paths of images, each with a label column where labels are wanted."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from graphmsda.data.images import is_image_name
from graphmsda.data.listing import Listing, place_name
from graphmsda.data.readers.arrays import ArrayListing
from graphmsda.data.readers.columns import (
    LABEL_COLUMNS,
    NUMBER_COLUMNS,
    PART_COLUMNS,
    PICTURE_COLUMNS,
    check_pictures,
    label_column,
    named_column,
    no_label,
    part_names,
    plain,
    shown_names,
)
from graphmsda.data.readers.folder import FolderListing
from graphmsda.data.readers.layout import class_name
from graphmsda.errors import UserError

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?", "-"})

MOST = float(np.finfo(np.float32).max)
FIRST = 2**20  # characters in which the header and some rows must lie
FIRST_ROWS = 20


def open_csv(path: Path, *, labelled: bool, root: Path | None = None) -> Listing:
    """List a CSV file with a header; without `labelled` a column whose name says label is passed over.

    Args:
        path: The file; cells are told apart by commas, semicolons or tabs.
        labelled: Whether labels are wanted.
        root: Folder to which paths of images relate; by default that of the file.
    """
    with _explained(path):
        delimiter, header, lines, first = _begin(path)
        label, notes = label_column(path, header) if labelled else (None, ())
        part = named_column(header, PART_COLUMNS)
        picture = _picture_column(header, first)
        if picture is not None:
            if labelled and label is None:
                raise no_label(path, header)
            return _picture_list(path, root or path.parent, delimiter, header, (picture, label, part), notes)
        passed_over = {n for n, name in enumerate(header) if plain(name) in (*LABEL_COLUMNS, *NUMBER_COLUMNS)} | {part}
        words = [n for n in range(len(header)) if n not in passed_over and _is_words(row[n] for row in first)]
        if labelled and label is None:
            if not words:
                raise no_label(path, header)
            label = words.pop()
            notes = (*notes, f"{path}: labels were taken from the column {header[label]!r}, the last one with words")
        if words:
            shown = ", ".join(repr(header[n]) for n in words)
            notes = (*notes, f"{path}: columns that hold words are left out: {shown}")
        columns = [n for n in range(len(header)) if n not in passed_over and n not in words and n != label]
        if not columns:
            raise UserError(
                f"{path}: no column of numbers (found: {shown_names(header)}); give one column for each feature"
            )
        x, labels, parts = _numbers(path, delimiter, header, lines, (columns, label, part))
        names = tuple(plain(header[n]) for n in columns)
        return ArrayListing(place_name(path.with_suffix("")), path, labels, x, parts=parts, notes=notes, columns=names)


def _begin(path: Path) -> tuple[str, list[str], int, list[list[str]]]:
    """Return the delimiter, the header, how many lines it takes, and the first rows."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        text = file.read(FIRST)
        cut = len(text) == FIRST
    if "\0" in text or (cut and "\n" not in text):
        raise UserError(f"{path}: is not a text file with a row on each line; save it as CSV")
    lines = text.splitlines(keepends=True)[: -1 if cut else None]
    if not "".join(lines).strip():
        raise UserError(f"{path}: is empty; give a header and at least one row")

    def rows(delimiter: str) -> tuple[list[str], int, list[list[str]]]:
        reader = csv.reader(lines, delimiter=delimiter)
        header = next(row for row in reader if row)
        start = reader.line_num
        return header, start, [row for row, _ in zip(filter(None, reader), range(FIRST_ROWS), strict=False)]

    delimiter = max(",;\t", key=lambda mark: len(rows(mark)[0]))
    header, start, first = rows(delimiter)
    if all(_is_number(cell) for cell in header):
        raise UserError(
            f"{path}: its first line holds numbers, not names; put a line with the columns' names first, "
            "and call the one with labels label"
        )
    if len(header) > 1 and any(is_image_name(cell) for cell in header):
        raise UserError(
            f"{path}: its first line names an image, not columns; put a line such as path{delimiter}label first, "
            "or say --format list"
        )
    if not first:
        raise UserError(f"{path}: has a header but no rows; give at least one")
    for number, row in enumerate(first):
        if len(row) != len(header):
            raise _ragged(path, start + number + 1, row, header)
    return delimiter, header, start, first


def _picture_column(header: Sequence[str], first: Sequence[Sequence[str]]) -> int | None:
    number = named_column(header, PICTURE_COLUMNS)
    return number if number is not None and any(is_image_name(row[number].strip()) for row in first) else None


def _picture_list(
    path: Path,
    root: Path,
    delimiter: str,
    header: Sequence[str],
    chosen: tuple[int, int | None, int | None],
    notes: tuple[str, ...],
) -> FolderListing:
    picture, label, part = chosen
    names: list[str] = []
    labels: list[str] = []
    parts: list[str] = []
    for line, row in _rows(path, delimiter):
        if len(row) != len(header):
            raise _ragged(path, line, row, header)
        names.append(row[picture].strip())
        if label is not None:
            labels.append(row[label].strip())
        if part is not None:
            parts.append(row[part])
    pictures = tuple(root / name for name in names)
    check_pictures(path, pictures, root)
    return FolderListing(
        place_name(path.with_suffix("")),
        path,
        None if label is None else _class_names(path, labels, "images"),
        pictures,
        parts=None if part is None else part_names(path, header[part], parts),
        notes=notes,
        base=root,
    )


def _numbers(
    path: Path,
    delimiter: str,
    header: Sequence[str],
    skip: int,
    chosen: tuple[list[int], int | None, int | None],
) -> tuple[NDArray[np.float32], tuple[str, ...] | None, tuple[str, ...] | None]:
    """Read all rows at once; words become numbers on the way, which is the one thing that the fast reader knows."""
    columns, label, part = chosen
    words: dict[int, list[str]] = {column: [] for column in (label, part) if column is not None}

    def keep(cell: str, into: list[str]) -> float:
        into.append(cell.strip())
        return 0.0

    # All columns are read, since only then does a row with too many cells come to light.
    passed_over = set(range(len(header))) - set(columns) - set(words)
    converters: dict[int | str, Callable[[str], float]] = {column: lambda cell: 0.0 for column in passed_over}
    converters |= {column: partial(keep, into=cells) for column, cells in words.items()}
    try:
        table = np.loadtxt(
            str(path.absolute()),
            dtype=np.float32,
            comments=None,
            delimiter=delimiter,
            quotechar='"',
            skiprows=skip,
            converters=converters,
            encoding="utf-8-sig",
            ndmin=2,
        )
    except ValueError:
        _explain_cells(path, delimiter, header, columns)
    together = columns == list(range(columns[0], columns[-1] + 1))
    x = table[:, columns[0] : columns[-1] + 1] if together else table[:, columns]
    if not np.isfinite(x).all():
        _explain_cells(path, delimiter, header, columns)
    labels = None if label is None else _class_names(path, words[label], "rows")
    return x, labels, None if part is None else part_names(path, header[part], words[part])


def _class_names(path: Path, cells: Sequence[str], what: str) -> tuple[str, ...]:
    missing = sum(not cell for cell in cells)
    if missing:
        raise UserError(f"{path}: {missing:,} of {len(cells):,} {what} have no label; fill in or remove them")
    return tuple(map(class_name, cells))


def _explain_cells(path: Path, delimiter: str, header: Sequence[str], columns: Sequence[int]) -> NoReturn:
    """Say which cell is not a number, or how many are missing."""
    missing = rows = count = 0
    where = ""
    for line, row in _rows(path, delimiter):
        if len(row) != len(header):
            raise _ragged(path, line, row, header)
        before, count = missing, count + 1
        for column in columns:
            cell = row[column]
            if plain(cell) in MISSING:
                missing += 1
                where = where or f"line {line}, column {header[column]!r}"
            elif not _is_number(cell) or not abs(float(cell)) <= MOST:
                raise UserError(
                    f"{path}: line {line}, column {header[column]!r}: {cell[:40]!r} is not a finite number in 32 bits; "
                    "give numbers, with a point before decimals, in all columns but the label"
                )
        rows += missing > before
    if missing:
        raise UserError(
            f"{path}: {missing:,} values are missing in {rows:,} of {count:,} rows (first: {where}); "
            "fill in or remove them"
        )
    raise UserError(f"{path}: cannot be read as a table of numbers; save it anew as CSV")


def _rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows below the header, each with the number of its line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter)
        filled = (row for row in reader if row)
        next(filled)
        for row in filled:
            yield reader.line_num, row


def _ragged(path: Path, line: int, row: Sequence[str], header: Sequence[str]) -> UserError:
    return UserError(
        f"{path}: line {line} has {len(row)} cells where the header names {len(header)} columns; mend that line"
    )


def _is_words(cells: Iterator[str]) -> bool:
    given = [cell for cell in cells if plain(cell) not in MISSING]
    return bool(given) and not any(map(_is_number, given))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: is not text in UTF-8; save it as CSV in UTF-8") from error
    except (csv.Error, OSError, MemoryError, OverflowError) as error:
        raise UserError(f"{path}: cannot be read as CSV ({error}); save it anew") from error
