"""The columns of Parquet files: which holds images, what the labels are called, and numbers as feature vectors."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphmsda.data.readers.arrays import finite
from graphmsda.data.readers.columns import (
    LABEL_COLUMNS,
    NUMBER_COLUMNS,
    PART_COLUMNS,
    PICTURE_COLUMNS,
    named_column,
    plain,
)
from graphmsda.data.readers.layout import class_name
from graphmsda.data.readers.row_groups import read_column
from graphmsda.errors import UserError


def picture_column(path: Path, schema: Any, notes: list[str]) -> str | None:
    """Return the column that holds images: bytes, bytes within a struct, or paths under a name that says so."""
    import pyarrow.types as types

    def is_picture(field: Any) -> bool:
        if types.is_struct(field.type):
            return bool(field.type.get_field_index("bytes") >= 0)
        if types.is_binary(field.type) or types.is_large_binary(field.type):
            return plain(field.name) not in LABEL_COLUMNS
        return is_text(field.type) and plain(field.name) in PICTURE_COLUMNS

    found = [field.name for field in schema if is_picture(field)]
    if not found:
        return None
    # Bytes are surer than paths, which may be those of another machine.
    found.sort(key=lambda name: is_text(schema.field(name).type))
    surest = [name for name in found if is_text(schema.field(name).type) == is_text(schema.field(found[0]).type)]
    chosen = surest[named_column(surest, PICTURE_COLUMNS) or 0]
    if len(surest) > 1:
        also = ", ".join(repr(name) for name in surest if name != chosen)
        notes.append(f"{path}: images were taken from the column {chosen!r} (also there: {also})")
    return str(chosen)


def read_labels(path: Path, files: Sequence[Path], schema: Any, column: str) -> list[str | None]:
    """Return the class name of each row; None where it has none, for which hubs write -1."""
    import pyarrow.types as types

    kind = schema.field(column).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    names = _class_names(schema, column)
    cells: list[Any] = [cell for file in files for cell in read_column(file, column).to_pylist()]
    if types.is_floating(kind) and all(cell is None or float(cell).is_integer() for cell in cells):
        cells = [None if cell is None else int(cell) for cell in cells]
    elif not (types.is_integer(kind) or types.is_boolean(kind) or is_text(kind)):
        raise UserError(f"{path}: column {column!r} holds {kind}; give one integer or string for each sample")
    if names is None:
        return [None if cell is None else class_name(str(cell)) for cell in cells]
    beyond = [cell for cell in cells if cell is not None and not -1 <= int(cell) < len(names)]
    if beyond:
        raise UserError(
            f"{path}: column {column!r} holds {beyond[0]} where {len(names)} classes are named; "
            f"give 0 to {len(names) - 1}"
        )
    return [None if cell is None or cell == -1 else names[int(cell)] for cell in cells]


def _class_names(schema: Any, column: str) -> list[str] | None:
    """Return the names that a dataset hub stores beside a column of class numbers."""
    try:
        about = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][column]["names"]
        names = [about[key] for key in sorted(about, key=int)] if isinstance(about, dict) else list(about)
        return [class_name(name) for name in names] if all(isinstance(name, str) for name in names) else None
    except (KeyError, TypeError, ValueError):
        return None


def read_features(
    path: Path, files: Sequence[Path], schema: Any, label: int | None
) -> tuple[NDArray[np.float32], tuple[str, ...] | None]:
    """Return the columns of numbers and their names, or one column of lists, as a matrix."""
    import pyarrow.types as types

    def is_number(kind: Any) -> bool:
        return bool(types.is_floating(kind) or types.is_integer(kind) or types.is_boolean(kind))

    def is_list(kind: Any) -> bool:
        lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        return lists and is_number(kind.value_type)

    passed_over = (*LABEL_COLUMNS, *NUMBER_COLUMNS, *PART_COLUMNS)
    fields = [field for n, field in enumerate(schema) if plain(field.name) not in passed_over and n != label]
    lists = [field.name for field in fields if is_list(field.type)]
    numbers = [field.name for field in fields if is_number(field.type)]
    if len(lists) != 1 and (lists or not numbers):
        raise UserError(
            f"{path}: no column of images, and not one column of lists or several of numbers (found: "
            f"{', '.join(f'{field.name} ({field.type})' for field in list(schema)[:10])}); give one of these"
        )
    pieces = [_matrix(path, [read_column(file, name) for name in lists or numbers], bool(lists)) for file in files]
    if len({piece.shape[1] for piece in pieces}) > 1:
        raise UserError(f"{path}: lists in column {lists[0]!r} differ in length; give vectors of one length")
    names = None if lists else tuple(map(plain, numbers))
    return finite(path, np.concatenate(pieces), "its features"), names


def _matrix(path: Path, columns: Sequence[Any], lists: bool) -> NDArray[Any]:
    missing = sum(column.null_count for column in columns)
    if missing:
        raise UserError(f"{path}: {missing:,} values are missing; fill in or remove them")
    if not lists:
        return np.stack([column.to_numpy() for column in columns], axis=1).astype(np.float32)
    flat = np.asarray(columns[0].combine_chunks().flatten().to_numpy(zero_copy_only=False), dtype=np.float32)
    rows = len(columns[0])
    lengths = {len(cell) for cell in columns[0]}
    if len(lengths) != 1:
        raise UserError(f"{path}: lists of features are of lengths {min(lengths)} to {max(lengths)}; give one length")
    return flat.reshape(rows, -1)


def is_text(kind: Any) -> bool:
    """Return whether a column holds strings."""
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind))
