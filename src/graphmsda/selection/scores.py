"""Scores that rank models without target labels, each a pure function of `Evidence`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmsda.run import Run
from graphmsda.selection.calibration import fit_temperature
from graphmsda.selection.estimators import prior_of, transport
from graphmsda.selection.evidence import Evidence, joined
from graphmsda.selection.ratios import density_ratios

NEIGHBOURS = 4000  # samples whose neighbourhoods are compared: the score grows with their number
SHARPNESS = 0.05  # temperature of soft neighbourhoods, as in the paper


@dataclass(frozen=True)
class Score:
    """A way to rank models.

    Attributes:
        function: The score of a model.
        higher: Whether the higher score is the better one.
        text: What it measures, for people.
        paper: Where it comes from.
    """

    function: Callable[[Evidence], float]
    higher: bool
    text: str
    paper: str

    def __call__(self, evidence: Evidence) -> float:
        """Return the score of a model."""
        return self.function(evidence)


def entropy(evidence: Evidence) -> float:
    r"""Mean entropy of target predictions, in nats.

    .. math:: \frac{1}{n} \sum_i H(p_i), \qquad H(p) = - \sum_k p_k \log p_k
    """
    return float(torch.special.entr(evidence.target.probabilities).sum(1).mean())


def information(evidence: Evidence) -> float:
    r"""Mutual information of sample and predicted class on the target, in nats.

    .. math:: H\Big(\frac{1}{n} \sum_i p_i\Big) - \frac{1}{n} \sum_i H(p_i)
    """
    probabilities = evidence.target.probabilities
    return float(torch.special.entr(probabilities.mean(0)).sum()) - entropy(evidence)


def neighbourhood_density(evidence: Evidence) -> float:
    r"""Soft neighbourhood density: entropy of the similarities of a sample to all others.

    .. math:: \frac{1}{n} \sum_i H(P_i), \qquad P_{ij} = \frac{e^{\langle f_i, f_j \rangle / \tau}}
              {\sum_{j' \neq i} e^{\langle f_i, f_{j'} \rangle / \tau}} \ (j \neq i)

    where :math:`f_i` is the prediction of sample i scaled to length 1 and :math:`\tau = 0.05`. Of more than 4,000
    samples, evenly spaced ones are taken.
    """
    probabilities = evidence.target.probabilities
    count = len(probabilities)
    if count > NEIGHBOURS:
        probabilities = probabilities[torch.linspace(0, count - 1, NEIGHBOURS).round().long()]
        count = NEIGHBOURS
    if count < 2:
        return 0.0
    points = F.normalize(probabilities)
    total = 0.0
    for begin in range(0, count, 512):
        similar = points[begin : begin + 512] @ points.T / SHARPNESS
        similar[torch.arange(len(similar)), begin + torch.arange(len(similar))] = -torch.inf
        total += float(torch.special.entr(similar.softmax(1)).sum())
    return total / count


@lru_cache(maxsize=1)  # two scores ask for the same
def weighted_losses(evidence: Evidence) -> tuple[Tensor, Tensor]:
    """Return, for the sources' samples, how typical each is of the target and whether its prediction is wrong."""
    source = joined(evidence.sources)
    return density_ratios(source.embeddings, evidence.target.embeddings), 1 - source.right


def importance_weighted(evidence: Evidence) -> float:
    r"""Importance-weighted validation error: the sources' errors, weighted by how typical a sample is of the target.

    .. math:: \frac{1}{n} \sum_i w(x_i) \, [\hat y_i \neq y_i], \qquad w(x) = \frac{p_T(x)}{p_S(x)}
    """
    weights, wrong = weighted_losses(evidence)
    return float((weights * wrong).mean())


def deep_embedded_validation(evidence: Evidence) -> float:
    r"""Deep embedded validation: the weighted error with a control variate that reduces its variance.

    .. math:: \frac{1}{n} \sum_i L_i + \eta \, \frac{1}{n} \sum_i w_i - \eta, \qquad
              \eta = - \frac{\mathrm{Cov}(L, w)}{\mathrm{Var}(w)}, \quad L_i = w_i [\hat y_i \neq y_i]
    """
    weights, wrong = weighted_losses(evidence)
    losses = weights * wrong
    spread = weights - weights.mean()
    variance = spread.square().sum()
    control = -(spread * (losses - losses.mean())).sum() / variance if variance > 0 else torch.zeros(())
    return float(losses.mean() + control * (weights.mean() - 1))


def nuclear_norm(evidence: Evidence) -> float:
    r"""Nuclear norm of the matrix of target predictions, 1 where all are sure and no class is preferred.

    .. math:: \frac{\lVert P \rVert_*}{\sqrt{n \min(n, K)}} = \frac{1}{\sqrt{n \min(n, K)}} \sum_j \sigma_j(P)
    """
    probabilities = evidence.target.probabilities
    # Singular values by way of the small matrix: of 4,000 x 345 predictions in a moment.
    values = torch.linalg.eigvalsh(probabilities.T @ probabilities).clamp(min=0).sqrt()
    return float(values.sum() / (len(probabilities) * min(probabilities.shape)) ** 0.5)


def class_balance(evidence: Evidence) -> float:
    r"""Divergence of the classes predicted on the target from those of the sources, in nats.

    .. math:: \sum_k \bar p_k \log \frac{\bar p_k}{\pi_k}, \qquad \bar p = \frac{1}{n} \sum_i p_i

    The prior :math:`\pi_k` is the share of class k averaged over the sources, with half a sample added to each class.
    """
    mean = evidence.target.probabilities.mean(0)
    return float(torch.special.xlogy(mean, mean / prior_of(evidence.sources)).sum())


def confidence_transport(evidence: Evidence) -> float:
    """Confidence optimal transport (`transport`), with the temperature of the sources where these are held out."""
    source, target = joined(evidence.sources), evidence.target
    if evidence.held_out and source.labels is not None:
        target = target.tempered(fit_temperature(source.log_probabilities, source.labels))
    return transport(prior_of(evidence.sources), target)


def mixval(evidence: Evidence) -> float:
    r"""MixVal: whether mixtures of two target samples are predicted as the sample with the larger share.

    .. math:: \frac{1}{2} \Big( \frac{1}{|A|} \sum_{i \in A} [\hat y(x_i^{mix}) = \hat y(x_i)] +
              \frac{1}{|B|} \sum_{i \in B} [\hat y(x_i^{mix}) = \hat y(x_i)] \Big), \quad
              x_i^{mix} = 0.55 \, x_i + 0.45 \, x_{i'}

    A holds pairs of one predicted class, B of two. The paper averages a model's two ranks among others; the two shares
    are averaged here, so that a model has a score by itself.
    """
    if evidence.mixed is None or len(evidence.mixed.first) == 0:
        return float("nan")
    mixed = evidence.mixed
    alike = mixed.first == mixed.second
    kept = (mixed.predicted == mixed.first).double()
    shares = [float(kept[rows].mean()) for rows in (alike, ~alike) if rows.any()]
    return sum(shares) / len(shares)


def capped_mixval(evidence: Evidence) -> float:
    """MixVal, or where it is less the confidence that is left when labels have to come in the sources' proportions.

    Our own: a model that predicts one class for nearly everything is consistent on mixtures. Both are shares of target
    samples, and the smaller counts.
    """
    consistent = mixval(evidence)
    return consistent if math.isnan(consistent) else min(consistent, confidence_transport(evidence))


def prototype_agreement(evidence: Evidence) -> float:
    r"""Probability that two domains, asked for a target sample's class by their own prototypes, say the same.

    .. math:: \frac{1}{n} \sum_q \frac{1}{D (D - 1)} \sum_{m \neq m'} \sum_k p(y = k \mid q, m) \, p(y = k \mid q, m')

    Our own score: :math:`p(y \mid q, m)` is MRF's joint posterior (eqs. 18-19) within a domain.
    """
    posteriors = evidence.target.posteriors
    domains = posteriors.shape[1]
    if domains < 2:
        return float("nan")
    same = posteriors.sum(1).square().sum(1) - posteriors.square().sum((1, 2))
    return float(same.mean() / (domains * (domains - 1)))


def source_accuracy(evidence: Evidence) -> float:
    """Accuracy on the sources, averaged over them."""
    return sum(part.accuracy for part in evidence.sources) / len(evidence.sources)


SCORES: dict[str, Score] = {
    "entropy": Score(entropy, False, "mean entropy of target predictions", "Morerio et al., ICLR 2018"),
    "information": Score(
        information, True, "mutual information of target sample and prediction", "Krause et al., NIPS 2010"
    ),
    "neighbourhood-density": Score(
        neighbourhood_density, True, "soft neighbourhood density of target predictions", "Saito et al., ICCV 2021"
    ),
    "importance-weighted": Score(
        importance_weighted, False, "source error weighted towards the target", "Sugiyama et al., JMLR 2007"
    ),
    "deep-embedded-validation": Score(
        deep_embedded_validation, False, "the same with a control variate", "You et al., ICML 2019"
    ),
    "nuclear-norm": Score(nuclear_norm, True, "nuclear norm of target predictions", "Cui et al., CVPR 2020"),
    "class-balance": Score(
        class_balance, False, "divergence of predicted classes from the sources'", "after Krause et al., NIPS 2010"
    ),
    "transport": Score(
        confidence_transport, True, "confidence with labels in the sources' proportions", "Lu et al., NeurIPS 2023"
    ),
    "mixval": Score(mixval, True, "consistency on mixed target samples", "Hu et al., NeurIPS 2023"),
    "capped-mixval": Score(capped_mixval, True, "the smaller of mixval and transport", "this project"),
    "prototype-agreement": Score(
        prototype_agreement, True, "agreement of the domains' own prototypes on the target", "this project"
    ),
    "source-accuracy": Score(source_accuracy, True, "accuracy on the sources", "common practice"),
}


def score_run(
    run: Run | str | Path, task: Any = None, *, evidence: Evidence | None = None, **options: Any
) -> dict[str, float]:
    """Return all scores of a finished run; arguments as of `graphmsda.selection.gather`."""
    from graphmsda.selection.gather import gather

    found = evidence or gather(run, task, shifted=False, **options)
    return {name: score(found) for name, score in SCORES.items()}
