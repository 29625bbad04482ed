"""What a place holds, before anything is decoded."""

from __future__ import annotations

import os
import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from graphmsda.data.images import is_image_name
from graphmsda.errors import UserError

EXPECTED = "give a folder of images or an .npz file with x and y"

SMALL_SIDE = 64
SMALL_SIZE, LARGE_SIZE = 32, 224
HEADERS = 200


@dataclass(frozen=True)
class Decoded:
    """The samples that could be read.

    Attributes:
        x: Images, uint8 ``(N, 3, H, W)``, or features, float32 ``(N, F)``, in the order asked for.
        kept: For each row of `x` its position within the indices asked for.
        failures: Position within the indices asked for, and the reason, of each sample that could not be read.
    """

    x: Tensor
    kept: list[int]
    failures: list[tuple[int, str]]


@dataclass(frozen=True, eq=False)
class Listing(ABC):
    """The items of one domain.

    Attributes:
        name: What to call the domain: the name of the folder, or of the file without its suffix.
        origin: Where it was found, as given.
        labels: The class name of each item; None where labels were not asked for.
    """

    name: str
    origin: Path
    labels: tuple[str, ...] | None

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def item_names(self) -> list[str]:
        """A name for each item that leads back to it: its path, or ``file.npz[17]``."""

    @property
    @abstractmethod
    def feature_count(self) -> int | None:
        """The length of the feature vectors; None for images."""

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


def open_listing(path: str | Path, *, labelled: bool) -> Listing:
    """Find out what lies at `path`: a folder of images, an ``.npz`` file or, without labels, a single image.

    With ``labelled=False`` nothing that could be a label is looked at.
    """
    from graphmsda.data.arrays import open_arrays
    from graphmsda.data.folder import FolderListing, open_folder

    origin = Path(path).expanduser()
    if origin.is_dir():
        return open_folder(origin, labelled=labelled)
    if not origin.exists():
        raise UserError(f"{origin}: not found; {EXPECTED}")
    if origin.suffix.lower() == ".npz":
        return open_arrays(origin, labelled=labelled)
    if not is_image_name(origin.name):
        raise UserError(f"{origin}: neither a folder nor a known kind of file; {EXPECTED}")
    if labelled:
        raise UserError(f"{origin}: a single image has no label; {EXPECTED}")
    return FolderListing(origin.stem, origin, None, (origin,))


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
