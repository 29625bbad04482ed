"""What a method is: three verbs (`losses`, `embed`, `predict`) and hyper-parameters as keyword arguments.

A method of several optimiser steps a batch has `phases` in place of `losses`.

A method knows nothing of files, devices or optimisers. It turns a batch into named loss terms; the engine does the
rest. Adding one is a file in this folder and a line in `METHODS`; CONTRIBUTING.md shows how.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch, Labelled
from graphmsda.errors import UserError
from graphmsda.graphs.prototypes import one_hot, squared_distances
from graphmsda.norm import EVERYWHERE, NOWHERE
from graphmsda.parallel import all_sizes, gather_chunks, rank

Predictor = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From embeddings (B, d) to log-probabilities (B, K) and scores of the sources (B, M)."""
Stage = tuple[str, float] | tuple[str, float, float]
"""A stage's name, its share of all steps and, if it is not 1, what the run's learning rate is multiplied by in it."""


@dataclass(frozen=True)
class Phase:
    """One optimiser step: the loss is the sum of the named terms, the names are what the log shows.

    Attributes:
        terms: Scalars, each already multiplied by its weight.
        updates: Names of the method's attributes whose parameters take the step; empty means all.
        shown: Scalars to log that are no part of the loss.
        state: New values of the method's buffers, to be stored once the step has been taken. Losses that need a
            buffer's old value do not overwrite it themselves: compilers have been seen to read it again afterwards.
    """

    terms: Mapping[str, Tensor]
    updates: tuple[str, ...] = ()
    shown: Mapping[str, Tensor] | None = None
    state: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Embedded:
    """A batch after the backbone, gathered from all processes: ``x`` of each part is ``(B, d)``."""

    sources: tuple[Labelled, ...]
    target: Tensor

    def flat(self, target_labels: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return all sources in one: embeddings ``(B, d)``, labels ``(B,)`` and domains ``(B,)``.

        With labels for the target it comes last, as the domain after the sources.
        """
        parts = [(part.x, part.y) for part in self.sources]
        parts += [] if target_labels is None else [(self.target, target_labels)]
        domains = [torch.full_like(y, m) for m, (_, y) in enumerate(parts)]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]), torch.cat(domains)


BatchStatistics = Literal["own", "mean", "common"]
"""Each domain has its own; or in training alone, and is read with the mean of all; or all domains are one batch."""


class Method(nn.Module, ABC):
    """Base of all methods.

    Subclasses take ``(backbone, classes, domains, *, hyper-parameters)``; ``domains`` counts the target, which is the
    last one. The first line of a subclass's docstring is its citation; ``presets`` names other settings than the
    defaults.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    pretrained: ClassVar[Mapping[str, Any]] = {}
    """The defaults that are others where the backbone starts from trained weights."""
    version: ClassVar[int] = 1
    """Raised when what the tensors of a finished model mean has changed: models of another version are refused."""
    views: ClassVar[bool] = False
    """Whether it wants a strongly changed view of target samples, `Batch.strong`, and changed source samples."""
    batch_statistics: BatchStatistics = "own"
    """Whose batch statistics normalise a sample; a hyper-parameter of CRF and MRF."""
    stages: tuple[Stage, ...] = ()
    """Stages that are trained one after the other, each like a run of its own; without any, the run is one."""
    stage: str = ""
    """The stage that the current step belongs to, kept by the engine; empty in a method without stages."""
    teacher: Mapping[str, Tensor] | None = None
    """The averaged parameters by name, and the method's own buffers, kept and moved by the engine, to learn from."""
    source_means: Tensor
    source_means_seen: Tensor

    def __init__(self, backbone: Backbone, classes: int, domains: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.classes = classes
        self.domains = domains
        self.register_buffer("source_means", torch.zeros(domains - 1, classes, backbone.features))
        self.register_buffer("source_means_seen", torch.zeros(domains - 1, classes, dtype=torch.bool))

    def losses(self, batch: Batch) -> Phase:
        """Return the loss terms of a method that takes one optimiser step a batch: tensors in, tensors out.

        This is what the engine compiles, so it holds no random generator and reads no value.
        """
        raise NotImplementedError(f"{type(self).__name__} defines neither losses nor phases")

    def forward(self, batch: Batch) -> Phase:
        """Return `losses` as the class defines them, whatever has been put in their place."""
        return type(self).losses(self, batch)

    def phases(self, batch: Batch) -> Iterator[Phase]:
        """Yield one phase per optimiser step; the code after a ``yield`` runs when that step has been taken."""
        phase = self.losses(batch)
        yield phase
        for name, value in (phase.state or {}).items():
            self.get_buffer(name).copy_(value.detach())

    def begin_stage(self, name: str) -> None:
        """Make ready for a stage, to which `stage` has been set: the last one, if any, has left its averaged weights.

        This is called once, before the first step of each stage, without gradients. It may change parameters and
        buffers in place and nothing else, since a run that resumes within the stage finds those as they are.
        """

    @abstractmethod
    def predict(self, embedding: Tensor) -> Tensor:
        """Return log-probabilities ``(B, K)`` of embeddings ``(B, d)``, each row by itself."""

    def embed(self, x: Tensor, domain: int = -1) -> Tensor:
        """Embed samples of one domain, by default of the target: ``(B, ...) -> (B, d)``."""
        return self.backbone(x, (len(x),), (self.read_with(domain),))  # type: ignore[no-any-return]

    def read_with(self, domain: int = -1) -> int:
        """Return the domain whose running batch statistics read samples of a domain, by default of the target."""
        if self.batch_statistics == "own":
            return domain % self.domains
        return 0 if self.batch_statistics == "common" else EVERYWHERE

    def embed_batch(self, batch: Batch, *, target: bool = True, strong: bool = False, pooled: bool = False) -> Embedded:
        """Embed all domains in one pass, each with its own batch statistics, and gather all processes' parts.

        Args:
            batch: The batch.
            target: Whether to take the target; without it, its batch statistics stay untouched and its part is empty.
            strong: Whether to take the target's strong view, which leaves the target's running statistics untouched:
                nobody will ask for predictions of such samples.
            pooled: Whether what is embedded shares its batch statistics, those of domain 0, as it does in any case
                where `batch_statistics` are common.
        """
        parts = [part.x for part in batch.sources]
        domains = list(range(len(parts)))
        if target:
            seen = batch.strong if strong and batch.strong is not None else batch.target
            parts, domains = [*parts, seen], [*domains, NOWHERE if strong else self.domains - 1]
        sizes = [len(part) for part in parts]
        everywhere = all_sizes(sizes, batch.progress.device)
        totals = [sum(column) for column in zip(*everywhere, strict=True)]
        pooled = pooled or self.batch_statistics == "common"
        given = ([sum(sizes)], [0], [sum(totals)]) if pooled else (sizes, domains, totals)
        local = self.backbone(torch.cat(parts), *given)
        embeddings = torch.split(gather_chunks(local, everywhere), totals)
        sources = len(batch.sources)
        labels = gather_chunks(torch.cat([part.y for part in batch.sources]), [row[:sources] for row in everywhere])
        return Embedded(
            tuple(map(Labelled, embeddings[:sources], torch.split(labels, totals[:sources]))),
            embeddings[sources] if target else local.new_zeros(0, local.shape[1]),
        )

    def embed_target(self, batch: Batch, *, encoder: Backbone | None = None, noted: bool = True) -> Tensor:
        """Embed the target's batch alone, with gradients, and gather all processes' parts.

        Args:
            batch: The batch.
            encoder: What to embed it with, where that is not the method's backbone.
            noted: Whether the target's running statistics take note of it.

        Returns:
            The embeddings, ``(B, d)``.
        """
        sizes = all_sizes([len(batch.target)], batch.progress.device)
        domain = self.domains - 1 if noted else NOWHERE
        network = self.backbone if encoder is None else encoder
        return gather_chunks(network(batch.target, sizes[rank()], (domain,), [sum(row[0] for row in sizes)]), sizes)

    @torch.no_grad()
    def observe_target(self, batch: Batch, parameters: Mapping[str, Tensor] | None = None) -> Tensor:
        """Embed the target's batch without gradient or dropout; its running statistics take note of it.

        Args:
            batch: The batch.
            parameters: What to read it with in place of the method's own parameters, by name, such as `teacher`.

        Returns:
            The embeddings of all processes, ``(B, d)``.
        """
        sizes = all_sizes([len(batch.target)], batch.progress.device)
        chosen = {
            name.removeprefix("backbone."): tensor
            for name, tensor in (parameters or {}).items()
            if name.startswith("backbone.")
        }
        given = batch.target, sizes[rank()], (self.domains - 1,), [sum(row[0] for row in sizes)]
        local = torch.func.functional_call(self.backbone, chosen, given, {"certain": True})
        return gather_chunks(local, sizes)

    def source_scores(self, embedding: Tensor) -> Tensor:
        """Score how close each sample lies to each source, ``(B, d) -> (B, M)``, larger is closer.

        By default minus the squared distance to the source's nearest class mean (`remember_source`).
        """
        distances = squared_distances(embedding, self.source_means.flatten(0, 1))
        distances = distances.masked_fill(~self.source_means_seen.flatten(), torch.inf)
        return -distances.reshape(len(embedding), self.domains - 1, self.classes).amin(2)

    def predictor(self) -> Predictor:
        """Return a function that gives `predict` and `source_scores` of embeddings together, for a trained method.

        A method may compute here, once, what does not depend on the embeddings; the function is then of the weights as
        they are now. Whoever overrides `predict` of a method that has a predictor of its own overrides both.
        """
        return lambda embedding: (self.predict(embedding), self.source_scores(embedding))

    @torch.no_grad()
    def remember_source(self, domain: int, chunks: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Keep the class means of a source's embeddings, given with their labels chunk by chunk, after training."""
        sums = torch.zeros_like(self.source_means[domain])
        mass = sums.new_zeros(self.classes)
        for embedding, labels in chunks:
            members = one_hot(labels, self.classes, dtype=embedding.dtype)
            sums, mass = sums + members.T @ embedding, mass + members.sum(0)
        self.source_means[domain] = sums / mass.clamp(min=1)[:, None]
        self.source_means_seen[domain] = mass > 0


class LinearHead(nn.Linear):
    """The usual classifier, for methods that predict by one: embedding to log-probabilities."""

    def forward(self, embedding: Tensor) -> Tensor:
        """``(B, d) -> (B, K)``."""
        return F.log_softmax(super().forward(embedding), dim=1)


class LinearMethod(Method):
    """Base of methods that predict by a linear classifier of the embedding, `head`."""

    def __init__(self, backbone: Backbone, classes: int, domains: int) -> None:
        super().__init__(backbone, classes, domains)
        self.head = LinearHead(backbone.features, classes)

    def predict(self, embedding: Tensor) -> Tensor:
        """Log-probabilities of the linear classifier."""
        log_probabilities: Tensor = self.head(embedding)
        return log_probabilities


def ramped(progress: Tensor, ramp: float) -> Tensor:
    """Return a weight that grows from 0 to 1 over the first `ramp` of the training and stays there.

    >>> [float(ramped(torch.tensor(progress), 0.2)) for progress in (0.0, 0.1, 0.5)]
    [0.0, 0.5, 1.0]
    """
    return (progress / ramp).clamp(max=1) if ramp else torch.ones_like(progress)


def require(condition: bool, name: str, value: object, expected: str) -> None:
    """Refuse a hyper-parameter out of its range in one sentence.

    >>> require(False, "tau", -1, "a positive number")
    Traceback (most recent call last):
    graphmsda.errors.UserError: --set tau=-1: out of range; give a positive number
    """
    if not condition or (isinstance(value, float) and not math.isfinite(value)):
        raise UserError(f"--set {name}={value}: out of range; give {expected}")
