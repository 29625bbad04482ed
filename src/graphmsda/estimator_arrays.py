"""From the arrays of scikit-learn and skada to a `Task`: which rows are sources, which the target, what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphmsda.domains import Domain, Task, Unlabelled
from graphmsda.errors import UserError

MASKED = -1  # what skada puts in place of a target's labels


class InputError(UserError, ValueError):
    """A mistake in arrays given to an estimator; also a `ValueError`, which scikit-learn's tools expect."""


@dataclass(frozen=True)
class Arrays:
    """Samples with the domain of each row: its number among the sources, or -1 for the target.

    Attributes:
        x: All samples, as a `Task` holds them.
        y: Index of each row's class; of target rows without meaning.
        domain: int64 ``(N,)``.
        labels: The label behind each class index, sorted.
        sources: The ``sample_domain`` behind each source's number, sorted.
    """

    x: Tensor
    y: Tensor
    domain: NDArray[np.int64]
    labels: NDArray[Any]
    sources: NDArray[np.int64]

    def task(self) -> Task:
        """Return the task; rows that are their own target are the sources' rows once more, without labels."""
        domains = []
        for number, name in enumerate(self.sources):
            rows = torch.from_numpy(np.flatnonzero(self.domain == number))
            domains.append(Domain(f"source {name}", self.x[rows], self.y[rows]))
        target = self.domain < 0
        x = self.x[torch.from_numpy(np.flatnonzero(target))] if target.any() else self.x
        return Task(tuple(domains), Unlabelled("target", x), tuple(map(str, self.labels.tolist())))


def is_images(X: Any) -> bool:
    """Whether an array has the shape of images rather than of feature vectors."""
    return (X.ndim if hasattr(X, "ndim") else np.asarray(X).ndim) in (3, 4)


def image_tensor(X: Any) -> Tensor:
    """Return images as uint8 ``(N, 3, H, W)``.

    Args:
        X: ``(N, H, W, C)``, ``(N, C, H, W)`` or grey ``(N, H, W)``, uint8 or floating-point from 0 to 1.
    """
    from graphmsda.data.readers.arrays import listing_of_arrays

    array = np.asarray(X)
    if array.dtype.kind == "f":
        low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
        if not (low >= 0 and high <= 1):  # also where one of them is not a number
            raise InputError(
                f"X: images hold values from {low:g} to {high:g}; give uint8, or floating-point values from 0 to 1"
            )
        array = np.round(255 * array).astype(np.uint8)
    elif array.dtype.kind in "iu" and array.dtype != np.uint8 and array.size and 0 <= array.min() <= array.max() <= 255:
        array = array.astype(np.uint8)
    try:
        listing = listing_of_arrays(array, None, name="X")
    except UserError as error:
        raise InputError(str(error)) from error
    return listing.read(range(len(listing)), None).x


def arrange(x: Tensor, y: Any, sample_domain: Any) -> Arrays:
    """Sort out which rows are sources and which the target, and number classes and sources.

    Without `sample_domain`, rows labelled -1 are the target where that leaves two classes or more, as in skada; where
    it does not, all rows are one source, and the target is like it.
    """
    from sklearn.utils import assert_all_finite, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets

    if y is None:
        raise InputError(
            "y: this estimator requires y to be passed, but the target y is None; give a label for each row of a "
            f"source, and {MASKED} for rows of the target"
        )
    labels = column_or_1d(y, warn=True)
    _same_length("y", labels, len(x))
    given = sample_domain is not None
    where = domain_array(sample_domain, len(x)) if given else _domains_by_mask(labels)
    source = where >= 0
    if not source.any():
        raise InputError("sample_domain: all rows are below 0, so no source has labels; give sources 0 or above")
    if given and source.all():
        raise InputError(
            "sample_domain: no row is below 0, so there is no target to adapt to; give the target's rows -1, "
            "whatever their y holds"
        )
    known = labels[source]  # whatever stands in the target's place is not looked at
    kinds = sorted({type(label).__name__ for label in known.tolist()}) if known.dtype.kind == "O" else []
    if len(kinds) > 1:
        raise InputError(f"y: labels of sources are of several types ({', '.join(kinds)}); give numbers or strings")
    assert_all_finite(known, input_name="y")
    check_classification_targets(known)
    classes, numbers = np.unique(known, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"y: sources have one class only ({classes[0]}); give at least two classes to tell apart")
    indices = np.zeros(len(x), dtype=np.int64)
    indices[source] = numbers
    sources, members = np.unique(where[source], return_inverse=True)
    domain = np.full(len(x), -1, dtype=np.int64)
    domain[source] = members
    return Arrays(x, torch.from_numpy(indices), domain, classes, sources)


def domain_array(sample_domain: Any, count: int) -> NDArray[np.int64]:
    """Return ``sample_domain`` as whole numbers, one for each row; one number stands for all rows."""
    array = np.asarray(sample_domain)
    if array.ndim == 0:
        array = np.broadcast_to(array, count)
    if array.ndim != 1 or array.dtype.kind not in "iuf" or not np.array_equal(array, np.round(array)):
        raise InputError(
            f"sample_domain: found {array.dtype} of shape {array.shape}; give one whole number for each row, 0 or "
            "above for a source and below 0 for the target"
        )
    _same_length("sample_domain", array, count)
    return array.astype(np.int64)


def join(sources: Any, target: Any) -> tuple[Any, NDArray[Any], NDArray[np.int64]]:
    """Return ``sources=[(X1, y1), ...]`` and ``target=Xt`` as X, y and sample_domain."""
    pairs = list(sources or ())
    if not pairs or target is None or not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise InputError(
            "sources and target: give sources=[(X1, y1), (X2, y2), ...] with at least one pair and target=Xt"
        )
    parts = [np.asarray(x) for x, _ in pairs] + [np.asarray(target)]
    for number, part in enumerate(parts):
        if part.shape[1:] != parts[-1].shape[1:]:
            raise InputError(
                f"sources[{number}]: samples are of shape {part.shape[1:]} and those of the target of "
                f"{parts[-1].shape[1:]}; give the same for all domains"
            )
    labels = [np.asarray(y) for _, y in pairs]
    for number, (part, own) in enumerate(zip(parts, labels, strict=False)):
        _same_length(f"sources[{number}]", own, len(part))
    rest = np.full(len(parts[-1]), labels[0][0] if len(labels[0]) else MASKED)  # of the sources' type, never looked at
    where = np.repeat([*range(len(pairs)), -1], [len(part) for part in parts])
    return np.concatenate(parts), np.concatenate([*labels, rest]), where


def source_numbers(sample_domain: Any, count: int, sources: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of each row's source, or -1 for rows of the target, by what a fit has seen."""
    if sample_domain is None:
        return np.full(count, -1, dtype=np.int64)
    where = domain_array(sample_domain, count)
    unknown = np.setdiff1d(where[where >= 0], sources)
    if len(unknown):
        raise InputError(
            f"sample_domain: source {unknown[0]} was not there when the estimator was fitted; it knows "
            f"{', '.join(map(str, sources))} and, below 0, the target"
        )
    return np.where(where < 0, -1, np.searchsorted(sources, where))


def _domains_by_mask(labels: NDArray[Any]) -> NDArray[np.int64]:
    where = np.zeros(len(labels), dtype=np.int64)
    if labels.dtype.kind in "if" and not np.isnan(labels).any():
        masked = labels == MASKED
        if masked.any() and (labels[~masked] >= 0).all() and len(np.unique(labels[~masked])) > 1:
            where[masked] = -1
    return where


def _same_length(name: str, array: NDArray[Any], count: int) -> None:
    if len(array) != count:
        raise InputError(f"{name}: found {len(array)} values for {count} samples; give one for each")
