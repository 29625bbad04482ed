"""How far the moments of several domains' embeddings lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from graphmsda.graphs.prototypes import wide


def moments(x: Tensor, *, orders: int, centred: bool = False) -> Tensor:
    r"""Return the moments of each dimension, raw or, from the second on, about the mean.

    .. math:: \mathbb E[X], \; \mathbb E[X^2], \ldots \qquad \text{or} \qquad
              \mathbb E[X], \; \mathbb E[(X - \mathbb E X)^2], \ldots

    Shapes: x (B, d) -> (orders, d).

    >>> moments(torch.tensor([[1.0], [3.0]]), orders=2)
    tensor([[2.],
            [5.]])
    >>> moments(torch.tensor([[1.0], [3.0]]), orders=2, centred=True)
    tensor([[2.],
            [1.]])
    """
    count = max(1, len(x))
    found = [x.sum(0) / count]
    factor = x - found[0] if centred else x
    power = factor
    for _ in range(orders - 1):
        power = power * factor
        found.append(power.sum(0) / count)
    return torch.stack(found)


def moment_distance(sources: Sequence[Tensor], target: Tensor, *, orders: int = 2, centred: bool = False) -> Tensor:
    r"""Distance of the domains' moments: Peng et al., "Moment Matching ..." (ICCV 2019), eq. 1.

    .. math:: \sum_{k} \Big( \frac{1}{N} \sum_{i=1}^{N} \lVert \mathbb E(X_i^k) - \mathbb E(X_T^k) \rVert_2 +
              \binom{N}{2}^{-1} \sum_{i < j} \lVert \mathbb E(X_i^k) - \mathbb E(X_j^k) \rVert_2 \Big)

    over the N sources, with powers taken of each dimension by itself and :math:`k = 1, 2` in the paper. Each of the
    pairs counts once. The norm of a difference that is exactly zero has the gradient zero. With one source there is no
    second sum.

    Args:
        sources: Embeddings of each source, (B_m, d); sizes may differ.
        target: Embeddings of the target, (B, d).
        orders: How many moments to match.
        centred: Take the moments from the second on about each domain's own mean.

    Returns:
        0-dim.
    """
    *ours, target = wide(*sources, target)
    every = torch.stack([moments(x, orders=orders, centred=centred) for x in (*ours, target)])  # (N + 1, orders, d)
    distance = torch.linalg.vector_norm(every[:-1] - every[-1], dim=2).mean(0).sum()
    if len(ours) > 1:
        between = torch.stack([every[i] - every[j] for i, j in combinations(range(len(ours)), 2)])
        distance = distance + torch.linalg.vector_norm(between, dim=2).mean(0).sum()
    total: Tensor = distance
    return total
