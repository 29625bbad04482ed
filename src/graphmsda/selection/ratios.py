"""How typical source samples are of the target: density ratios by a classifier of domains."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

MOST = 2000  # samples of either side that the classifier learns from
DECAY = 1e-2  # of its standardised weights


def density_ratios(source: Tensor, target: Tensor) -> Tensor:
    r"""Ratio of the target's density to the sources' at each source embedding, by telling the two apart.

    .. math:: w(x) = \frac{p_T(x)}{p_S(x)} = \frac{n_S}{n_T} \cdot \frac{p(T \mid x)}{p(S \mid x)}

    The classifier is a logistic regression on standardised embeddings. A sample's own ratio comes from one that has not
    seen it (two halves, each weighed by what was learned from the other): the papers' held-out training samples are
    not at hand in a finished run.

    Shapes: source (N, d), target (T, d) -> (N,) float64.
    """
    both = torch.cat((source, target)).double()
    mean, deviation = both.mean(0), both.std(0, correction=0)
    scale = torch.where(deviation > 0, deviation, 1)
    source, target = (source.double() - mean) / scale, (target.double() - mean) / scale
    shuffled = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))
    ratios = torch.empty(len(source), dtype=torch.float64)
    halves = shuffled[::2], shuffled[1::2]
    for held, learned in (halves, halves[::-1]):
        known = learned if len(learned) else held
        weight, bias = logistic_regression(source[known][:MOST], target[_spaced(len(target))])
        ratios[held] = (source[held] @ weight + bias).exp()
    return ratios


def logistic_regression(negative: Tensor, positive: Tensor, decay: float = DECAY) -> tuple[Tensor, Tensor]:
    r"""Minimise the mean logistic loss, both sides weighing the same, and a penalty on the weights.

    .. math:: \frac{1}{2 n} \sum_{x \in -} \log(1 + e^{f(x)}) + \frac{1}{2 p} \sum_{x \in +} \log(1 + e^{-f(x)}) +
              \frac{\lambda}{2} \lVert w \rVert^2, \quad f(x) = \langle w, x \rangle + b

    With equal weight of both sides, :math:`e^{f(x)}` is the density ratio itself.

    Shapes: (n, d), (p, d) -> (d,), 0-dim.
    """
    from scipy.optimize import minimize

    size = negative.shape[1]

    def loss(flat: Any) -> tuple[float, Any]:
        weight = torch.from_numpy(flat).clone().requires_grad_()
        below, above = (side @ weight[:size] + weight[size] for side in (negative, positive))
        value = (F.softplus(below).mean() + F.softplus(-above).mean()) / 2 + decay / 2 * weight[:size].square().sum()
        (gradient,) = torch.autograd.grad(value, weight)
        return float(value.detach()), gradient.numpy()

    start = torch.zeros(size + 1, dtype=torch.float64).numpy()
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    weight = torch.from_numpy(found.x)
    return weight[:size], weight[size]


def _spaced(count: int) -> Tensor:
    return torch.arange(count) if count <= MOST else torch.linspace(0, count - 1, MOST).round().long()
