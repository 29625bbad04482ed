"""What scores and estimates look at: a model's words on the sources' held-out parts and on the unlabelled target."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphmsda.errors import UserError


@dataclass(frozen=True, eq=False)
class Seen:
    """What a model says of samples of one domain.

    Attributes:
        name: The domain.
        log_probabilities: ``(N, K)``, float64.
        embeddings: ``(N, d)``.
        posteriors: ``(N, D, K)``: what the prototypes of each domain alone say of the class; the sources come first, in
            the run's order.
        labels: Class indices ``(N,)``; None where nobody knows them.
    """

    name: str
    log_probabilities: Tensor
    embeddings: Tensor
    posteriors: Tensor
    labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.log_probabilities)

    @property
    def probabilities(self) -> Tensor:
        """``(N, K)``."""
        return self.log_probabilities.exp()

    @property
    def predicted(self) -> Tensor:
        """The most probable class of each sample, ``(N,)``."""
        return self.log_probabilities.argmax(1)

    @property
    def right(self) -> Tensor:
        """Whether each prediction is right, ``(N,)``, as 0 and 1."""
        if self.labels is None:
            raise UserError(f"{self.name}: its labels are not known, so no accuracy can be measured on it")
        return (self.predicted == self.labels).double()

    @property
    def accuracy(self) -> float:
        """Share of right predictions."""
        return float(self.right.mean())

    def tempered(self, temperature: float) -> Seen:
        """Return the same with probabilities raised to ``1 / temperature``."""
        return replace(self, log_probabilities=(self.log_probabilities / temperature).log_softmax(1))


@dataclass(frozen=True, eq=False)
class Mixed:
    """Predictions on mixtures of two target samples each, of which the first has the larger share.

    Attributes:
        first: Class predicted of the first sample alone, ``(N,)``.
        second: Class predicted of the second alone, ``(N,)``.
        predicted: Class predicted of the mixture, ``(N,)``.
    """

    first: Tensor
    second: Tensor
    predicted: Tensor


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that is known of a finished model without a single target label.

    Attributes:
        sources: Labelled samples of each source, read as the model reads that source.
        target: Unlabelled samples of the target.
        held_out: Whether training did not see the sources' samples.
        mixed: Predictions on mixtures of target samples.
        shifted: The same samples of each source, read with the batch statistics of other domains: the model then has to
            do with a change of domain, and the labels tell what that does to it. One tuple for each source.
        numbers: The domain as which each source is read; by default 0, 1, ... A run of all sources as one domain has
            one number for all.
    """

    sources: tuple[Seen, ...]
    target: Seen
    held_out: bool = True
    mixed: Mixed | None = None
    shifted: tuple[tuple[Seen, ...], ...] = ()
    numbers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.sources or any(part.labels is None for part in self.sources):
            raise UserError(
                "label-free scores need labelled samples of at least one source; give a run of labelled ones"
            )
        if not self.numbers:
            object.__setattr__(self, "numbers", tuple(range(len(self.sources))))

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.target.log_probabilities.shape[1]


def joined(parts: tuple[Seen, ...]) -> Seen:
    """Return samples of several domains as of one."""
    return Seen(
        " + ".join(part.name for part in parts),
        torch.cat([part.log_probabilities for part in parts]),
        torch.cat([part.embeddings for part in parts]),
        torch.cat([part.posteriors for part in parts]),
        torch.cat([part.labels for part in parts if part.labels is not None]),
    )
