"""The table of contents at the end of a zip file.

Python's own reader makes an object of twenty fields of each member, ten times as slow as this, which matters where
archives hold a hundred thousand pictures. What is not of the plainest kind is left to it.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

UTF8 = 0x0800  # flag of a name that is in UTF-8
_END = struct.Struct("<4s4H2LH")  # signature, disks, counts, then size and offset of the table, length of a comment
_ENTRY = struct.Struct("<4s2x2B2H4x3L3H8xL")
_LARGEST_COMMENT = 2**16 - 1
_NEWEST = 63  # version of the format up to which an entry means what is read here
_ELSEWHERE = 2**32 - 1, 2**16 - 1  # in place of a number that is too large for its field


class Entry(NamedTuple):
    """What the table says of a member.

    Attributes:
        name: Its path.
        flags: Bits that say, among others, whether it is encrypted.
        method: How it is packed.
        checksum: CRC-32 of its bytes.
        packed: Its bytes as they lie in the file.
        size: Its bytes, unpacked.
        offset: Where its header begins.
    """

    name: str
    flags: int
    method: int
    checksum: int
    packed: int
    size: int
    offset: int


def read_directory(path: Path) -> list[Entry] | None:
    """Return the members of a plain zip file in the order of its table; None where anything about it is unusual.

    Unusual are a damaged file, one of several disks, one with a program before it, and one with fields of 64 bits.
    """
    found = _table(path)
    if found is None:
        return None
    table, count = found
    entries: list[Entry] = []
    place, size = 0, _ENTRY.size
    try:
        for _ in range(count):
            (signature, version, _, flags, method, checksum, packed, unpacked, name, extra, comment, offset) = (
                _ENTRY.unpack_from(table, place)
            )
            if signature != b"PK\1\2" or version > _NEWEST or _ELSEWHERE[0] in (packed, unpacked, offset):
                return None
            end = place + size + name
            entries.append(
                Entry(_decode(table[place + size : end], flags), flags, method, checksum, packed, unpacked, offset)
            )
            place = end + extra + comment
    except (struct.error, UnicodeError):
        return None
    return entries if place == len(table) else None


def may_hold(path: Path, name: str) -> bool:
    """Return False where a zip file certainly has no member called `name`, without looking at each.

    Raises:
        OSError: It cannot be read.
    """
    found = _table(path)
    return found is None or name.encode() in found[0]


def _table(path: Path) -> tuple[bytes, int] | None:
    """Return the table's bytes and the number of its entries, where the file's end describes it in the plainest way."""
    with path.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - _END.size - _LARGEST_COMMENT))
        tail = file.read()
        begin = tail.rfind(b"PK\5\6")
        if begin < 0 or len(tail) - begin < _END.size:
            return None
        _, disk, first, here, count, size, offset, comment = _END.unpack_from(tail, begin)
        end = length - len(tail) + begin
        whole = begin + _END.size + comment == len(tail) and offset + size == end
        if not whole or disk or first or here != count or offset in _ELSEWHERE or count in _ELSEWHERE:
            return None
        file.seek(offset)
        table = file.read(size)
    return (table, count) if len(table) == size else None


def _decode(name: bytes, flags: int) -> str:
    """Return a name; programs that write UTF-8 do not always say so."""
    try:
        return name.decode("utf-8")
    except UnicodeError:
        if flags & UTF8:
            raise
        return name.decode("cp437")
