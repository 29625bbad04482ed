"""What the number of classes does to weights and bandwidths that were chosen on data of few."""

from __future__ import annotations

import math

FEW = 10
"""Classes of the data that the defaults were chosen on: ten on Digits-five and the embedded data, seven on PACS."""


def entropy_share(classes: int) -> float:
    r"""What an entropy summed over classes (eq. 9) is multiplied by, beside its weight.

    .. math:: \frac{1}{\min(K, 10)}

    The authors' code takes the mean over classes, 1 / K. An entropy only grows with the logarithm of K, though, so that
    with many classes a mean leaves next to nothing of the term that both models adapt by.

    >>> entropy_share(7) == 1 / 7, entropy_share(345)
    (True, 0.1)
    """
    return 1 / min(classes, FEW)


def bandwidth(sigma: float, classes: int) -> float:
    r"""Bandwidth at which the prototypes of K classes say no more to a query than those of ten do at ``sigma``: eq. 4.

    .. math:: (K - 1) \, e^{-1 / (2 \sigma_K^2)} = 9 \, e^{-1 / (2 \sigma^2)}, \qquad K > 10

    In units of the prototypes' spread the squared distance to a prototype of another class is about 1, so either side
    is what a query hears from all the other classes of a domain; up to ten classes ``sigma`` is taken as it is.

    >>> bandwidth(0.3, 10), round(bandwidth(0.3, 345), 3)
    (0.3, 0.233)
    """
    if classes <= FEW:
        return sigma
    return 1 / math.sqrt(1 / (sigma * sigma) + 2 * math.log((classes - 1) / (FEW - 1)))
