"""Images that are one and the same picture: a perceptual hash, a search that does not compare all with all, a proof.

Three sieves, each finer than the last, found by measuring re-encoded copies against pictures known to differ:

1. a 64-bit hash of the coarse pattern of light and dark; candidates differ in at most `NEAR_BITS` bits;
2. the correlation of 16 x 16 thumbnails in grey, at least `THUMBNAIL_BOUND`;
3. the correlation of the pictures in colour at up to 32 x 32, at least what `is_copy` asks for.

The hash alone will not do: among 34,000 MNIST digits it calls 1.5 million pairs close, since one written 1 is much like
another. What tells them from copies is detail, and how many others look the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from graphmsda.data.checks.hash_search import HashSearch, Integers

HASH_SIDE, THUMBNAIL_SIDE, DETAIL_SIDE = 32, 16, 32
NEAR_BITS = 8
THUMBNAIL_BOUND, CROWDED_THUMBNAIL_BOUND = 0.95, 0.97
LARGE_BOUND, SMALL_BOUNDS, TINY_SIDE = 0.965, (0.965, 0.985, 0.995), 24
CROWD = 3  # look-alikes beyond which a picture needs the stricter proof
MOST_THUMBNAILS = 50_000_000  # compared before the search gives up: under a minute
MOST_CANDIDATES = 1_000_000  # pairs kept for the proof; beyond, those with the most similar thumbnails
PROVED_AT_ONCE = 20_000


class Detail(NamedTuple):
    """The pixels by which two pictures are told apart.

    Attributes:
        pixels: In colour, at most 32 x 32; smaller pictures as they are.
        large: Whether the picture itself has at least 64 pixels a side.
    """

    pixels: NDArray[np.uint8]
    large: bool


Load = Callable[[Sequence[int]], list[Detail | None]]


@dataclass(frozen=True)
class Found:
    """Pairs of near duplicates.

    Attributes:
        pairs: Positions, the smaller first, ``(M, 2)``.
        complete: Whether all that is near was compared; False where too many pictures look alike.
    """

    pairs: Integers
    complete: bool


def coarse(picture: Image.Image) -> tuple[int, NDArray[np.uint8]]:
    """Return the perceptual hash of a picture and its 16 x 16 thumbnail in grey."""
    grey = picture.convert("L").resize((HASH_SIDE, HASH_SIDE), Image.Resampling.BILINEAR, reducing_gap=3.0)
    light = np.asarray(grey, dtype=np.float32)
    half = HASH_SIDE // THUMBNAIL_SIDE
    thumbnail = light.reshape(THUMBNAIL_SIDE, half, THUMBNAIL_SIDE, half).mean(axis=(1, 3))
    return perceptual_hash(light), np.round(thumbnail).astype(np.uint8)


def perceptual_hash(light: NDArray[np.float32]) -> int:
    """Return 64 bits: which of the 8 x 8 slowest cosine waves in a 32 x 32 grey picture are above their median.

    The first, the mean brightness, has no say. Brightness and contrast do not change the rest.
    """
    waves = (_COSINES @ light @ _COSINES.T).ravel()
    bits = waves > np.median(waves[1:])
    bits[0] = False
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


def detail(picture: Image.Image) -> Detail:
    """Return what `correlation` compares."""
    size = min(picture.width, DETAIL_SIDE), min(picture.height, DETAIL_SIDE)
    large = min(picture.size) >= 2 * DETAIL_SIDE
    if picture.size != size:
        picture = picture.resize(size, Image.Resampling.BILINEAR, reducing_gap=3.0)
    return Detail(np.asarray(picture, dtype=np.uint8), large)


def correlation(first: Detail, second: Detail) -> float:
    """Return how alike two pictures are, 1 for the same up to brightness and contrast; the larger is shrunk first."""
    height, width = np.minimum(first.pixels.shape[:2], second.pixels.shape[:2]).tolist()
    x, y = (_resized(each.pixels, width, height).ravel() for each in (first, second))
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 0 else 0.0


def is_copy(first: Detail, second: Detail, *, crowded: bool) -> bool:
    """Return whether two pictures count as one.

    A correlation of 0.965 keeps JPEG copies, halved copies, other brightness and crops of 1 % at each edge, and lets
    through hardly any pair of different photographs. Of small pictures more is asked for. Below 24 pixels a side 0.985;
    where there are several look-alikes, as of handwritten digits, 0.985, or 0.995 below 24 pixels; and about the same
    colour and contrast, since printed digits differ in little else.
    """
    if first.large and second.large:
        return correlation(first, second) >= LARGE_BOUND
    tiny = min(*first.pixels.shape[:2], *second.pixels.shape[:2]) < TINY_SIDE
    return correlation(first, second) >= SMALL_BOUNDS[tiny + crowded] and _same_tone(first.pixels, second.pixels)


def _same_tone(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> bool:
    apart = np.abs(first.mean(axis=(0, 1)) - second.mean(axis=(0, 1))).max()
    low, high = sorted((float(first.std()), float(second.std())))
    return bool(apart <= 20 and low >= 0.8 * high)


def near_duplicates(
    hashes: NDArray[np.uint64], thumbnails: NDArray[np.uint8], load: Load, *, bits: int = NEAR_BITS
) -> Found:
    """Find the pairs of near duplicates among pictures.

    Args:
        hashes: The perceptual hash of each.
        thumbnails: The thumbnail of each in grey, ``(N, 16, 16)``.
        load: Returns the `detail` of the pictures at some positions, None for one that is not to be had.
        bits: Bits in which the hashes may differ, 0 to 12.
    """
    search = HashSearch(hashes, bits)
    kept = [np.empty((0, 3))]
    count, compared, complete = 0, 0, True
    for pairs in search:
        if compared > MOST_THUMBNAILS:
            complete = False
            break
        compared += len(pairs)
        alike = _correlations(thumbnails, pairs)
        chosen = alike >= THUMBNAIL_BOUND
        kept.append(np.column_stack([pairs[chosen], alike[chosen]]))
        count += int(chosen.sum())
        if count > 2 * MOST_CANDIDATES:
            kept, count, complete = [_best(np.concatenate(kept))], MOST_CANDIDATES, False
    candidates = np.concatenate(kept)
    if len(candidates) > MOST_CANDIDATES:
        candidates, complete = _best(candidates), False
    pairs = candidates[:, :2].astype(np.int64)
    look_alikes = np.bincount(pairs.ravel(), minlength=len(hashes))
    crowded = np.asarray((look_alikes[pairs] > CROWD).all(axis=1))
    worth = ~crowded | (candidates[:, 2] >= CROWDED_THUMBNAIL_BOUND)
    return Found(_proved(pairs[worth], crowded[worth], load), complete and search.complete)


def group(count: int, pairs: Integers) -> list[list[int]]:
    """Return the sets of two or more positions below `count` that `pairs` tie together."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not len(pairs):
        return []
    ties = coo_array((np.ones(len(pairs), dtype=np.int8), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    label = connected_components(ties, directed=False)[1]
    order = np.argsort(label, kind="stable")
    sets = np.split(order, np.flatnonzero(np.diff(label[order])) + 1)
    return sorted(members.tolist() for members in sets if len(members) > 1)


def _correlations(thumbnails: NDArray[np.uint8], pairs: Integers) -> NDArray[np.float64]:
    result = np.empty(len(pairs))
    flat = thumbnails.reshape(len(thumbnails), -1)
    for start in range(0, len(pairs), 1 << 15):
        block = slice(start, start + (1 << 15))
        x, y = (flat[pairs[block, side]].astype(np.float32) for side in (0, 1))
        x -= x.mean(axis=1, keepdims=True)
        y -= y.mean(axis=1, keepdims=True)
        scale = np.sqrt(np.einsum("ij,ij->i", x, x) * np.einsum("ij,ij->i", y, y))
        result[block] = np.einsum("ij,ij->i", x, y) / np.maximum(scale, 1e-6)
    return result


def _best(candidates: NDArray[np.float64]) -> NDArray[np.float64]:
    return candidates[np.argsort(-candidates[:, 2], kind="stable")[:MOST_CANDIDATES]]


def _proved(pairs: Integers, crowded: NDArray[np.bool_], load: Load) -> Integers:
    proved = np.zeros(len(pairs), dtype=bool)
    order = np.lexsort((pairs.max(axis=1), pairs.min(axis=1)))  # neighbours are read together
    for start in range(0, len(pairs), PROVED_AT_ONCE):
        rows = order[start : start + PROVED_AT_ONCE]
        wanted = np.unique(pairs[rows]).tolist()
        details = dict(zip(wanted, load(wanted), strict=True))
        for row in rows.tolist():
            first, second = (details[int(position)] for position in pairs[row])
            if first is not None and second is not None:
                proved[row] = is_copy(first, second, crowded=bool(crowded[row]))
    return np.sort(pairs[order[proved[order]]], axis=1)


def _resized(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.float32]:
    if pixels.shape[:2] != (height, width):
        pixels = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))
    return pixels.astype(np.float32)


def _cosines() -> NDArray[np.float32]:
    wave, place = np.arange(8)[:, None], np.arange(HASH_SIDE)[None, :]
    return np.asarray(np.cos(math.pi * wave * (2 * place + 1) / (2 * HASH_SIDE)), dtype=np.float32)


_COSINES = _cosines()
