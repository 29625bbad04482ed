"""What a check of domains found, as plain values."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Sizes:
    """The sizes of images in pixels.

    Attributes:
        width: Smallest, median and largest.
        height: Smallest, median and largest.
        distinct: Number of different sizes.
        most_common: Width and height of the size that comes most often.
        most_common_count: How often it comes.
    """

    width: tuple[int, int, int]
    height: tuple[int, int, int]
    distinct: int
    most_common: tuple[int, int]
    most_common_count: int


@dataclass(frozen=True)
class DomainReport:
    """What was found of one domain.

    Attributes:
        name: What it is called.
        origins: Where it lies.
        count: Number of samples, unreadable ones included.
        parts: Number of samples of each part; empty where there are no parts.
        classes: For each part (``all`` where there are none) the number of samples of each class.
        largest: The class with the most samples, and how many; None without labels.
        smallest: The class with the fewest, of those that have any.
        missing: Classes that other domains have.
        unreadable: Number of samples that cannot be read.
        unreadable_examples: The first few, and why.
        sizes: Of the images; None for feature vectors.
        nearly_constant: Number of images of one colour; they are left out of the search for copies.
        nearly_constant_examples: The first few.
        features: Length of the feature vectors; None for images.
        range: Smallest and largest value of the feature vectors.
        not_finite: Number of feature vectors that hold a value that is not finite.
        notes: What had to be assumed to read it.
        sheet: Where its contact sheet was written.
    """

    name: str
    origins: tuple[str, ...]
    count: int
    parts: Mapping[str, int]
    classes: Mapping[str, Mapping[str, int]]
    largest: tuple[str, int] | None
    smallest: tuple[str, int] | None
    missing: tuple[str, ...]
    unreadable: int
    unreadable_examples: Mapping[str, str]
    sizes: Sizes | None
    nearly_constant: int
    nearly_constant_examples: tuple[str, ...]
    features: int | None
    range: tuple[float, float] | None
    not_finite: int
    notes: tuple[str, ...]
    sheet: str | None

    @property
    def imbalance(self) -> float | None:
        """How many times more samples the largest class has than the smallest."""
        return self.largest[1] / self.smallest[1] if self.largest and self.smallest else None


@dataclass(frozen=True)
class Member:
    """One of several copies."""

    domain: str
    part: str | None
    label: str | None
    name: str


@dataclass(frozen=True)
class Group:
    """Samples that are copies of each other.

    Attributes:
        exact: Whether all are equal to the last pixel; otherwise at least one was re-encoded, resized or the like.
        members: The samples.
    """

    exact: bool
    members: tuple[Member, ...]

    @property
    def across_parts(self) -> bool:
        """Whether copies lie in different parts, such as train and test: leakage."""
        return len({member.part for member in self.members} - {None}) > 1

    @property
    def across_domains(self) -> bool:
        """Whether copies lie in different domains."""
        return len({member.domain for member in self.members}) > 1

    @property
    def conflicting_labels(self) -> bool:
        """Whether copies are called by different classes."""
        return len({member.label for member in self.members} - {None}) > 1


@dataclass(frozen=True)
class Leak:
    """Held-out samples that are not held out: copies of them are in a part used before.

    Attributes:
        domain: Where the held-out samples lie.
        part: ``test`` or ``validation``.
        also_in: The part that holds copies, of this or another domain.
        exact: Whether the copies are equal to the last pixel, or only look like copies.
        count: Number of held-out samples.
    """

    domain: str
    part: str
    also_in: str
    exact: bool
    count: int


@dataclass(frozen=True)
class Report:
    """What was found of all domains.

    Attributes:
        domains: One by one.
        classes: All classes in order.
        groups: Copies; those across parts first, then those across domains, with conflicting labels, and the rest.
        complete: Whether the search for near duplicates compared all that is near; False where too much looks alike.
        notes: What had to be assumed.
        copies_sheet: Where pictures of the first groups of copies were written.
    """

    domains: tuple[DomainReport, ...]
    classes: tuple[str, ...]
    groups: tuple[Group, ...]
    complete: bool
    notes: tuple[str, ...]
    copies_sheet: str | None = None

    def leaks(self) -> tuple[Leak, ...]:
        """Return the held-out samples that have a copy in a part used before, exact copies first."""
        counts: Counter[tuple[bool, str, str, str]] = Counter()
        for group in self.groups:
            first = next((part for part in PARTS if any(member.part == part for member in group.members)), None)
            for member in group.members:
                if member.part is not None and member.part != first:
                    counts[not group.exact, member.domain, member.part, str(first)] += 1
        return tuple(
            Leak(domain, part, into, not near, count) for (near, domain, part, into), count in sorted(counts.items())
        )


def report_json(report: Report) -> str:
    """Return all of a report as JSON, every group of copies included."""
    content = dataclasses.asdict(report)
    for domain, plain in zip(report.domains, content["domains"], strict=True):
        plain["imbalance"] = domain.imbalance
    for group, plain in zip(report.groups, content["groups"], strict=True):
        plain["across_parts"] = group.across_parts
        plain["across_domains"] = group.across_domains
        plain["conflicting_labels"] = group.conflicting_labels
    content["leaks"] = [dataclasses.asdict(leak) for leak in report.leaks()]
    return json.dumps(content, indent=2, ensure_ascii=False)
