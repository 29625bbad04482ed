"""Which images make a part: draws that give the same images on every machine and with every version of numpy."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from graphmsda.data.sampler import seed_of

VALIDATION_SHARE = 0.1


def shuffled(count: int, seed: int, name: str) -> NDArray[np.int64]:
    """Return the numbers below `count` in an order that depends on `count`, `seed` and `name` alone.

    >>> shuffled(5, 0, "mnist").tolist() == shuffled(5, 0, "mnist").tolist()
    True
    """
    # Generator.permutation may change between numpy versions; the raw stream may not.
    bits = np.random.PCG64(seed_of(seed, zlib.crc32(name.encode())))
    return np.argsort(bits.random_raw(count), kind="stable").astype(np.int64)


def draw(count: int, sizes: Sequence[int], seed: int, name: str) -> list[list[int]]:
    """Draw disjoint sets of rows of the given `sizes` out of `count` rows, each in ascending order.

    The first set does not depend on whether others follow.
    """
    order = shuffled(count, seed, name)
    ends = np.cumsum(sizes)
    return [sorted(order[end - size : end].tolist()) for size, end in zip(sizes, ends, strict=True)]


def hold_out(labels: Sequence[str], keys: Sequence[str], seed: int, name: str) -> tuple[list[int], list[int]]:
    """Split rows into 90 % for training and 10 % for validation, class by class.

    Each class that has two images or more gives at least one to each side.

    Args:
        labels: The class of each row.
        keys: What each image is called; the split depends on these and not on the order in which files were listed.
        seed: Of the draw.
        name: Of the domain, so that domains with equal names of images are split in different ways.

    Returns:
        The rows for training and those for validation, each in ascending order.
    """
    classes: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        classes.setdefault(label, []).append(row)
    held: list[int] = []
    for label, rows in classes.items():
        rows.sort(key=lambda row: keys[row])
        size = max(1, int(VALIDATION_SHARE * len(rows) + 0.5)) if len(rows) > 1 else 0
        held += [rows[place] for place in shuffled(len(rows), seed, f"{name}/{label}")[:size]]
    apart = set(held)
    return [row for row in range(len(labels)) if row not in apart], sorted(held)
