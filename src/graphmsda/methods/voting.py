"""A classifier for each source, and the vote in which they give one prediction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SourceHeads(nn.Linear):
    """A linear classifier for each source, all in one product: ``(B, d) -> (B, M, K)`` log-probabilities.

    They start alike. From different starts each source's classes may settle in places of their own, as nothing but its
    own classifier tells them where to go, and a vote of all on one embedding would mean little.
    """

    def __init__(self, features: int, sources: int, classes: int) -> None:
        super().__init__(features, sources * classes)
        with torch.no_grad():
            self.weight.copy_(self.weight[:classes].repeat(sources, 1))
            self.bias.copy_(self.bias[:classes].repeat(sources))
        self.shape = sources, classes

    def forward(self, embedding: Tensor) -> Tensor:
        """``(B, d) -> (B, M, K)``."""
        return F.log_softmax(super().forward(embedding).view(-1, *self.shape), dim=2)


def own_predictions(log_probabilities: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return what each source's classifier says of its own samples, which lie source by source.

    Shapes: (B, M, K) with B the sum of sizes -> M times (B_m, K).
    """
    return [part[:, m] for m, part in enumerate(torch.split(log_probabilities, list(sizes)))]


def vote(log_probabilities: Tensor, weights: Tensor) -> Tensor:
    r"""Return the logarithm of the weighted mean of the classifiers' probabilities.

    .. math:: \log \sum_m w_m \, p_m(k \mid x)

    Shapes: log-probabilities (B, M, K), weights (M,) or (B, M) that sum to one -> (B, K).

    >>> vote(torch.tensor([[[0.5, 0.5], [0.9, 0.1]]]).log(), torch.tensor([0.25, 0.75])).exp()
    tensor([[0.8000, 0.2000]])
    """
    return torch.logsumexp(log_probabilities + weights.log()[..., None], dim=1)


@torch.no_grad()
def accuracy_elsewhere(log_probabilities: Tensor, labels: Sequence[Tensor]) -> Tensor:
    """Return how often each source's classifier is right about samples of the other sources; of its own if it is alone.

    Shapes: log-probabilities (B, M, K), labels M times (B_m,) -> (M,).
    """
    sizes = [len(y) for y in labels]
    right = (log_probabilities.argmax(2) == torch.cat(list(labels))[:, None]).to(log_probabilities.dtype)
    rates = torch.stack([part.sum(0) / max(1, len(part)) for part in torch.split(right, sizes)])  # (domain, classifier)
    sources = len(sizes)
    if sources == 1:
        return rates[0]
    return (rates.sum(0) - rates.diagonal()) / (sources - 1)
