"""Images in folders: ``class/image`` where labels are wanted, any arrangement where they are not."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from graphmsda.data.images import is_image_name
from graphmsda.data.listing import PictureListing, digest_of, file_identity, place_name
from graphmsda.errors import UserError


@dataclass(frozen=True, eq=False)
class FolderListing(PictureListing):
    """Image files, one item each."""

    paths: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def item_names(self) -> list[str]:
        """The path of each image."""
        return [_printable(path) for path in self.paths]

    def open_item(self, index: int) -> Path:
        """Return the path of an image."""
        return self.paths[index]

    def identity(self) -> str:
        """Hash names below the origin, sizes and times of change."""
        return digest_of([(os.path.relpath(path, self.origin), *file_identity(path)) for path in self.paths])


def open_folder(folder: Path, *, labelled: bool, root: Path | None = None) -> FolderListing:
    """List the images below `folder` in a fixed order; hidden files and other kinds of files are passed over."""
    name = place_name(folder)
    if not labelled:
        paths = sorted(_images(folder, set()), key=_order)
        if not paths:
            raise UserError(f"{folder}: no images in it; give a folder that holds some (jpg, png, webp, bmp or tiff)")
        return FolderListing(name, folder, None, tuple(paths))

    loose, folders = _entries(folder)
    # The root counts as seen for each class, so that a link back to it does not file every image under that class.
    top = _identity(folder)
    by_class = {sub: sorted(_images(sub, {top}), key=_order) for sub in folders}
    found = [(_class_name(sub), path) for sub, paths in by_class.items() for path in paths]
    if loose and found:
        raise UserError(
            f"{folder}: {_printable(loose[0])} lies beside the class folders; "
            "move each image into the folder of its class, or elsewhere"
        )
    if loose:
        raise UserError(
            f"{folder}: its {len(loose)} images lie directly in it, so their classes are unknown; "
            "put them into one folder per class, such as cat/1.jpg and dog/2.jpg"
        )
    if not found:
        raise UserError(f"{folder}: no images in it; give a folder with one sub-folder of images per class")
    return FolderListing(name, folder, tuple(label for label, _ in found), tuple(path for _, path in found))


def open_image(path: Path, *, labelled: bool, root: Path | None = None) -> FolderListing:
    """List a single image, which has no label."""
    if labelled:
        raise UserError(f"{path}: a single image has no label; give a folder with one sub-folder of images per class")
    return FolderListing(path.stem, path, None, (path,))


def _images(folder: Path, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """Yield the images below `folder`, entering each real directory once however many links lead to it."""
    identity = _identity(folder)
    if identity in seen:
        return
    seen.add(identity)
    files, folders = _entries(folder)
    yield from files
    for sub in folders:
        yield from _images(sub, seen)


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the images and the folders directly in `folder`, sorted, without hidden ones."""
    files: list[Path] = []
    folders: list[Path] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    folders.append(Path(entry.path))
                elif is_image_name(entry.name) and (entry.is_file() or _is_dangling(entry)):
                    files.append(Path(entry.path))
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed ({error.strerror}); give a folder you may read") from error
    return sorted(files, key=_order), sorted(folders, key=_order)


def _is_dangling(entry: os.DirEntry[str]) -> bool:
    # A link to nowhere is kept, to be counted among the unreadable images rather than to vanish without a word.
    return entry.is_symlink() and not os.path.exists(entry.path)


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _order(path: Path) -> tuple[str, ...]:
    return path.parts


def _class_name(folder: Path) -> str:
    # File systems differ in how they spell accented letters; classes are matched by name across them.
    return unicodedata.normalize("NFC", _printable(Path(folder.name)))


def _printable(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")
