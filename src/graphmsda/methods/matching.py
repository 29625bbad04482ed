"""What the methods share that add a discrepancy between each source and the target to the source risk."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.graphs.constraints import source_risk
from graphmsda.methods.base import LinearMethod, Phase, require

Layers = tuple[Tensor, Tensor]
"""A domain's embeddings ``(B, d)`` and class scores ``(B, K)``."""


class Matching(LinearMethod):
    r"""Source-only with a discrepancy d between distributions, of a domain's embeddings and class scores.

    .. math:: L = L_{cls} + \frac{\lambda}{M} \sum_m d(S_m, T)

    The discrepancies were made for one source; of several, each counts alike. With the sources combined to one domain
    it is the loss of the papers.
    """

    def __init__(self, backbone: Backbone, classes: int, domains: int, *, weight: float) -> None:
        super().__init__(backbone, classes, domains)
        require(weight >= 0, "weight", weight, "a number not below 0")
        self.weight = weight

    @abstractmethod
    def discrepancy(self, source: Layers, target: Layers) -> Tensor:
        """Return how far two domains are apart."""

    def strength(self, progress: Tensor) -> Tensor | float:
        """Return the weight of the discrepancy at a progress from 0 to 1."""
        return self.weight

    def classify_source(self, scores: Tensor, source: int) -> Tensor:
        """Return the class scores by which a source's samples are classified: ``(B, K) -> (B, K)``."""
        return scores

    def losses(self, batch: Batch) -> Phase:
        """The source risk and the mean discrepancy of the sources from the target."""
        return Phase(self.terms(batch)[0])

    def terms(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Return the loss terms and the class scores of the target."""
        embedded = self.embed_batch(batch)
        labels = [part.y for part in embedded.sources]
        x = torch.cat([*(part.x for part in embedded.sources), embedded.target])
        scores = F.linear(x, self.head.weight, self.head.bias)
        sizes = [*map(len, labels), len(embedded.target)]
        *sources, target = zip(torch.split(x, sizes), torch.split(scores, sizes), strict=True)
        predictions = [F.log_softmax(self.classify_source(part[1], m), dim=1) for m, part in enumerate(sources)]
        apart = torch.stack([self.discrepancy(part, target) for part in sources]).mean()
        return {
            "source": source_risk(predictions, labels),
            "discrepancy": self.strength(batch.progress) * apart,
        }, target[1]
