"""The samples of all domains in one row, and which of them are copies of each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from graphmsda.data.checks.duplicates import Detail, group, near_duplicates
from graphmsda.data.checks.report import Group, Member
from graphmsda.data.checks.scan import Scan, details
from graphmsda.data.listing import Listing

NEARLY_CONSTANT = 2.0  # contrast, of 255, below which there is nothing to see


@dataclass(frozen=True)
class Items:
    """All samples of several listings, numbered from 0.

    Attributes:
        listings: Where they lie.
        names: The name of the domain of each listing; several listings may share one.
        scans: What was found in each listing.
        labels: The class of each sample; None without.
    """

    listings: Sequence[Listing]
    names: Sequence[str]
    scans: Sequence[Scan]
    labels: Sequence[str | None]

    def __len__(self) -> int:
        return int(self.ends[-1])

    @property
    def are_images(self) -> bool:
        """Whether the samples are images; all are, or none."""
        return self.listings[0].feature_count is None

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """The number after the last sample of each listing."""
        return np.cumsum([len(listing) for listing in self.listings], dtype=np.int64)

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """The listing of each sample."""
        return np.repeat(np.arange(len(self.listings)), [len(listing) for listing in self.listings])

    @cached_property
    def parts(self) -> list[str | None]:
        """The part of each sample; None where there are no parts."""
        return [part for each in self.listings for part in (each.parts or [None] * len(each))]

    @cached_property
    def readable(self) -> NDArray[np.bool_]:
        """Whether each sample could be read."""
        result = np.ones(len(self), dtype=bool)
        for number, scan in enumerate(self.scans):
            result[[self._start(number) + row for row in scan.unreadable]] = False
        return result

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Width and height of each image, zeros for what cannot be read; empty for feature vectors."""
        return np.concatenate([scan.sizes for scan in self.scans])

    @cached_property
    def nearly_constant(self) -> NDArray[np.bool_]:
        """Whether each sample is an image of one colour, or nearly."""
        if not self.are_images:
            return np.zeros(len(self), dtype=bool)
        contrast = np.concatenate([scan.contrast for scan in self.scans])
        return np.asarray((contrast < NEARLY_CONSTANT) & self.readable)

    def members(self, name: str) -> list[int]:
        """Return the samples of a domain."""
        mine = [number for number, owner in enumerate(self.names) if owner == name]
        return [int(item) for item in np.flatnonzero(np.isin(self.owner, mine))]

    def picture(self, item: int) -> Image.Image:
        """Return an image, or raise `Unreadable`."""
        number = int(self.owner[item])
        return self.listings[number].picture(item - self._start(number))

    def item_name(self, item: int) -> str:
        """Return what leads back to a sample."""
        number = int(self.owner[item])
        return self._item_names[number][item - self._start(number)]

    def reason(self, item: int) -> str:
        """Return why a sample cannot be read."""
        number = int(self.owner[item])
        return self.scans[number].unreadable[item - self._start(number)]

    def describe(self, item: int) -> Member:
        """Return where a sample lies and what it is called."""
        return Member(self.names[self.owner[item]], self.parts[item], self.labels[item], self.item_name(item))

    def details(self, items: NDArray[np.int64]) -> list[Detail | None]:
        """Return what tells images apart, for ascending numbers of `items`."""
        result: list[Detail | None] = []
        for number, listing in enumerate(self.listings):
            result += details(listing, (items[self.owner[items] == number] - self._start(number)).tolist())
        return result

    @cached_property
    def _item_names(self) -> list[list[str]]:
        return [listing.item_names for listing in self.listings]

    def _start(self, number: int) -> int:
        return int(self.ends[number]) - len(self.listings[number])


@dataclass(frozen=True)
class Copies:
    """Which samples are copies of each other.

    Attributes:
        groups: Those that matter most first.
        items: The numbers of the samples of each group.
        complete: Whether the search for near duplicates compared all that is near.
    """

    groups: tuple[Group, ...]
    items: tuple[tuple[int, ...], ...]
    complete: bool


def find_copies(items: Items, bits: int | None, show: Callable[[int], None]) -> Copies:
    """Find the copies among `items`, those that matter most first.

    Images of one colour are all alike, and are left out.

    Args:
        items: All samples.
        bits: See `near_duplicates`; None: exact duplicates alone.
        show: Called with the number of images read a second time so far.
    """
    eligible = np.flatnonzero(items.readable & ~items.nearly_constant)
    digests = np.concatenate([scan.digest for scan in items.scans])[eligible]
    _, first, content = np.unique(digests.view(f"V{digests.shape[1]}").ravel(), return_index=True, return_inverse=True)
    content = content.ravel()
    pairs = np.column_stack([eligible[first[content]], eligible])  # each with the first of the same content
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    complete = True
    if bits is not None and items.are_images:
        unique = np.sort(eligible[first])
        read = 0

        def load(chosen: Sequence[int]) -> list[Detail | None]:
            nonlocal read
            read += len(chosen)
            show(read)
            return items.details(unique[np.asarray(chosen)])

        hashes = np.concatenate([scan.hashes for scan in items.scans])[unique]
        thumbnails = np.concatenate([scan.thumbnails for scan in items.scans])[unique]
        found = near_duplicates(hashes, thumbnails, load, bits=bits)
        pairs, complete = np.concatenate([pairs, unique[found.pairs]]), found.complete

    content_of = np.full(len(items), -1, dtype=np.int64)
    content_of[eligible] = content
    ranked: list[tuple[tuple[int, ...], Group, tuple[int, ...]]] = []
    before: Counter[object] = Counter()
    for members in group(len(items), pairs):
        each = Group(len(set(content_of[members].tolist())) == 1, tuple(map(items.describe, members)))
        importance = _importance(each)
        # Domains take turns, so that the first few groups show all of them.
        kind = (importance, each.members[0].domain)
        ranked.append(((*importance, before[kind]), each, tuple(members)))
        before[kind] += 1
    ranked.sort(key=lambda row: row[0])
    return Copies(tuple(row[1] for row in ranked), tuple(row[2] for row in ranked), complete)


def _importance(group: Group) -> tuple[bool, bool, bool, bool]:
    return not group.across_parts, not group.across_domains, not group.conflicting_labels, not group.exact
