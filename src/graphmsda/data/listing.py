"""What a place holds, before anything is decoded: the one face of folders, archives, lists, tables and arrays."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import statistics
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from PIL import Image

from graphmsda.data.images import Decoded, Unreadable, decode_all, image_sizes, load_picture, quiet_decoding

SMALL_SIDE = 64
SMALL_SIZE, LARGE_SIZE = 32, 224
HEADERS = 200


@dataclass(frozen=True, eq=False)
class Listing(ABC):
    """The items of one domain.

    Attributes:
        name: What to call the domain: the name of the folder, or of the file without its suffix.
        origin: Where it was found, as given.
        labels: The class name of each item; None where labels were not asked for.
        parts: ``train``, ``validation`` or ``test`` for each item; None where the place has no such level.
        notes: One sentence for each thing that had to be assumed, such as labels counted from 1.
    """

    name: str
    origin: Path
    labels: tuple[str, ...] | None
    parts: tuple[str, ...] | None = dataclasses.field(default=None, kw_only=True)
    notes: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def item_names(self) -> list[str]:
        """A name for each item that leads back to it: its path, ``file.zip/dog/1.jpg`` or ``file.npz[17]``."""

    @property
    @abstractmethod
    def feature_count(self) -> int | None:
        """The length of the feature vectors; None for images."""

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """What the features are called, in their order; None where they have no names, and for images."""
        return None

    @property
    @abstractmethod
    def own_shape(self) -> tuple[int, int] | None:
        """Height and width that all images share; None where that is unknown or there are no images."""

    @abstractmethod
    def sides(self, limit: int) -> list[int]:
        """Return the smaller side of each of up to `limit` images spread over the listing."""

    @abstractmethod
    def read(self, indices: Sequence[int], image_size: int | None) -> Decoded:
        """Decode the items at `indices`, in that order; `image_size` None leaves the choice to the listing."""

    @abstractmethod
    def picture(self, index: int) -> Image.Image:
        """Return one image at its own size in RGB.

        Raises:
            Unreadable: It cannot be decoded.
        """

    @abstractmethod
    def identity(self) -> str:
        """Return a hash that changes whenever what `read` returns may have changed; labels have no part in it."""


@dataclass(frozen=True, eq=False)
class PictureListing(Listing):
    """A listing of picture files, wherever their bytes lie."""

    @abstractmethod
    def open_item(self, index: int) -> Path | BinaryIO:
        """Return the path of an item, or its bytes to read.

        Raises:
            Unreadable: The bytes cannot be had.
        """

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

        def files() -> Iterable[Path | BinaryIO]:
            for index in range(0, len(self), max(1, -(-len(self) // limit))):
                try:
                    yield self.open_item(index)
                except Unreadable:
                    continue

        return [min(size) for size in image_sizes(files())]

    def read(self, indices: Sequence[int], image_size: int | None) -> Decoded:
        """Decode the images at `indices`, several at a time."""
        return decode_all(self.open_item, indices, image_size or choose_image_size([self]) or SMALL_SIZE)

    def picture(self, index: int) -> Image.Image:
        """Return one image at its own size in RGB."""
        with quiet_decoding():
            return load_picture(self.open_item(index))


@dataclass(frozen=True, eq=False)
class Subset(Listing):
    """Some rows of another listing, in a given order; a row may come twice."""

    whole: Listing
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def item_names(self) -> list[str]:
        """As in the whole."""
        names = self.whole.item_names
        return [names[row] for row in self.rows]

    @property
    def feature_count(self) -> int | None:
        """As in the whole."""
        return self.whole.feature_count

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """As in the whole."""
        return self.whole.feature_names

    @property
    def own_shape(self) -> tuple[int, int] | None:
        """As in the whole."""
        return self.whole.own_shape

    def sides(self, limit: int) -> list[int]:
        """As in the whole, which may be larger but is of the same make."""
        return self.whole.sides(limit)

    def read(self, indices: Sequence[int], image_size: int | None) -> Decoded:
        """Decode the items at `indices` of this subset."""
        return self.whole.read([self.rows[index] for index in indices], image_size)

    def picture(self, index: int) -> Image.Image:
        """Return one image at its own size in RGB."""
        return self.whole.picture(self.rows[index])

    def identity(self) -> str:
        """Hash the whole and the rows."""
        return digest_of(self.whole.identity(), self.rows)


def take(listing: Listing, rows: Iterable[int], *notes: str) -> Listing:
    """Return the given rows of a listing, with their labels and parts, and further `notes`."""
    rows = tuple(rows)

    def chosen(values: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if values is None else tuple(values[row] for row in rows)

    whole, inner = listing, rows
    if isinstance(listing, Subset):  # one level is enough
        whole, inner = listing.whole, tuple(listing.rows[row] for row in rows)
    return Subset(
        listing.name,
        listing.origin,
        chosen(listing.labels),
        whole,
        inner,
        parts=chosen(listing.parts),
        notes=(*listing.notes, *notes),
    )


def digest_of(*values: object) -> str:
    """Return a short hash of values with an unambiguous ``repr``."""
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        digest.update(repr(value).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def file_identity(path: Path) -> tuple[int, int]:
    """Return what tells a changed file from an unchanged one without reading it: size and time of change."""
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def choose_image_size(listings: Sequence[Listing]) -> int | None:
    """Return a size that suits all `listings`, or None where their samples fit together as they are.

    Arrays of one shape stay as they are. Otherwise the smaller side of the median image decides: up to 64 pixels are
    read at 32 x 32, larger ones at 224 x 224.
    """
    pictures = [listing for listing in listings if listing.feature_count is None]
    shapes = {listing.own_shape for listing in pictures}
    if not pictures or (len(shapes) == 1 and None not in shapes):
        return None
    limit = max(1, HEADERS // len(pictures))
    sides = [side for listing in pictures for side in listing.sides(limit)]
    return SMALL_SIZE if not sides or statistics.median(sides) <= SMALL_SIDE else LARGE_SIZE


def place_name(path: Path) -> str:
    """Return the last part of `path` even where it is written as ``.`` or ``..``."""
    return Path(os.path.abspath(path)).name or str(path)


def unique_names(listings: Sequence[Listing]) -> list[str]:
    """Return the names of the domains, told apart by file, by parent folder, or failing that by a number."""
    names = [listing.name for listing in listings]
    files = [place_name(listing.origin) for listing in listings]
    count, pairs = Counter(names), Counter(zip(names, files, strict=True))
    names = [
        name
        if count[name] == 1
        else file
        if pairs[name, file] == 1
        else f"{name} ({listing.origin.absolute().parent.name})"
        for name, file, listing in zip(names, files, listings, strict=True)
    ]
    result: list[str] = []
    for name in names:
        unique, number = name, 1
        while unique in result:
            number += 1
            unique = f"{name} {number}"
        result.append(unique)
    return result
