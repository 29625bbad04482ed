"""A curriculum over source samples: weights that sum to their number, and the domain risk they enter."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def curriculum_weights(scores: Tensor) -> Tensor:
    r"""Weights of all source samples of a batch from the manager's scores, one on average.

    .. math:: w_i = N \frac{e^{s_i}}{\sum_{j=1}^{N} e^{s_j}}

    Yang et al., "Curriculum Manager for Source Selection in Multi-Source Domain Adaptation" (ECCV 2020). The softmax
    goes over the samples of all sources together: the manager knows nothing of domains.

    Shapes: scores (N,) -> (N,).

    >>> import torch
    >>> curriculum_weights(torch.zeros(3))
    tensor([1., 1., 1.])
    """
    return len(scores) * scores.softmax(0)


def weighted_domain_risk(source: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    r"""Cross-entropy of a discriminator of source and target, each source sample with its weight.

    .. math:: L_{wdom} = -\tfrac{1}{N} \sum_i w_i \log D(f(x_i)) - \tfrac{1}{N_T} \sum_j \log (1 - D(f(x^T_j)))

    Yang et al. (ECCV 2020). With weights of one it is the domain risk of Ganin et al. (JMLR 2016), summed over the two
    kinds of domain. The discriminator gives logits: its :math:`D` is their sigmoid, the probability of a source.

    Shapes: source logits (N, 1), target logits (N_T, 1), weights (N,) -> 0-dim.
    """
    on_source = (weights * F.softplus(-source).squeeze(1)).sum() / max(1, len(source))
    return on_source + F.softplus(target).sum() / max(1, len(target))
