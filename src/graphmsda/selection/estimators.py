"""Guesses of a model's accuracy on unlabelled samples, each from its paper, each a pure function of predictions.

All of them compare what a model says of the target with what it says of labelled samples of the sources.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graphmsda.selection.calibration import fit_temperature
from graphmsda.selection.data import draw
from graphmsda.selection.evidence import Seen, joined

TRANSPORTED = 500  # samples: exact transport takes the cube of their number
ALLOWED = 0.1  # difference of class shares between domains, where one source does not tell


def certainty(seen: Seen) -> Tensor:
    """Return the negative entropy of each prediction, ``(N,)``."""
    entropy: Tensor = torch.special.entr(seen.probabilities).sum(1)
    return -entropy


def thresholded_confidence(source: Seen, target: Seen) -> float:
    r"""Average thresholded confidence (Garg et al., ICLR 2022), of the negative entropy.

    .. math:: \frac{1}{n_T} \sum_{i \in T} [s_i \geq t] \quad \text{where} \quad
              \frac{1}{n_S} \sum_{i \in S} [s_i < t] = \mathrm{error}_S

    The threshold leaves as many source samples below it as are predicted wrongly.
    """
    ordered = certainty(source).sort().values
    wrong = round(float((1 - source.right).sum()))
    if wrong >= len(ordered):
        return 0.0
    return float((certainty(target) >= ordered[wrong]).double().mean())


def difference_of_confidences(source: Seen, target: Seen) -> float:
    r"""Difference of confidences (Guillory et al., ICCV 2021): accuracy falls as much as confidence does.

    .. math:: \mathrm{accuracy}_S - (\overline{\max p}_S - \overline{\max p}_T)
    """
    fall = source.probabilities.amax(1).mean() - target.probabilities.amax(1).mean()
    return min(max(source.accuracy - float(fall), 0.0), 1.0)


def agreement(one: Tensor, other: Tensor) -> float:
    r"""Share of samples of which two runs of other seeds say the same (Jiang et al., ICLR 2022).

    .. math:: \frac{1}{n} \sum_i [\hat y_i = \hat y'_i]

    Shapes: predicted classes (N,), (N,).
    """
    return float((one == other).double().mean())


def prototype_votes(seen: Seen, domains: Tensor) -> Tensor:
    """Return how many of some domains' nearest prototypes are of the predicted class, as a share, ``(N,)``.

    Shapes: domains (M,) int64.
    """
    nearest = seen.posteriors[:, domains].argmax(2)
    return (nearest == seen.predicted[:, None]).double().mean(1)


def nearest_prototypes(parts: tuple[tuple[Seen, Tensor], ...], target: Seen, domains: Tensor) -> float:
    r"""Accuracy falls as much as the share of domains whose nearest prototype is of the predicted class.

    .. math:: \mathrm{accuracy}_S - (\bar v_S - \bar v_T), \qquad
              v(q) = \frac{1}{M} \sum_m [\arg\max_k p(y = k \mid q, m) = \hat y(q)]

    Each source is judged by the prototypes of the other sources alone, the target by those of all sources.

    Args:
        parts: Labelled samples of each source with the numbers of the domains that judge them.
        target: Samples of the target.
        domains: Numbers of the domains that judge the target.
    """
    votes = torch.cat([prototype_votes(seen, judges) for seen, judges in parts]).mean()
    right = torch.cat([seen.right for seen, _ in parts]).mean()
    return min(max(float(right - votes + prototype_votes(target, domains).mean()), 0.0), 1.0)


def class_shares(labels: Tensor, classes: int) -> Tensor:
    """Return the share of each class among labels, half a sample added to each: ``(N,) -> (K,)``."""
    counts = torch.bincount(labels, minlength=classes).double() + 0.5
    return counts / counts.sum()


def prior_of(sources: Sequence[Seen]) -> Tensor:
    """Return the share of each class averaged over labelled sources, ``(K,)``."""
    classes = sources[0].log_probabilities.shape[1]
    return torch.stack([class_shares(part.labels, classes) for part in sources if part.labels is not None]).mean(0)


def transport(prior: Tensor, target: Seen) -> float:
    r"""Confidence optimal transport (Lu et al., NeurIPS 2023): 1 less the cost of giving each sample a sure label.

    .. math:: 1 - \min_{\gamma} \sum_{i,k} \gamma_{ik} \, (1 - p_{ik}), \qquad
              \sum_k \gamma_{ik} = \frac{1}{n}, \quad \sum_i \gamma_{ik} = \pi_k

    Labels come in the proportions of the sources, so a model that is sure of one class for all is found out. The cost
    of a label is the total variation between it and the prediction. Of more than 500 samples, 500 are taken.

    Shapes: prior (K,).
    """
    from scipy.optimize import linear_sum_assignment

    said = target.probabilities[draw(target.probabilities, TRANSPORTED)]
    places = prior * len(said)
    counts = places.floor().long()
    counts[(places - counts).argsort(descending=True)[: len(said) - int(counts.sum())]] += 1
    labels = torch.repeat_interleave(torch.arange(len(prior)), counts)
    kept = said[:, labels].numpy()
    return float(kept[linear_sum_assignment(kept, maximize=True)].mean())


def ceiling(sources: Sequence[Seen], target: Seen) -> float:
    r"""Return what accuracy can be at most when the target's classes are as frequent as the sources'.

    .. math:: \sum_k \min(\hat \pi_k, \pi_k) + \max_m \lVert \pi^m - \pi \rVert_{TV}

    :math:`\hat \pi` are the shares of predicted classes: of a class that is predicted too often, the rest is wrong. The
    last term allows for a target whose classes are as far from the sources' as one source's are from the others'.
    """
    classes = target.log_probabilities.shape[1]
    predicted = torch.bincount(target.predicted, minlength=classes).double() / len(target)
    apart = [
        float(1 - torch.minimum(prior_of([part]), prior_of([*sources[:place], *sources[place + 1 :]])).sum())
        for place, part in enumerate(sources)
        if len(sources) > 1
    ]
    return min(float(torch.minimum(predicted, prior_of(sources)).sum()) + max(apart, default=ALLOWED), 1.0)


def read_parts(
    sources: Sequence[Seen], domains: Sequence[int], target: Seen, *, tempered: bool = True, second: Seen | None = None
) -> dict[str, float]:
    """Return what each estimator makes of a model's accuracy on a domain, given labelled samples of others.

    Args:
        sources: Labelled samples of other domains.
        domains: Their numbers among the domains that have prototypes.
        target: Samples of the domain in question.
        tempered: Whether to temper probabilities first, by what fits the sources best.
        second: What a run with another seed says of the same samples.
    """
    source = joined(tuple(sources))
    assert source.labels is not None
    if tempered:
        temperature = fit_temperature(source.log_probabilities, source.labels)
        source, target = source.tempered(temperature), target.tempered(temperature)
    parts = {
        "thresholded-confidence": thresholded_confidence(source, target),
        "difference-of-confidences": difference_of_confidences(source, target),
        "transport": transport(prior_of(sources), target),
    }
    if len(set(domains)) > 1:
        judges = [torch.tensor(sorted(set(domains) - {own})) for own in domains]
        judged = tuple(zip(sources, judges, strict=True))
        parts["nearest-prototypes"] = nearest_prototypes(judged, target, torch.tensor(sorted(set(domains))))
    if second is not None:
        parts["agreement"] = agreement(target.predicted, second.predicted)
    # That all of few samples are right is no proof of 100 %, and worse than chance is nothing that confidence tells.
    most = min(ceiling(sources, target), 1 - 0.5 / len(target))
    chance = 1 / target.log_probabilities.shape[1]
    return {name: max(min(value, most), chance) for name, value in parts.items()}
