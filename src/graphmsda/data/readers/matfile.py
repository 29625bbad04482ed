"""The variables of a MATLAB file: version 5 read here, version 7.3 with h5py, version 4 with scipy.

Version 5 is not left to scipy, which dies of a cell inside a cell inside a cell, some thousands deep, and which
believes whatever size a file declares. Here only plain arrays and one level of cells are read, within bounds.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from graphmsda.data.readers.arrays import most_bytes
from graphmsda.errors import UserError

CELL, TEXT, NUMBER, OTHER = "cell", "text", "numbers", "something else"
_MATRIX, _COMPRESSED = 14, 15
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_STORED_TEXT = {2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_CHUNK = 2**20
_CELL_BYTES = 256  # what one cell takes here at least
_HDF5 = b"\x89HDF\r\n\x1a\n"


class Damaged(ValueError):  # noqa: N818 - it describes the file
    """The file breaks its own rules."""


@dataclass(frozen=True)
class Variable:
    """One variable, known by its header.

    Attributes:
        shape: As MATLAB shows it.
        kind: ``numbers``, ``text``, ``cell`` or ``something else``.
        load: Reads numbers as an array, text as a list of strings, a cell as an array of variables yet to be loaded.
    """

    shape: tuple[int, ...]
    kind: str
    load: Callable[[], Any]


def open_variables(path: Path) -> dict[str, Variable]:
    """Return the variables of a MATLAB file of any version, none of them loaded."""
    with explained(path), path.open("rb") as file:
        start = file.read(128)
        if _HDF5 in (start[:8], _at(file, 512, 8)):
            return _hdf5_variables(path)
        if start[124:128] in (b"\x00\x01IM", b"\x01\x00MI"):
            order = "<" if start[126:128] == b"IM" else ">"
            return dict(_version5_variables(path, file, order))
        if 0 not in start[:4]:  # which tells version 4 from anything else
            raise Damaged("it does not begin like one")
        return _version4_variables(path)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong in reading a damaged file into one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # damaged files make readers raise nearly anything
        reason = f" ({error})" if isinstance(error, Damaged) else ""
        raise UserError(
            f"{path}: cannot be read as a MATLAB file{reason}; it is damaged or of another kind, fetch it anew"
        ) from error


def _at(file: BinaryIO, place: int, count: int) -> bytes:
    file.seek(place)
    return file.read(count)


def _check_size(path: Path, shape: tuple[int, ...], item: int) -> int:
    size = math.prod(shape) * item
    if min(shape, default=0) < 0 or size > most_bytes(path):
        raise Damaged(f"an array of shape {shape} is declared, far more than the file holds")
    return size


# Version 5: a row of elements, each a type, a size and so many bytes, most of them compressed one by one.


class _Stream:
    """The bytes of one element, unpacked as they are read."""

    def __init__(self, file: BinaryIO, size: int, order: str, *, compressed: bool) -> None:
        self.file, self.left, self.order = file, size, order
        self.unpack = zlib.decompressobj() if compressed else None
        self.read_so_far = self.padding = 0

    def read(self, count: int) -> bytearray:
        padding, self.padding = self.padding, 0  # only now, since the last element of a file may lack it
        return self._read(padding + count)[padding:] if padding else self._read(count)

    def _read(self, count: int) -> bytearray:
        found = bytearray()
        while len(found) < count:
            if self.unpack is None:
                piece = self.file.read(min(count - len(found), self.left, _CHUNK))
                self.left -= len(piece)
            else:
                packed = self.unpack.unconsumed_tail
                if not packed:
                    packed = self.file.read(min(self.left, _CHUNK))
                    self.left -= len(packed)
                piece = self.unpack.decompress(packed, min(count - len(found), _CHUNK))
                if packed and not piece and not self.unpack.eof:
                    continue  # what was unpacked is not enough for a single byte yet
            if not piece:
                raise Damaged("it ends too early")
            found += piece
        self.read_so_far += count
        return found

    def tag(self) -> tuple[int, int, bytearray | None]:
        """Return type and size of the next element, and its bytes where they fit into the tag itself."""
        raw = self.read(8)
        kind, size = struct.unpack(self.order + "II", raw)
        if kind >> 16:
            return kind & 0xFFFF, min(kind >> 16, 4), raw[4:]
        return kind, size, None

    def element(self, most: int) -> tuple[int, bytearray]:
        kind, size, inside = self.tag()
        if inside is not None:
            return kind, inside[:size]
        if size > most:
            raise Damaged("an element is larger than it can be")
        content = self.read(size)
        self.padding = -size % 8
        return kind, content


def _version5_variables(path: Path, file: BinaryIO, order: str) -> Iterator[tuple[str, Variable]]:
    place, end = 128, path.stat().st_size
    while place + 8 <= end:
        kind, size = struct.unpack(order + "II", _at(file, place, 8))
        open_stream = partial(_stream, order=order, place=place, size=size, compressed=kind == _COMPRESSED)
        if kind in (_MATRIX, _COMPRESSED):
            stream = open_stream(file)
            if stream.tag()[0] == _MATRIX:
                name, shape, group = _matrix_header(stream)
                yield name, Variable(shape, group, partial(_load_version5, path, open_stream))
        place += 8 + size


def _stream(file: BinaryIO, *, order: str, place: int, size: int, compressed: bool) -> _Stream:
    # What is not compressed is its own element: its tag is read again as the first thing inside.
    file.seek(place + (8 if compressed else 0))
    return _Stream(file, size if compressed else size + 8, order, compressed=compressed)


def _matrix_header(stream: _Stream) -> tuple[str, tuple[int, ...], str]:
    flags = struct.unpack(stream.order + "II", stream.element(8)[1])[0]
    dimensions = stream.element(4 * 64)[1]
    shape = struct.unpack(f"{stream.order}{len(dimensions) // 4}i", dimensions)
    name = bytes(stream.element(4096)[1]).decode("latin-1")
    kind = {1: CELL, 4: TEXT}.get(flags & 0xFF, NUMBER if 6 <= flags & 0xFF <= 15 else OTHER)
    return name, shape, OTHER if flags & 0x0800 else kind  # complex numbers are something else


def _load_version5(path: Path, open_stream: Callable[[BinaryIO], _Stream]) -> Any:
    with explained(path), path.open("rb") as file:
        stream = open_stream(file)
        stream.tag()
        return _content(path, stream, *_matrix_header(stream)[1:], outermost=True)


def _content(path: Path, stream: _Stream, shape: tuple[int, ...], kind: str, *, outermost: bool) -> Any:
    if kind == CELL and outermost:
        count = _check_size(path, shape, _CELL_BYTES) // _CELL_BYTES
        children = np.empty(count, dtype=object)
        for number in range(count):
            type_, size, _ = stream.tag()
            if type_ != _MATRIX:
                raise Damaged("a cell holds something odd")
            start = stream.read_so_far
            group, content = OTHER, None
            inner: tuple[int, ...] = (0, 0)
            if size:  # a cell that was never filled has none
                _, inner, group = _matrix_header(stream)
                if group in (NUMBER, TEXT):
                    content = _content(path, stream, inner, group, outermost=False)
                left = size - (stream.read_so_far - start)
                stream.padding = 0
                if left < 0 or stream.read_so_far + left > most_bytes(path):
                    raise Damaged("a cell is larger than it can be")
                while left:
                    left -= len(stream.read(min(left, _CHUNK)))
            children[number] = Variable(inner, group, partial(_return, content))
        return children.reshape(shape, order="F")
    if kind not in (NUMBER, TEXT):
        raise Damaged(f"{kind} where numbers or text should be")
    stored, content = stream.element(_check_size(path, shape, 8))
    if kind == TEXT:
        codec = _STORED_TEXT.get(stored, "latin-1")
        codec += ("-le" if stream.order == "<" else "-be") if codec.startswith("utf-") and codec != "utf-8" else ""
        text = np.array(list(bytes(content).decode(codec, "replace"))[: math.prod(shape)] or [""])
        return (
            ["".join(row).rstrip() for row in text.reshape(shape, order="F")] if text.size == math.prod(shape) else []
        )
    values = np.frombuffer(content, dtype=stream.order + _STORED.get(stored, "u1"))
    if values.size != math.prod(shape):
        raise Damaged("an array does not fill its shape")
    return values.astype(values.dtype.newbyteorder("="), copy=False).reshape(shape, order="F")


def _return(value: Any) -> Any:
    return value


def _hdf5_variables(path: Path) -> dict[str, Variable]:
    try:
        import h5py
    except ImportError as error:
        raise UserError(
            f"{path}: a MATLAB 7.3 file, for which h5py is needed; install it with pip install 'graphmsda[formats]'"
        ) from error

    with h5py.File(path, "r") as file:
        # Links that lead to other files are passed over: a file may not make us read another.
        names = [n for n in file if not n.startswith("#") and isinstance(file.get(n, getlink=True), h5py.HardLink)]
        return {name: _hdf5_variable(path, file[name]) for name in names}


def _hdf5_variable(path: Path, node: Any) -> Variable:
    import h5py

    shape = tuple(reversed(getattr(node, "shape", None) or ()))
    kind = OTHER
    if isinstance(node, h5py.Dataset) and not node.is_virtual and not node.external and shape:
        declared = node.attrs.get("MATLAB_class", b"")
        if node.dtype.kind in "iufb":
            kind = TEXT if declared == b"char" else NUMBER
        elif h5py.check_ref_dtype(node.dtype) is h5py.Reference:
            kind = CELL
    return Variable(shape, kind, partial(_load_hdf5, path, node.name))


def _load_hdf5(path: Path, name: str) -> Any:
    import h5py

    with explained(path), h5py.File(path, "r") as file:
        node = file[name]
        variable = _hdf5_variable(path, node)
        _check_size(path, variable.shape, _CELL_BYTES if variable.kind == CELL else max(1, node.dtype.itemsize))
        values = node[()].T  # MATLAB counts the first axis fastest, HDF5 the last
        if variable.kind == CELL:
            children = np.empty(values.shape, dtype=object)
            for place, reference in np.ndenumerate(values):
                children[place] = _hdf5_variable(path, file[reference])
            return children
        if variable.kind == TEXT:
            return ["".join(map(chr, row)).rstrip() for row in values.tolist()]
        return values


def _version4_variables(path: Path) -> dict[str, Variable]:
    import scipy.io

    def load(name: str) -> NDArray[Any]:
        with explained(path):
            return np.asarray(scipy.io.loadmat(path, variable_names=[name])[name])

    found = scipy.io.whosmat(path)
    kinds = {"double": NUMBER, "single": NUMBER, **{f"{u}int{n}": NUMBER for u in ("", "u") for n in (8, 16, 32)}}
    for _, shape, _ in found:
        _check_size(path, shape, 1)
    return {name: Variable(shape, kinds.get(kind, OTHER), partial(load, name)) for name, shape, kind in found}
