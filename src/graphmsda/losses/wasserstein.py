"""The Wasserstein distance by a critic whose slope is held near one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from graphmsda.graphs.draws import integers

FINE = 2**24  # steps between 0 and 1 that a float32 tells apart
APART = 2**32  # between the seeds of two critics: neighbouring ones would draw the same numbers, one place apart

Critic = Callable[[Tensor], Tensor]
"""Scores samples, each by itself: ``(B, d) -> (B, 1)``."""


def critic_gap(source: Tensor, target: Tensor) -> Tensor:
    r"""How much higher a critic scores the source than the target: the Wasserstein distance, if it is the best critic.

    .. math:: W = \sup_{\lVert D \rVert_L \le 1} E_{f \in S} D(f) - E_{f \in T} D(f)

    Shen et al., "Wasserstein Distance Guided Representation Learning" (AAAI 2018), eq. 2; Zhao et al., "Multi-source
    Distilling Domain Adaptation" (AAAI 2020), per source. A domain without samples has the mean zero.

    Shapes: scores (B_S, 1) and (B_T, 1), of unequal lengths -> 0-dim.

    >>> float(critic_gap(torch.tensor([[3.0], [1.0]]), torch.tensor([[0.5]])))
    1.5
    """
    return source.sum() / max(1, len(source)) - target.sum() / max(1, len(target))


def between(source: Tensor, target: Tensor, seed: Tensor) -> Tensor:
    r"""Draw points on straight lines between samples of the two domains: :math:`\hat f = f_S + u (f_T - f_S)`.

    As many points as the larger domain has samples: the smaller one's are taken again from the first. The numbers
    :math:`u`, one a point, are made of the seed, so all processes draw the same points.

    Shapes: source (B_S, d), target (B_T, d), both with a sample at least, seed int64 0-dim -> (max(B_S, B_T), d).
    """
    count = max(len(source), len(target))
    place = torch.arange(count, device=source.device)
    share = integers(FINE, (count, 1), seed).to(source.dtype) / FINE
    return torch.lerp(source[place % len(source)], target[place % len(target)], share)


def gradient_penalty(critic: Critic, points: Tensor) -> Tensor:
    r"""How far the slope of a critic is from one, at some points.

    .. math:: L_{grad} = E_{\hat f} (\lVert \nabla_{\hat f} D(\hat f) \rVert_2 - 1)^2

    Gulrajani et al., "Improved Training of Wasserstein GANs" (NIPS 2017), eq. 3. Its gradient by the critic's
    parameters is a second derivative; none flows to the points. Where the slope is zero its norm has no derivative and
    zero is taken.

    Shapes: critic (n, d) -> (n, 1), each row by itself; points (n, d) -> 0-dim.
    """
    points = points.detach().requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
    lengths: Tensor = torch.linalg.vector_norm(slope, dim=1)
    return (lengths - 1).square().sum() / max(1, len(points))


def critic_gaps(critics: Iterable[Critic], sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    """Return `critic_gap` of each source by its own critic: embeddings (B_m, d) and (B_T, d) -> (M,)."""
    given = zip(critics, sources, targets, strict=True)
    return torch.stack([critic_gap(critic(source), critic(target)) for critic, source, target in given])


def gradient_penalties(
    critics: Iterable[Critic], sources: Sequence[Tensor], targets: Sequence[Tensor], seed: Tensor
) -> Tensor:
    """Return `gradient_penalty` of each source's critic at points `between` it and the target: -> (M,)."""
    given = enumerate(zip(critics, sources, targets, strict=True))
    return torch.stack([gradient_penalty(critic, between(x, y, seed + APART * m)) for m, (critic, x, y) in given])


def nearest(source: Tensor, target: Tensor, share: float) -> Tensor:
    r"""Find the samples of a source that a critic scores most like the target: source distilling.

    .. math:: \tau_j = \lvert D(f(x_j)) - E_{f \in T} D(f) \rvert

    Zhao et al. (AAAI 2020): the share of the samples with the least :math:`\tau`, one at least.

    Shapes: scores (B_S, 1) and (B_T, 1) -> rows of the source, (max(1, share * B_S),) int64.

    >>> nearest(torch.tensor([[3.0], [0.0], [1.0], [9.0]]), torch.tensor([[1.0], [2.0]]), 0.5).sort().values
    tensor([1, 2])
    """
    distances = (source - target.mean()).abs().squeeze(1)
    return distances.topk(max(1, round(share * len(distances))), largest=False).indices
