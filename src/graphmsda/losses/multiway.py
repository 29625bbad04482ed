"""Parts of methods that set a discriminator of its own against each source: it tells that source from the target.

A discriminator's logit is positive where it takes a sample for one of its source.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmsda.graphs.prototypes import one_hot


def separation_risk(source_logits: Tensor, target_logits: Tensor) -> Tensor:
    r"""Cross-entropy of a discriminator, source and target counting alike however many samples each has.

    .. math:: - \tfrac12 \mathbb E_{x \in S} \log D(x) - \tfrac12 \mathbb E_{x \in T} \log (1 - D(x)),
              \quad D = \sigma(\text{logit})

    It is :math:`\log 2` for one that cannot tell them apart.

    Shapes: (B_s,), (B_t,) -> 0-dim.

    >>> separation_risk(torch.zeros(3), torch.zeros(2))
    tensor(0.6931)
    """
    return (_mean(F.softplus(-source_logits)) + _mean(F.softplus(target_logits))) / 2


def confusion(logits: Tensor) -> Tensor:
    r"""How far a discriminator is from having no opinion: what an embedding trained against it makes small.

    .. math:: - \mathbb E \big[ \tfrac12 \log D(x) + \tfrac12 \log (1 - D(x)) \big]

    Tzeng et al. (ICCV 2015), as Xu et al. (CVPR 2018) use it. Unlike the discriminator's own loss with its sign turned
    it is least, :math:`\log 2`, where :math:`D = 1/2`, so the embedding cannot gain by deceiving too well.

    Shapes: (B,) -> 0-dim.

    >>> confusion(torch.zeros(3))
    tensor(0.6931)
    """
    return _mean(F.softplus(-logits) + F.softplus(logits)) / 2


def worst_case(objectives: Tensor, gamma: float | None = None) -> Tensor:
    r"""Weights of the sources by which the gradient of the worst one's objective is the weighted sum of gradients.

    .. math:: \nabla \max_i v_i = \sum_i w_i \nabla v_i, \quad w_i = [i = \arg\max_j v_j]; \qquad
              \nabla \tfrac{1}{\gamma} \log \sum_i e^{\gamma v_i} = \sum_i w_i \nabla v_i, \quad
              w_i = \frac{e^{\gamma v_i}}{\sum_j e^{\gamma v_j}}

    No gradient passes through the weights.

    Args:
        objectives: One for each source, (M,).
        gamma: Sharpness of the smooth maximum; None for the maximum itself.

    Returns:
        Weights (M,) that sum to one.

    >>> worst_case(torch.tensor([1.0, 2.0, 0.0]))
    tensor([0., 1., 0.])
    """
    values = objectives.detach()
    if gamma is None:
        return one_hot(values.argmax(0, keepdim=True), len(values), dtype=values.dtype)[0]
    return torch.softmax(gamma * values, 0)


def perplexity_scores(logits: Tensor, constants: Tensor) -> Tensor:
    r"""How much each source's discriminator takes a sample for one of its own: Xu et al. (CVPR 2018), Sec. 3.

    .. math:: \mathcal S_j(x) = - \log (1 - D_j(x)) + \alpha_j

    with :math:`\alpha_j` the mean of :math:`-\log D_j` over source j, which keeps a source that its discriminator
    hardly tells from the target from being left out.

    Shapes: logits (B, M), constants (M,) -> (B, M).
    """
    return F.softplus(logits) + constants


def _mean(x: Tensor) -> Tensor:
    return x.sum() / max(1, len(x))
