"""Images inside ``.zip`` and ``.tar`` files (``.tar.gz``, ``.tar.bz2`` and ``.tar.xz`` too), without unpacking them."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch

from graphmsda.data.images import Decoded, Unreadable, decode_all
from graphmsda.data.listing import SMALL_SIZE, PictureListing, choose_image_size, digest_of, place_name
from graphmsda.data.readers.layout import arrange, printable
from graphmsda.data.readers.members import Archive, Member
from graphmsda.data.readers.tars import list_tar
from graphmsda.data.readers.zips import list_zip
from graphmsda.errors import UserError
from graphmsda.garbage import garbage_left

SUFFIXES = (".zip", ".tar", ".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz")
READ_AHEAD = 64 * 2**20  # bytes of pictures held in memory while going through a packed archive


@dataclass(frozen=True, eq=False)
class ArchiveListing(PictureListing):
    """Images inside an archive, one item each.

    A zip file is listed in the order of a folder with the same content, a tar in its own. Where only going forward is
    cheap (a packed tar), `read` goes through the archive in its order whatever order is asked for.
    """

    members: tuple[Member, ...]
    archive: Archive

    def __len__(self) -> int:
        return len(self.members)

    @property
    def item_names(self) -> list[str]:
        """The path of the archive and, below it, of the image."""
        return [f"{self.origin}/{printable(member.name)}" for member in self.members]

    def open_item(self, index: int) -> io.BytesIO:
        """Return the bytes of an image."""
        return io.BytesIO(self.archive.read(self.members[index]))

    def read(self, indices: Sequence[int], image_size: int | None) -> Decoded:
        """Decode the images at `indices`, several at a time."""
        if not self.archive.sequential:
            return super().read(indices, image_size)
        size = image_size or choose_image_size([self]) or SMALL_SIZE
        order = sorted(range(len(indices)), key=lambda position: self.members[indices[position]].offset)
        x = torch.empty((len(indices), 3, size, size), dtype=torch.uint8)
        failures: dict[int, str] = {}
        for group in self._groups(order, indices):
            content = [self._content(indices[position]) for position in group]
            decoded = decode_all(partial(_file, content), range(len(group)), size)
            x[[group[row] for row in decoded.kept]] = decoded.x
            failures.update((group[row], reason) for row, reason in decoded.failures)
        kept = [position for position in range(len(indices)) if position not in failures]
        return Decoded(x if not failures else x[kept], kept, sorted(failures.items()))

    def identity(self) -> str:
        """Hash names, sizes and checksums; for a tar, which keeps none, also its own size and time of change."""
        return self._identity

    @cached_property
    @garbage_left()
    def _identity(self) -> str:
        return digest_of(self.archive.stamp, [(member.name, member.size, member.checksum) for member in self.members])

    def _groups(self, order: Sequence[int], indices: Sequence[int]) -> Iterator[list[int]]:
        group: list[int] = []
        held = 0
        for position in order:
            size = self.members[indices[position]].size
            if group and held + size > READ_AHEAD:
                yield group
                group, held = [], 0
            group.append(position)
            held += size
        if group:
            yield group

    def _content(self, index: int) -> bytes | Unreadable:
        try:
            return self.archive.read(self.members[index])
        except Unreadable as error:
            return error


@garbage_left()
def open_archive(path: Path, *, labelled: bool, root: Path | None = None) -> ArchiveListing:
    """List the images in an archive laid out as a folder would be, perhaps with one more folder around everything.

    Hidden files, links, other kinds of files and archives inside the archive are passed over.

    Raises:
        UserError: The archive is damaged, holds no images, or has members that lead outside it.
    """
    if path.is_dir():
        raise UserError(f"{path}: a folder; give a .zip or .tar file, or leave out --format archive")
    try:
        with path.open("rb") as file:
            is_zip = file.read(4) in (b"PK\3\4", b"PK\5\6") or path.suffix.lower() == ".zip"
        archive: Archive
        archive, members = list_zip(path) if is_zip else list_tar(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be opened ({error.strerror}); give a file you may read") from error
    if not members:
        raise UserError(f"{path}: no images in it; give an archive that holds some (jpg, png, webp, bmp or tiff)")
    if all(member.fault for member in members):
        raise UserError(
            f"{path}: none of its {len(members):,} images can be read ({members[0].name}: {members[0].fault}); "
            "unpack it and give the folder, or make it anew"
        )
    latest = {member.name: member for member in members}
    notes: tuple[str, ...] = ()
    if len(latest) < len(members):
        notes = (f"{path}: {len(members) - len(latest):,} of its images are replaced by later ones of the same name",)
        members = [member for member in members if latest[member.name] is member]
    labels, parts = arrange(path, [member.name for member in members], labelled=labelled, wrapped=True)
    return ArchiveListing(_name(path), path, labels, tuple(members), archive, parts=parts, notes=notes)


def _name(path: Path) -> str:
    name = place_name(path)
    suffix = next((suffix for suffix in SUFFIXES if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)] or name


def _file(contents: Sequence[bytes | Unreadable], position: int) -> io.BytesIO:
    content = contents[position]
    if isinstance(content, Unreadable):
        raise content
    return io.BytesIO(content)
