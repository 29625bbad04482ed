"""Cells of Parquet files, read a group of rows at a time: a few groups stay in memory, never a whole file."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphmsda.data.listing import file_identity
from graphmsda.data.readers.arrays import most_bytes
from graphmsda.errors import UserError

WHOLE = 2**26  # bytes of a column up to which a group of rows is read at once; larger ones are read block by block
BLOCK = 2**24  # bytes of such a block
KEPT = 2**28  # bytes kept in memory
OPEN_FILES = 16
OPEN_STREAMS = 4


@dataclass
class _State:
    """What one process has open and in memory."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    files: OrderedDict[Any, Any] = field(default_factory=OrderedDict)
    blocks: OrderedDict[Any, Any] = field(default_factory=OrderedDict)
    size: int = 0
    streams: dict[Any, tuple[int, Iterator[Any]]] = field(default_factory=dict)


# By process, since neither a lock held during a fork nor an open file may be shared with a child.
_states: dict[int, _State] = {}


def open_footer(path: Path) -> tuple[Any, list[int]]:
    """Return the schema of a file and how many rows each group has."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        about = file.metadata
        groups = [about.row_group(number) for number in range(about.num_row_groups)]
        rows = [group.num_rows for group in groups]
        # Run-length codes let a small file declare any number of rows.
        if min(rows, default=0) < 0 or sum(rows) > max(2**20, path.stat().st_size):
            raise UserError(f"{path}: declares {sum(rows):,} rows, far more than it can hold; fetch it anew")
        if any(group.total_byte_size > max(2**31, most_bytes(path)) for group in groups):
            raise UserError(f"{path}: unfolds to far more than the file holds; write it anew with smaller row groups")
        return file.schema_arrow, rows


def read_column(path: Path, column: str) -> Any:
    """Return a whole column, which should be a small one."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        return file.read(columns=[column], use_threads=False).column(column)


def read_cell(path: Path, group: int, column: str, row: int) -> Any:
    """Return one cell, from memory where its group of rows was read before; safe from several threads."""
    state = _states.get(os.getpid())
    if state is None:
        state = _states.setdefault(os.getpid(), _State())
    key = (path, *file_identity(path))
    with state.lock:
        file = _file(state, key)
        rows, size = _extent(file, group, column)
        per_block = rows if size <= WHOLE else max(1, rows * BLOCK // size)
        block = _block(state, file, (key, group, column), row // per_block, per_block, rows)
        return block[row % per_block].as_py()


def _file(state: _State, key: tuple[Path, int, int]) -> Any:
    import pyarrow.parquet

    if key not in state.files:
        state.files[key] = pyarrow.parquet.ParquetFile(key[0], buffer_size=2**20, pre_buffer=False)
        while len(state.files) > OPEN_FILES:
            oldest, file = state.files.popitem(last=False)
            state.streams = {place: stream for place, stream in state.streams.items() if place[0] != oldest}
            file.close()
    state.files.move_to_end(key)
    return state.files[key]


def _extent(file: Any, group: int, column: str) -> tuple[int, int]:
    """Return how many rows a group has and how many bytes a column takes in it."""
    about = file.metadata.row_group(group)
    chunks = (about.column(number) for number in range(about.num_columns))
    size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] == column)
    return about.num_rows, size


def _block(state: _State, file: Any, place: tuple[Any, int, str], number: int, rows: int, total: int) -> Any:
    """Return some rows of a column; those before them are read again only where they were left behind."""
    if (place, number) in state.blocks:
        state.blocks.move_to_end((place, number))
        return state.blocks[place, number]
    reached, stream = state.streams.pop(place, (0, None))
    if stream is None or reached > number:
        _, group, column = place
        reached = 0
        stream = file.iter_batches(batch_size=rows, row_groups=[group], columns=[column], use_threads=False)
    for _ in range(number - reached):
        next(stream)
    values = next(stream).column(0)
    if len(values) != min(rows, total - number * rows):
        raise ValueError("a group of rows is shorter than it says")
    if (number + 1) * rows < total:  # there is more to read on from here
        state.streams[place] = number + 1, stream
        while len(state.streams) > OPEN_STREAMS:
            del state.streams[next(iter(state.streams))]
    state.blocks[place, number] = values
    state.size += values.nbytes
    while state.size > KEPT and len(state.blocks) > 1:
        state.size -= state.blocks.popitem(last=False)[1].nbytes
    return values
