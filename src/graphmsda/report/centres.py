"""Points that stand for the classes of domains, and what each domain says by them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graphmsda.graphs import markov
from graphmsda.graphs.prototypes import distance_scale
from graphmsda.methods.crf import CRF
from graphmsda.methods.mrf import MRF
from graphmsda.run import Run


@dataclass(frozen=True)
class Centres:
    """Points that stand for the classes of domains.

    Attributes:
        points: ``(D, K, d)``.
        seen: Which of them have met a sample, ``(D, K)``.
        names: The domains.
        word: What they are called: prototype or class mean.
        temperature: Squared distances are divided by it.
    """

    points: Tensor
    seen: Tensor
    names: tuple[str, ...]
    word: str
    temperature: float


def find_centres(run: Run) -> Centres:
    """Return the method's prototypes or, of a method without, the means of the sources' classes."""
    method = run.method
    if isinstance(method, MRF):
        temperature = float(method.temperature().detach())
        return Centres(method.prototypes.detach(), method.seen, run.domains, "prototype", temperature)
    if isinstance(method, CRF):
        scale = float(distance_scale(method.prototypes, method.seen, reading=method.scale))
        return Centres(method.prototypes, method.seen, run.domains, "prototype", 2 * method.sigma**2 * scale)
    points, seen = method.source_means, method.source_means_seen
    scale = float(distance_scale(points, seen, reading="relative"))
    return Centres(points, seen, run.domains[:-1], "class mean", 0.2 * scale or 1.0)


def joint_of(centres: Centres, embedding: Tensor) -> Tensor:
    """Return eqs. 18-19 of MRF-MSDA for any centres, p(domain, class | query): ``(B, d) -> (B, D, K)``."""
    energy = markov.energies(embedding, centres.points.to(embedding.dtype), temperature=centres.temperature)
    return markov.log_joint(energy, centres.seen).exp()


def weigh(joint: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return the weight of each domain, the class each would choose alone, and how far they disagree.

    The last is the mutual information of class and domain given the query, in bits: nothing where all domains that
    have a weight say the same.

    .. math:: I(y; y_d \mid q) = H\big(p(y \mid q)\big) - \sum_m p(y_d = m \mid q) \, H\big(p(y \mid y_d = m, q)\big)

    Shapes: (B, D, K) -> (B, D), (B, D), (B,).

    >>> weights, votes, dispute = weigh(torch.tensor([[[0.5, 0.0], [0.0, 0.5]], [[0.5, 0.0], [0.5, 0.0]]]))
    >>> weights.tolist(), votes.tolist(), dispute.abs().tolist()
    ([[0.5, 0.5], [0.5, 0.5]], [[0, 1], [0, 0]], [1.0, 0.0])
    """

    def entropy(p: Tensor) -> Tensor:
        bits: Tensor = -torch.special.xlogy(p, p).sum(-1) / math.log(2)
        return bits

    weights = joint.sum(2)
    opinions = joint / weights.clamp(min=torch.finfo(joint.dtype).tiny)[:, :, None]
    dispute = entropy(joint.sum(1)) - (weights * entropy(opinions)).sum(1)
    return weights, joint.argmax(2), dispute.clamp(min=0)
