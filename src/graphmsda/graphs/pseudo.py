"""Pseudo-labels for the target domain: the likeliest class, and whether to trust it.

Each function takes log-probabilities (B, K) and returns labels (B,) int64 and weights (B,), 1 for a trusted label and 0
otherwise. Shapes do not depend on how many are trusted, and no gradient passes.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def by_entropy(log_probabilities: Tensor, *, threshold: float) -> tuple[Tensor, Tensor]:
    r"""Trust predictions of low entropy, as the authors' code does (with 0.5 nat).

    .. math:: w_q = \Big[ -\sum_k \hat y_q[k] \log \hat y_q[k] < \text{threshold} \Big]

    A class of probability zero adds nothing to the entropy, so the surest predictions count as sure; taken literally,
    :math:`0 \log 0` is not a number and drops them.

    >>> by_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).log(), threshold=0.5)
    (tensor([0, 0]), tensor([1., 0.]))
    """
    entropy = torch.special.entr(log_probabilities.exp()).sum(1)
    return log_probabilities.argmax(1), (entropy < threshold).to(log_probabilities.dtype)


@torch.no_grad()
def by_accuracy(log_probabilities: Tensor, accuracy: Tensor) -> tuple[Tensor, Tensor]:
    r"""Trust predictions by how well the model does on the sources: the rule of the work that the paper cites.

    .. math:: w_q = \Big[ \max_k \hat y_q[k] > \frac{1}{1 + e^{-3 A}} \Big]

    The threshold goes from 0.5 for a model that is always wrong on the sources (:math:`A = 0`) to 0.953 for one that
    is always right. ``accuracy`` is a 0-dim tensor on the device, a fraction.
    """
    return _above(log_probabilities, torch.sigmoid(3 * accuracy))


@torch.no_grad()
def by_confidence(log_probabilities: Tensor, *, threshold: Tensor | float) -> tuple[Tensor, Tensor]:
    r"""Trust predictions whose largest probability is above a fixed threshold, or above one for each class, ``(K,)``.

    .. math:: w_q = \Big[ \max_k \hat y_q[k] > \text{threshold} \Big]
    """
    return _above(log_probabilities, threshold)


@torch.no_grad()
def class_thresholds(shares: Tensor, threshold: float) -> Tensor:
    r"""Lower the threshold of classes of which fewer are believed than of the others (Zhang et al., FlexMatch, 2021).

    .. math:: t_k = \text{threshold} \cdot \frac{\beta_k}{2 - \beta_k}, \quad
              \beta_k = \frac{s_k}{\max(\max_{k'} s_{k'}, \, 1 - \sum_{k'} s_{k'})}

    with :math:`s_k` the share of samples that are believed to be of class k; as long as most are not believed at all,
    that is what the others are measured against. A class never believed keeps half of the threshold.

    Shapes: shares (K,) -> (K,).

    >>> class_thresholds(torch.tensor([0.5, 0.25, 0.0]), 0.9)
    tensor([0.9000, 0.4500, 0.4500])
    """
    standing = shares / torch.maximum(shares.max(), 1 - shares.sum()).clamp(min=1e-6)
    return threshold * (standing / (2 - standing)).clamp(min=0.5)


def _above(log_probabilities: Tensor, threshold: Tensor | float) -> tuple[Tensor, Tensor]:
    likeliest, labels = log_probabilities.max(1)
    least = threshold[labels] if isinstance(threshold, Tensor) and threshold.ndim else threshold
    return labels, (likeliest.exp() > least).to(log_probabilities.dtype)
