"""Images in folders: ``class/image`` where labels are wanted, any arrangement where they are not."""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from graphmsda.data.images import Unreadable, decode, image_sizes, is_image_name
from graphmsda.data.listing import SMALL_SIZE, Decoded, Listing, choose_image_size, place_name
from graphmsda.errors import UserError


@dataclass(frozen=True, eq=False)
class FolderListing(Listing):
    """Image files, one item each."""

    paths: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def item_names(self) -> list[str]:
        """The path of each image."""
        return [_printable(path) for path in self.paths]

    @property
    def feature_count(self) -> int | None:
        """None: these are images."""
        return None

    @property
    def own_shape(self) -> tuple[int, int] | None:
        """None: files may have any size."""
        return None

    def sides(self, limit: int) -> list[int]:
        """Return the smaller side of up to `limit` images, from their headers."""
        step = max(1, -(-len(self) // limit))
        return [min(size) for size in image_sizes(self.paths[::step])]

    def read(self, indices: Sequence[int], image_size: int | None) -> Decoded:
        """Decode the images at `indices`, several at a time."""
        size = image_size or choose_image_size([self]) or SMALL_SIZE

        def attempt(index: int) -> NDArray[np.uint8] | str:
            try:
                return decode(self.paths[index], size)
            except Unreadable as error:
                return str(error)

        x = torch.empty((len(indices), 3, size, size), dtype=torch.uint8)
        kept: list[int] = []
        failures: list[tuple[int, str]] = []
        # Filters are set here because they are shared by all threads and must not change while those run.
        with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
            warnings.simplefilter("ignore")
            warnings.simplefilter("default", ResourceWarning)
            for position, result in enumerate(pool.map(attempt, indices)):
                if isinstance(result, str):
                    failures.append((position, result))
                else:
                    x[len(kept)] = torch.from_numpy(result)
                    kept.append(position)
        return Decoded(x[: len(kept)], kept, failures)


def open_folder(folder: Path, *, labelled: bool) -> FolderListing:
    """List the images below `folder` in a fixed order; hidden files and other kinds of files are passed over."""
    name = place_name(folder)
    if not labelled:
        paths = sorted(_images(folder, set()), key=_order)
        if not paths:
            raise UserError(f"{folder}: no images in it; give a folder that holds some (jpg, png, webp, bmp or tiff)")
        return FolderListing(name, folder, None, tuple(paths))

    loose, folders = _entries(folder)
    # The root counts as seen for each class, so that a link back to it does not file every image under that class.
    root = _identity(folder)
    by_class = {sub: sorted(_images(sub, {root}), key=_order) for sub in folders}
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
