"""What is known of a picture inside an archive, and the rules for the names found there."""

from __future__ import annotations

import os
import re
import weakref
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from graphmsda.data.images import SUFFIXES, is_image_name
from graphmsda.data.readers.layout import printable
from graphmsda.errors import UserError

# A path of folders and a name, none of them empty or hidden, without any sign that means something somewhere.
_PLAIN = re.compile(r"(?:[^./\\:\0][^/\\:\0]*/)*[^./\\:\0][^/\\:\0]*")


class Member(NamedTuple):
    """A picture inside an archive.

    Attributes:
        name: Its path there, with ``/`` between folders.
        offset: Where it begins: its header in a zip file, its bytes in a tar (once unpacked).
        size: Its bytes, unpacked.
        packed: Its bytes as they lie in the file.
        method: How a zip file packed it.
        checksum: Of its bytes; 0 where the archive keeps none.
        fault: Why it cannot be read, where that is known from the start.
    """

    name: str
    offset: int
    size: int
    packed: int = 0
    method: int = 0
    checksum: int = 0
    fault: str = ""


class Archive(Protocol):
    """Reads members of one archive, from any thread or forked process."""

    @property
    def sequential(self) -> bool:
        """Whether going forward is much cheaper than going back."""

    @property
    def stamp(self) -> tuple[int, ...]:
        """What identifies the content beside names, sizes and checksums of the members."""

    def read(self, member: Member) -> bytes:
        """Return the bytes of a member, or raise `Unreadable`."""


def member_path(archive: Path, name: str) -> str | None:
    """Return the path of a picture to list, None for what is passed over, and refuse names that lead elsewhere.

    Folders, other kinds of files, hidden files and what macOS adds are passed over. Nothing is ever unpacked to
    disk, but an archive made to write outside its folder is not one to be trusted with the rest.
    """
    if _PLAIN.fullmatch(name) and "__MACOSX" not in name:  # nearly every name: the rules below leave it as it is
        return name if name[name.rfind(".") :].lower() in SUFFIXES else None
    path = name.replace("\\", "/")  # some programs write them so
    folders = path.split("/")
    if path.startswith("/") or ".." in folders or re.match("[A-Za-z]:", path) or "\0" in path:
        raise UserError(
            f"{archive}: its member {printable(name)!r} leads outside the archive, so none of it is read; "
            "make it anew with relative paths"
        )
    if path.endswith("/") or not is_image_name(path):
        return None
    folders = [folder for folder in folders if folder not in ("", ".")]
    if any(folder.startswith(".") or folder == "__MACOSX" for folder in folders):
        return None
    return "/".join(folders)


class PositionedFile:
    """A file read at given positions; safe for threads and forks, since no position is shared."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None
        if hasattr(os, "pread"):  # kept open, so that what was listed is what is read even if the file is replaced
            self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            weakref.finalize(self, os.close, self._handle)

    def read(self, offset: int, count: int) -> bytes:
        """Return up to `count` bytes from `offset` on; fewer only at the end of the file."""
        if self._handle is None:
            with self.path.open("rb") as file:
                file.seek(offset)
                return file.read(count)
        pieces: list[bytes] = []
        while count > 0:
            piece = os.pread(self._handle, count, offset)
            if not piece:
                break
            pieces.append(piece)
            offset, count = offset + len(piece), count - len(piece)
        return b"".join(pieces)

    def __reduce__(self) -> Any:
        return PositionedFile, (self.path,)
