"""What a model says of some samples, and how that compares with their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Predictions:
    """What a model says of some samples, in their order.

    Attributes:
        items: Name of each sample: its path, or its place in an array.
        labels: Predicted class, or None for a sample that could not be read.
        probabilities: ``(N, K)``, in the order of the run's `classes`; rows of unreadable samples are NaN.
        nearest_source: Name of the source each sample lies closest to, or None.
        errors: Why a sample could not be read, or None.
        classes: The run's classes.
        notes: One sentence for each thing that had to be assumed of the data.
    """

    items: list[str]
    labels: list[str | None]
    probabilities: Tensor
    nearest_source: list[str | None]
    errors: list[str | None]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    @property
    def confidence(self) -> Tensor:
        """Probability of each predicted class, ``(N,)``."""
        return self.probabilities.amax(1)

    def top(self, count: int) -> list[list[tuple[str, float]]]:
        """Return the most probable classes of each sample with their probabilities."""
        values, places = self.probabilities.topk(min(count, len(self.classes)), dim=1)
        return [
            [] if label is None else [(self.classes[p], v) for p, v in zip(row_places, row, strict=True)]
            for label, row_places, row in zip(self.labels, places.tolist(), values.tolist(), strict=True)
        ]


@dataclass(frozen=True)
class Evaluation:
    """How predictions compare with labels; accuracies are fractions.

    Attributes:
        accuracy: Share of right predictions.
        per_class: The same for each class that has samples.
        counts: Samples of each class.
        confusion: Rows are true classes, columns predicted ones.
        classes: Names of both.
        unreadable: Samples left out because they could not be read, with the reason.
        notes: One sentence for each thing that had to be assumed of the data, such as labels counted from 1.
    """

    accuracy: float
    per_class: dict[str, float]
    counts: dict[str, int]
    confusion: list[list[int]]
    classes: tuple[str, ...]
    unreadable: dict[str, str]
    notes: list[str] = field(default_factory=list)


def count_pairs(truth: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Return how often each class was taken for each: ``(K, K)``, true classes down."""
    return torch.bincount(truth * classes + predicted, minlength=classes**2).reshape(classes, classes)


def summarise(
    confusion: Tensor, classes: tuple[str, ...], unreadable: dict[str, str], notes: Sequence[str] = ()
) -> Evaluation:
    """Return the accuracies that a confusion matrix holds, with what else is to be told."""
    counts, right = confusion.sum(1), confusion.diagonal()
    return Evaluation(
        accuracy=float(right.sum() / counts.sum()),
        per_class={name: float(r / n) for name, r, n in zip(classes, right, counts, strict=True) if n},
        counts={name: int(n) for name, n in zip(classes, counts, strict=True)},
        confusion=confusion.tolist(),
        classes=classes,
        unreadable=unreadable,
        notes=list(notes),
    )
