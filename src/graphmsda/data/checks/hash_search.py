"""Pairs of 64-bit hashes that differ in few bits, without comparing all with all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

MOST_BITS = 12
PAIRS_AT_ONCE = 1 << 20
MOST_PAIRS = 2_000_000_000  # compared before the search gives up: about a minute

Integers = NDArray[np.int64]


class HashSearch:
    """All pairs of 64-bit hashes that differ in at most `bits` bits, in blocks of positions ``(M, 2)``.

    The bits are dealt to bands. Of two hashes that differ in 8 bits one of three bands differs in at most 2, so for
    each band it is enough to look up the keys 0 to 2 bits away. Equal or crowded keys could still mean
    all pairs: there each hash meets only its neighbours in order, and `complete` is False afterwards.

    Args:
        hashes: The hashes.
        bits: 0 to `MOST_BITS`.
    """

    def __init__(self, hashes: NDArray[np.uint64], bits: int) -> None:
        self.hashes, self.bits, self.complete = hashes, bits, True
        self.bands = max(3, bits // 3 + 1)
        self._left = MOST_PAIRS

    def __iter__(self) -> Iterator[Integers]:
        reach = self.bits // self.bands
        keys = [_band(self.hashes, band, self.bands) for band in range(self.bands)]
        for band, key in enumerate(keys):
            order = np.lexsort((self.hashes, key))
            unique, starts, sizes = np.unique(key[order], return_index=True, return_counts=True)
            place = np.full(1 << len(range(band, 64, self.bands)), -1, dtype=np.int32)
            place[unique] = np.arange(len(unique))
            for mask in _masks(len(range(band, 64, self.bands)), reach):
                here = np.flatnonzero((unique ^ mask) >= unique)  # each pair of keys once
                there = place[unique[here] ^ mask]
                here, there = here[there >= 0], there[there >= 0]
                for first, second in self._meet(starts[here], sizes[here], starts[there], sizes[there], mask == 0):
                    a, b = order[first], order[second]
                    near = _ones(self.hashes[a] ^ self.hashes[b]) <= self.bits
                    for earlier in keys[:band]:  # those were found there
                        a, b, near = a[near], b[near], near[near]
                        near &= _ones(earlier[a] ^ earlier[b]) > reach
                    if near.any():
                        yield np.column_stack([a[near], b[near]])

    def _meet(
        self, first: Integers, sizes: Integers, second: Integers, other_sizes: Integers, same: bool
    ) -> Iterator[tuple[Integers, Integers]]:
        """Yield the pairs between runs of the sorted hashes, about `PAIRS_AT_ONCE` at a time."""
        widths = np.minimum(other_sizes, np.maximum(64, PAIRS_AT_ONCE // np.maximum(sizes, 1)))
        if (widths < other_sizes).any():
            self.complete = False
        # One row for each hash of the first run: it meets `width` of the second, those at about the same place in it.
        row = np.repeat(np.arange(len(first)), sizes)
        rank = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        width = widths[row]
        if same:
            start = rank + 1
            width = np.minimum(width, sizes[row] - start)
        else:
            start = np.clip(rank * other_sizes[row] // sizes[row] - width // 2, 0, other_sizes[row] - width)
        ends = np.cumsum(width)
        total = int(ends[-1]) if len(ends) else 0
        if total > self._left:
            self.complete = False
            return
        self._left -= total
        cuts = np.searchsorted(ends, np.arange(PAIRS_AT_ONCE, total, PAIRS_AT_ONCE))
        for low, high in zip([0, *cuts.tolist()], [*cuts.tolist(), len(row)], strict=True):
            reach = width[low:high]
            offset = np.arange(int(reach.sum())) - np.repeat(np.cumsum(reach) - reach, reach)
            left = np.repeat(first[row[low:high]] + rank[low:high], reach)
            yield left, np.repeat(second[row[low:high]] + start[low:high], reach) + offset


def _band(hashes: NDArray[np.uint64], band: int, bands: int) -> Integers:
    """Return every `bands`-th bit as a number: neighbouring waves go to different bands, so none is crowded alone."""
    key = np.zeros(len(hashes), dtype=np.int64)
    for position, bit in enumerate(range(band, 64, bands)):
        key |= ((hashes >> np.uint64(bit)) & np.uint64(1)).astype(np.int64) << position
    return key


def _ones(values: NDArray[np.uint64] | Integers) -> NDArray[np.uint8]:
    """Return the number of bits set in each."""
    if hasattr(np, "bitwise_count"):  # numpy 2
        return np.asarray(np.bitwise_count(values), dtype=np.uint8)
    halves = np.ascontiguousarray(values).view(np.uint16).reshape(len(values), 4)
    return np.asarray(_ONES[halves].sum(axis=1), dtype=np.uint8)


def _masks(length: int, reach: int) -> Iterator[int]:
    for count in range(reach + 1):
        for chosen in combinations(range(length), count):
            yield sum(1 << bit for bit in chosen)


_ONES = np.array([number.bit_count() for number in range(1 << 16)], dtype=np.uint8)
