"""The nouns that flow through everything: domains make a task, a task makes batches.

The target of a `Task` and of a `Batch` has no label field. Labels of the target domain cannot reach training because
there is nowhere to put them; evaluation reads them from an `EvalSet`, which no training code accepts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from graphmsda.errors import UserError


class Samples(Protocol):
    """The samples of a domain: a tensor, in memory or mapped from a file, or pictures that are decoded when asked for.

    The latter are `graphmsda.data.encoded.Encoded`; both are indexed by slices and by index tensors.
    """

    @property
    def shape(self) -> Sequence[int]:
        """``(N, 3, H, W)`` for images, ``(N, F)`` for feature vectors."""

    @property
    def dtype(self) -> torch.dtype:
        """``uint8`` for images, floating-point for feature vectors."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Tensor: ...


@dataclass(frozen=True)
class Domain:
    """A labelled domain.

    Attributes:
        name: What people call it.
        x: Images, uint8 ``(N, 3, H, W)``, or feature vectors, float32 ``(N, F)``.
        y: Class indices, int64 ``(N,)``.
    """

    name: str
    x: Samples
    y: Tensor

    def __post_init__(self) -> None:
        _check_inputs(self.name, self.x)
        if self.y.shape != (len(self.x),) or self.y.dtype != torch.int64:
            raise UserError(
                f"domain {self.name!r}: labels are {self.y.dtype} of shape {tuple(self.y.shape)}; "
                f"give one int64 class index for each of its {len(self.x)} samples"
            )

    def unlabelled(self) -> Unlabelled:
        """Return the same samples without their labels."""
        return Unlabelled(self.name, self.x)


@dataclass(frozen=True)
class Unlabelled:
    """A domain without labels: ``x`` as in `Domain`, and nowhere to put a label."""

    name: str
    x: Samples

    def __post_init__(self) -> None:
        _check_inputs(self.name, self.x)


@dataclass(frozen=True)
class EvalSet:
    """Labelled samples for measuring a finished model; training code does not accept this type."""

    name: str
    x: Samples
    y: Tensor


@dataclass(frozen=True)
class Task:
    """Several labelled sources and one unlabelled target that share their classes.

    Attributes:
        sources: Labelled domains.
        target: The domain to adapt to.
        classes: Names of the classes, by index.
        feature_names: What feature vectors are made of, where the data say so.
        origin: Where they lie and how they were read, where they were read by `load`: a run keeps it, so that
            `graphmsda report` and others find the data again.
    """

    sources: tuple[Domain, ...]
    target: Unlabelled
    classes: tuple[str, ...]
    feature_names: tuple[str, ...] | None = None
    origin: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not self.sources:
            raise UserError("a task has no source domain; give at least one labelled source")
        if len(self.classes) < 2:
            raise UserError(f"a task has {len(self.classes)} class; give at least two classes to tell apart")
        shape = tuple(self.target.x.shape[1:])
        for domain in self.sources:
            if tuple(domain.x.shape[1:]) != shape or domain.x.dtype != self.target.x.dtype:
                raise UserError(
                    f"source {domain.name!r} holds {domain.x.dtype} samples of shape {tuple(domain.x.shape[1:])} and "
                    f"the target {self.target.x.dtype} of {shape}; all domains of a task need the same"
                )
            if int(domain.y.min()) < 0 or int(domain.y.max()) >= len(self.classes):
                raise UserError(
                    f"source {domain.name!r} has labels from {int(domain.y.min())} to {int(domain.y.max())}; "
                    f"class indices go from 0 to {len(self.classes) - 1}"
                )

    @classmethod
    def load(cls, sources: Sequence[str | Path], target: str | Path, **options: Any) -> Task:
        """Read a task from folders, archives, lists, tables or arrays; see `graphmsda.data.task.load_task`."""
        from graphmsda.data.task import load_task

        return load_task(sources, target, **options)

    @property
    def domains(self) -> tuple[str, ...]:
        """Names of all domains, the sources in order and the target last (domain ``M + 1`` of the paper)."""
        return (*(source.name for source in self.sources), self.target.name)

    @property
    def is_images(self) -> bool:
        """Whether the samples are images rather than feature vectors."""
        return len(self.target.x.shape) == 4

    def fingerprint(self) -> str:
        """Return a short hash of everything training sees, by which a resumed run knows its data.

        >>> x = torch.zeros(2, 3)
        >>> a = Task((Domain("a", x, torch.tensor([0, 1])),), Unlabelled("t", x), ("no", "yes"))
        >>> b = Task((Domain("a", x, torch.tensor([1, 0])),), Unlabelled("t", x), ("no", "yes"))
        >>> a.fingerprint() == a.fingerprint(), a.fingerprint() == b.fingerprint()
        (True, False)
        """
        parts = [part for source in self.sources for part in (source.x, source.y)]
        with ThreadPoolExecutor() as threads:  # hashing lets other threads run
            *contents, target = threads.map(digest_of, [*parts, self.target.x])
        about = repr((self.domains, self.classes, contents, target))
        return hashlib.blake2b(about.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True)
class Labelled:
    """One source's part of a batch: ``x`` as in `Domain`, ``y`` int64 ``(B,)``."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Batch:
    """What a method sees in one step.

    Attributes:
        sources: One part per source, in the task's order. Sizes may differ.
        target: Unlabelled target samples, ``(B, ...)``.
        progress: How much of the training, or of its present stage, is done, 0 to 1, a 0-dim tensor that drives ramps
            and schedules.
        seed: What random numbers that all processes of a run must share are made of (`graphmsda.graphs.draws`), the
            same for every repeat of the step, int64, a 0-dim tensor.
        strong: The same target samples changed much more, for methods that declare `views`.
    """

    sources: tuple[Labelled, ...]
    target: Tensor
    progress: Tensor
    seed: Tensor
    strong: Tensor | None = None


def digest_of(x: Samples) -> str:
    """Return a hash of samples: what pictures in a file say of themselves, or of type, shape and all the bytes."""
    if not isinstance(x, Tensor):
        return str(getattr(x, "digest"))  # noqa: B009 - only samples that are no tensors have one
    digest = hashlib.blake2b(repr((x.dtype, tuple(x.shape))).encode(), digest_size=12)
    for part in torch.split(x, 4096):  # contiguous copies of a part at most
        digest.update(part.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_inputs(name: str, x: Samples) -> None:
    images = len(x.shape) == 4 and x.shape[1] == 3 and x.dtype == torch.uint8
    features = len(x.shape) == 2 and x.dtype.is_floating_point
    if not (images or features):
        raise UserError(
            f"domain {name!r}: samples are {x.dtype} of shape {tuple(x.shape)}; "
            "give uint8 images (N, 3, H, W) or floating-point features (N, F)"
        )
    if len(x) == 0:
        raise UserError(f"domain {name!r} is empty; give at least one sample")
