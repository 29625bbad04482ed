"""Tar files, plain or packed as a whole with gzip, bzip2 or xz: pictures in them without unpacking to disk."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import threading
import weakref
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from graphmsda.data.images import MOST_BYTES, Unreadable
from graphmsda.data.listing import file_identity
from graphmsda.data.readers.members import Member, PositionedFile, member_path
from graphmsda.errors import UserError

CHUNK = 1 << 20
LARGEST_HEADER = 1 << 22  # a name of four million bytes is no name
SUSPICIOUS, LARGEST_RATIO = 1 << 28, 200  # unpacked bytes from which, and times the packed size at which, to give up

# By what the file begins with.
UNPACKERS: dict[bytes, Callable[[IO[bytes]], object]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
}
_DAMAGE = (OSError, EOFError, ValueError, OverflowError, zlib.error, lzma.LZMAError, tarfile.TarError)


class PlainTar:
    """Reads members by position."""

    sequential = False

    def __init__(self, path: Path) -> None:
        self.stamp = file_identity(path)
        self._file = PositionedFile(path)

    def read(self, member: Member) -> bytes:
        """Return the bytes of a member, or raise `Unreadable`."""
        if member.fault:
            raise Unreadable(member.fault)
        try:
            content = self._file.read(member.offset, member.size)
        except OSError as error:
            raise Unreadable(f"damaged ({error.strerror})") from error
        if len(content) != member.size:
            raise Unreadable("truncated")
        return content


class PackedTar:
    """Reads members by going forward through the unpacked bytes; going back begins anew."""

    sequential = True

    def __init__(self, path: Path, magic: bytes, stamp: tuple[int, ...]) -> None:
        self.stamp = stamp
        self._path = path
        self._magic = magic
        self._places: dict[int, _Place] = {}

    def read(self, member: Member) -> bytes:
        """Return the bytes of a member, or raise `Unreadable`."""
        if member.fault:
            raise Unreadable(member.fault)
        # Each process has a place of its own, with a lock that no other thread held when it was forked.
        place = self._places.setdefault(os.getpid(), _Place())
        with place.lock:
            try:
                if place.stream is None or place.stream.tell() > member.offset:
                    place.close()
                    if file_identity(self._path) != self.stamp:
                        raise Unreadable("the archive has changed since it was listed")
                    place.stream = Stream(self._path, self._magic)
                place.stream.seek(member.offset)
                content = place.stream.take(member.size)
            except _DAMAGE as error:
                place.close()
                raise Unreadable(f"damaged ({type(error).__name__})") from error
        if len(content) != member.size:
            raise Unreadable("truncated")
        return content

    def __reduce__(self) -> Any:
        return PackedTar, (self._path, self._magic, self.stamp)


class _Place:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stream: Stream | None = None

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()
        self.stream = None


class Stream:
    """The unpacked bytes of a file, read forward with bounds on what a malicious one can make of them."""

    def __init__(self, path: Path, magic: bytes | None) -> None:
        self._packed = path.open("rb")
        weakref.finalize(self, self._packed.close)
        self._direct = magic is None
        self._plain = self._packed if magic is None else cast(IO[bytes], UNPACKERS[magic](self._packed))

    def read(self, count: int) -> bytes:
        """Return the next bytes, which make up a header."""
        if count > LARGEST_HEADER:
            raise tarfile.ReadError("a header is too large")
        return self._plain.read(count)

    def take(self, count: int) -> bytes:
        """Return the next bytes, piece by piece so that memory is only taken for what is there."""
        pieces: list[bytes] = []
        while count > 0 and (piece := self._plain.read(min(count, CHUNK))):
            pieces.append(piece)
            count -= len(piece)
            self._check_ratio()
        return b"".join(pieces)

    def tell(self) -> int:
        """Return the position among the unpacked bytes."""
        return self._plain.tell()

    def seek(self, position: int) -> int:
        """Go forward to `position`."""
        if self._direct:
            return self._plain.seek(position)
        if position < self.tell():
            raise tarfile.ReadError("a member points back")
        while (here := self.tell()) < position and self._plain.read(min(CHUNK, position - here)):
            self._check_ratio()
        return self.tell()

    def close(self) -> None:
        """Close the file."""
        self._plain.close()
        self._packed.close()

    def _check_ratio(self) -> None:
        unpacked = self.tell()
        if not self._direct and unpacked > SUSPICIOUS and unpacked > LARGEST_RATIO * self._packed.tell():
            raise tarfile.ReadError(f"it unpacks to more than {LARGEST_RATIO} times its size")


class _Header(tarfile.TarInfo):
    """A header that does not pass for the end of the archive when it is damaged."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> _Header:
        try:
            return super().fromtarfile(tarfile_)
        except (tarfile.EOFHeaderError, tarfile.EmptyHeaderError):  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error


def list_tar(path: Path) -> tuple[PlainTar | PackedTar, list[Member]]:
    """Return the pictures in a tar file, in the order in which they lie there: reading a packed one follows it."""
    with path.open("rb") as file:
        start = file.read(8)
    magic = next((magic for magic in UNPACKERS if start.startswith(magic)), None)
    archive = PlainTar(path) if magic is None else PackedTar(path, magic, file_identity(path))
    try:
        members = _members(path, magic)
    except UserError:
        raise
    except Exception as error:  # damaged archives make the reader raise nearly anything
        raise UserError(
            f"{path}: cannot be read as a tar file, perhaps it is truncated or damaged ({error}); fetch or make it anew"
        ) from error
    return archive, members


def _members(path: Path, magic: bytes | None) -> list[Member]:
    members: list[Member] = []
    stream = Stream(path, magic)
    options: Any = {"tarinfo": _Header, "encoding": "utf-8", "errors": "surrogateescape"}
    try:
        tar: Any = tarfile.TarFile(fileobj=cast(IO[bytes], stream), mode="r", **options)
        after = 0
        while (entry := tar.next()) is not None:
            tar.members.clear()  # it would keep every header it has seen
            if entry.offset_data <= after or entry.size < 0:
                raise tarfile.ReadError("a member points back")
            after = entry.offset_data
            below = member_path(path, entry.name)
            if below is not None and entry.isreg() and not entry.issparse():
                fault = "too large" if entry.size > MOST_BYTES else ""
                members.append(Member(below, entry.offset_data, entry.size, entry.size, fault=fault))
    finally:
        stream.close()
    return members
