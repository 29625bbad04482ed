"""How far two classifiers disagree on the same samples, and how evenly one spreads its answers over the classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def discrepancy(one: Tensor, two: Tensor) -> Tensor:
    r"""Mean absolute difference of two classifiers' probabilities, over samples and classes.

    .. math:: L_{adv} = \mathbb{E}_{x} \Big[ \frac{1}{K} \sum_k \lvert p_1(k \mid x) - p_2(k \mid x) \rvert \Big]

    Saito et al., "Maximum Classifier Discrepancy for Unsupervised Domain Adaptation" (CVPR 2018), eqs. 1 and 5.

    Shapes: log-probabilities (B, K) each -> 0-dim.

    >>> one, two = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.5, 0.5]])
    >>> round(float(discrepancy(one.log(), two.log())), 4)
    0.4
    """
    return (one.exp() - two.exp()).abs().mean()


def class_balance(log_probabilities: Tensor) -> Tensor:
    r"""Cross-entropy of the mean prediction against equally frequent classes; least where all are predicted alike.

    .. math:: - \frac{1}{K} \sum_k \log \mathbb{E}_x \, p(k \mid x)

    The class balance term of the released code of MCD (Saito et al., CVPR 2018), taken in logarithms: no small number
    has to be added.

    Shapes: log-probabilities (B, K) -> 0-dim.

    >>> round(float(class_balance(torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log())), 4)  # log 2
    0.6931
    """
    return math.log(max(1, len(log_probabilities))) - torch.logsumexp(log_probabilities, 0).mean()
