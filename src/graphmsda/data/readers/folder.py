"""Images in folders: ``class/image`` where labels are wanted, any arrangement where they are not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from graphmsda.data.images import is_image_name
from graphmsda.data.listing import PictureListing, digest_of, file_identity, place_name
from graphmsda.data.readers.layout import arrange, path_order, printable
from graphmsda.errors import UserError


@dataclass(frozen=True, eq=False)
class FolderListing(PictureListing):
    """Image files, one item each.

    Attributes:
        paths: The files.
        base: The folder to which `identity` relates their names; by default the origin.
    """

    paths: tuple[Path, ...]
    base: Path | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def item_names(self) -> list[str]:
        """The path of each image."""
        return [printable(path) for path in self.paths]

    def open_item(self, index: int) -> Path:
        """Return the path of an image."""
        return self.paths[index]

    def identity(self) -> str:
        """Hash names below the base, sizes and times of change."""
        base = os.fspath(self.base or self.origin)
        return digest_of([(_below(base, os.fspath(path)), *file_identity(path)) for path in self.paths])


def open_folder(folder: Path, *, labelled: bool, root: Path | None = None) -> FolderListing:
    """List the images below `folder` in a fixed order; hidden files and other kinds of files are passed over.

    A level of ``train`` and ``test`` folders above the classes marks the parts; see `layout.arrange`.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: not a folder; give a folder of images, or leave out --format folder")
    names = sorted(_walk(folder), key=path_order)
    if not names:
        expected = "a folder with one sub-folder of images per class" if labelled else "a folder that holds some"
        raise UserError(f"{folder}: no images in it; give {expected} (jpg, png, webp, bmp or tiff)")
    labels, parts = arrange(folder, names, labelled=labelled)
    return FolderListing(place_name(folder), folder, labels, tuple(folder / name for name in names), parts=parts)


def open_image(path: Path, *, labelled: bool, root: Path | None = None) -> FolderListing:
    """List a single image, which has no label."""
    if labelled:
        raise UserError(f"{path}: a single image has no label; give a folder with one sub-folder of images per class")
    return FolderListing(path.stem, path, None, (path,))


def _walk(top: Path) -> Iterator[str]:
    """Yield the path below `top` of each image there, the same ones whether or not labels are wanted.

    Links are followed, but below each folder directly in `top` every real folder is entered once, however many links
    lead to it; `top` itself is not entered again, lest a link back to it file every image under one class.
    """
    files, folders = _entries(os.fspath(top))
    yield from files
    for first in folders:
        seen = {_identity(os.fspath(top))}
        waiting = [first]
        while waiting:
            folder = waiting.pop()
            place = os.path.join(top, folder)
            identity = _identity(place)
            if identity in seen:
                continue
            seen.add(identity)
            files, inner = _entries(place)
            yield from (f"{folder}/{name}" for name in files)
            waiting += [f"{folder}/{name}" for name in reversed(inner)]


def _entries(folder: str) -> tuple[list[str], list[str]]:
    """Return the names of the images and of the folders directly in `folder`, sorted, without hidden ones."""
    files: list[str] = []
    folders: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _is(entry.is_dir):
                    folders.append(entry.name)
                elif is_image_name(entry.name) and (_is(entry.is_file) or _is_dangling(entry)):
                    files.append(entry.name)
    except OSError as error:
        raise _unlistable(folder, error) from error
    return sorted(files), sorted(folders)


def _is(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except OSError:  # a link that leads in circles is neither a file nor a folder
        return False


def _is_dangling(entry: os.DirEntry[str]) -> bool:
    # A link to nowhere is kept, to be counted among the unreadable images rather than to vanish without a word.
    return entry.is_symlink() and not os.path.exists(entry.path)


def _identity(folder: str) -> tuple[int, int]:
    try:
        status = os.stat(folder)
    except OSError as error:
        raise _unlistable(folder, error) from error
    return status.st_dev, status.st_ino


def _unlistable(folder: str, error: OSError) -> UserError:
    return UserError(f"{printable(folder)}: cannot be listed ({error.strerror}); give a folder you may read")


def _below(base: str, path: str) -> str:
    # Cutting is much faster than os.path.relpath, which looks up the current folder each time.
    return path[len(base) + 1 :] if path.startswith(base + os.sep) else os.path.relpath(path, base)
