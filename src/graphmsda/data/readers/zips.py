"""Zip files: pictures in them without unpacking."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from graphmsda.data.images import MOST_BYTES, Unreadable
from graphmsda.data.readers.layout import path_order
from graphmsda.data.readers.members import Member, PositionedFile, member_path
from graphmsda.data.readers.zip_directory import UTF8, Entry, read_directory
from graphmsda.errors import UserError

CHUNK = 1 << 20
_HEADER = struct.Struct("<4s22xHH")  # signature, then the lengths of name and extra field, in a member's own header
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000


class ZipArchive:
    """Reads members by position; the bytes are checked against the archive's checksums."""

    sequential = False
    stamp: tuple[int, ...] = ()  # checksums say it all

    def __init__(self, path: Path) -> None:
        self._file = PositionedFile(path)

    def read(self, member: Member) -> bytes:
        """Return the bytes of a member, or raise `Unreadable`."""
        if member.fault:
            raise Unreadable(member.fault)
        try:
            header = self._file.read(member.offset, _HEADER.size)
            signature, name, extra = _HEADER.unpack(header)
            if signature != b"PK\3\4":
                raise Unreadable("damaged (no header)")
            content = self._unpack(member, member.offset + _HEADER.size + name + extra)
        except (OSError, EOFError, ValueError, OverflowError, struct.error, zlib.error) as error:
            raise Unreadable(f"damaged ({type(error).__name__})") from error
        if len(content) != member.size:
            raise Unreadable("damaged (not of the size that the archive says)")
        if zlib.crc32(content) != member.checksum:
            raise Unreadable("damaged (wrong checksum)")
        return content

    def _unpack(self, member: Member, start: int) -> bytes:
        if member.method == zipfile.ZIP_STORED:
            return self._file.read(start, member.size)
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        pieces: list[bytes] = []
        room, end = member.size + 1, start + member.packed  # one more than it should be is enough to notice
        while room > 0 and not unpacker.eof:
            packed = unpacker.unconsumed_tail
            if not packed:
                packed = self._file.read(start, min(CHUNK, end - start))
                start += len(packed)
            piece = unpacker.decompress(packed, room)
            if not packed and not piece:
                break
            pieces.append(piece)
            room -= len(piece)
        return b"".join(pieces)


def list_zip(path: Path) -> tuple[ZipArchive, list[Member]]:
    """Return the pictures in a zip file, in the order in which a folder of them would be listed."""
    archive = ZipArchive(path)
    entries = read_directory(path)
    if entries is None:
        entries = _read_with_library(path)
    _refuse_overlap(path, entries)
    members: list[Member] = []
    for entry in entries:
        below = member_path(path, entry.name)
        if below is not None:
            sizes = entry.size, entry.packed
            members.append(Member(below, entry.offset, *sizes, entry.method, entry.checksum, _fault(entry)))
    return archive, sorted(members, key=lambda member: path_order(member.name))


def _read_with_library(path: Path) -> list[Entry]:
    try:
        with zipfile.ZipFile(path) as file:
            return [
                Entry(_name(one), one.flag_bits, one.compress_type, one.CRC, one.compress_size, one.file_size,
                      one.header_offset)
                for one in file.infolist()
            ]  # fmt: skip
    except Exception as error:  # damaged archives make the reader raise nearly anything
        raise UserError(
            f"{path}: cannot be read as a zip file, perhaps it is truncated or damaged ({error}); fetch or make it anew"
        ) from error


def _name(entry: zipfile.ZipInfo) -> str:
    """Return the name of a member; programs that write UTF-8 do not always say so."""
    if not entry.flag_bits & UTF8:
        try:
            return entry.orig_filename.encode("cp437").decode("utf-8")
        except UnicodeError:
            pass
    return entry.orig_filename


def _fault(entry: Entry) -> str:
    if entry.flags & _ENCRYPTED:
        return "encrypted"
    if entry.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "packed by a method that is not supported"
    return "too large" if entry.size > MOST_BYTES else ""


def _refuse_overlap(path: Path, entries: Sequence[Entry]) -> None:
    # Many members sharing the same bytes is how a small file is made to unpack for days.
    end, last = 0, ""
    for entry in sorted(entries, key=lambda entry: entry.offset):
        if entry.offset < end:
            raise UserError(
                f"{path}: its members {last!r} and {entry.name!r} share the same bytes, as in a file made to "
                "overwhelm its reader; make it anew"
            )
        end, last = entry.offset + _HEADER.size + entry.packed, entry.name
