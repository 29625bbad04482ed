"""One pass over the items of many listings with all cores: what each image is, without keeping the images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from graphmsda.data.checks.duplicates import THUMBNAIL_SIDE, Detail, coarse, detail
from graphmsda.data.images import Unreadable, quiet_decoding
from graphmsda.data.listing import Listing
from graphmsda.forked import map_in_order

CHUNK = 64  # pictures handed to a process at a time
FEW = 500  # pictures below which starting processes costs more than it saves
ROWS = 4096  # feature vectors read at a time
DIGEST = 16  # bytes

Advance = Callable[[str, int], None]


@dataclass
class Scan:
    """What was found of each item of a listing.

    Attributes:
        digest: Hash of the pixels with their size, or of the feature vector; zeros for what cannot be read.
        hashes: Perceptual hash of each image.
        thumbnails: Each image in grey, ``(N, 16, 16)``.
        contrast: Standard deviation of the most varied colour channel of each image, from 0 to 255.
        sizes: Width and height of each image, ``(N, 2)``; zeros for what cannot be read.
        unreadable: Item and reason.
        range: Smallest and largest finite value of the feature vectors.
        not_finite: Number of feature vectors that hold a value that is not finite.
    """

    digest: NDArray[np.uint8]
    hashes: NDArray[np.uint64]
    thumbnails: NDArray[np.uint8]
    contrast: NDArray[np.float32]
    sizes: NDArray[np.int64]
    unreadable: dict[int, str] = field(default_factory=dict)
    range: tuple[float, float] | None = None
    not_finite: int = 0


def scan(listing: Listing, advance: Advance = lambda name, count: None) -> Scan:
    """Read every item of a listing once."""
    count = len(listing)
    features = listing.feature_count is not None
    pictures = 0 if features else count
    result = Scan(
        np.zeros((count, DIGEST), dtype=np.uint8),
        np.zeros(pictures, dtype=np.uint64),
        np.zeros((pictures, THUMBNAIL_SIDE, THUMBNAIL_SIDE), dtype=np.uint8),
        np.zeros(pictures, dtype=np.float32),
        np.zeros((pictures, 2), dtype=np.int64),
    )
    if features:
        _scan_features(listing, result, advance)
        return result
    for items, chunk in map_pictures(listing, range(count), _look_at):
        for item, found in zip(items, chunk, strict=True):
            if isinstance(found, str):
                result.unreadable[item] = found
                continue
            digest, result.hashes[item], result.thumbnails[item], result.contrast[item], result.sizes[item] = found
            result.digest[item] = np.frombuffer(digest, dtype=np.uint8)
        advance(listing.name, len(items))
    return result


def details(listing: Listing, items: Sequence[int]) -> list[Detail | None]:
    """Return what tells the images at `items` apart; None for one that cannot be read."""
    return [
        None if isinstance(found, str) else found
        for _, chunk in map_pictures(listing, items, detail)
        for found in chunk
    ]


def map_pictures(
    listing: Listing, items: Sequence[int], function: Callable[[Image.Image], Any]
) -> Iterator[tuple[Sequence[int], list[Any]]]:
    """Yield, chunk by chunk in order, some items and what `function` makes of each image, or why it is unreadable."""

    def attempt(item: int) -> Any:
        try:
            return function(listing.picture(item))
        except Unreadable as error:
            return str(error)

    def work(chunk: Sequence[int]) -> list[Any]:
        return [attempt(item) for item in chunk]

    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    processes = 1 if len(items) < FEW else None
    with quiet_decoding():
        yield from zip(chunks, map_in_order(work, chunks, what=str(listing.origin), processes=processes), strict=True)


def _look_at(picture: Image.Image) -> tuple[bytes, int, NDArray[np.uint8], float, tuple[int, int]]:
    digest = hashlib.blake2b(picture.tobytes(), digest_size=DIGEST, salt=b"%dx%d" % picture.size).digest()
    contrast = float(detail(picture).pixels.std(axis=(0, 1)).max())
    return digest, *coarse(picture), contrast, picture.size


def _scan_features(listing: Listing, result: Scan, advance: Advance) -> None:
    low, high = np.inf, -np.inf
    for start in range(0, len(listing), ROWS):
        items = range(start, min(start + ROWS, len(listing)))
        decoded = listing.read(items, None)
        x = decoded.x.numpy()
        for position, reason in decoded.failures:
            result.unreadable[items[position]] = reason
        for position, row in zip(decoded.kept, x + 0.0, strict=True):  # -0 and 0 are one value
            digest = hashlib.blake2b(row.tobytes(), digest_size=DIGEST).digest()
            result.digest[items[position]] = np.frombuffer(digest, dtype=np.uint8)
        finite = np.isfinite(x)
        result.not_finite += int((~finite.all(axis=1)).sum())
        if finite.any():
            low, high = min(low, float(x[finite].min())), max(high, float(x[finite].max()))
        advance(listing.name, len(items))
    if low <= high:
        result.range = low, high
