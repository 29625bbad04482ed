"""Losses on predictions and on the relation graph: classification (eqs. 7-9) and alignment (eqs. 13, 14).

Eqs. 8 and 9 serve both models: eq. 10 adds eq. 7 to them (CRF-MSDA), eq. 21 is their plain sum (MRF-MSDA).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from graphmsda.graphs.prototypes import wide

ELEMENTS = 2**25  # of the largest temporary: 128 MiB in float32


def prototype_risk(logits: Tensor, classes: Tensor, seen: Tensor) -> Tensor:
    r"""Cross-entropy of the prototypes' own predictions: eq. 7.

    .. math:: L^{proto}_{cls} = - \frac{1}{(M+1) K} \sum_m \sum_k \log \hat y^m_k [k]

    The mean is over the prototypes seen so far; once all are seen it is the printed one.

    Shapes: logits (n, K), classes (n,) int64, seen (n,) bool -> 0-dim.
    """
    log_probability = logits.log_softmax(1).gather(1, classes[:, None]).squeeze(1)
    weight = seen.to(logits.dtype)
    return -(weight * log_probability).sum() / weight.sum().clamp(min=1)


def source_risk(log_probabilities: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
    r"""Cross-entropy on the labelled samples, every source counting alike: eq. 8.

    .. math:: L^{src}_{cls} = - \frac{1}{M} \sum_m \mathbb{E}_{(q, y_q) \in \hat S_m} \log \hat y_q [y_q]

    A source without a sample in this batch adds nothing and is not counted in :math:`M`.

    Shapes: for each source, log-probabilities (B_m, K) and labels (B_m,) int64 -> 0-dim.
    """
    parts = [
        -rows.gather(1, y[:, None]).mean() for rows, y in zip(log_probabilities, labels, strict=True) if len(y) > 0
    ]
    return torch.stack(parts).mean() if parts else log_probabilities[0].sum()


def target_entropy(log_probabilities: Tensor) -> Tensor:
    r"""Mean entropy of the predictions on target samples, summed over classes as printed: eq. 9.

    .. math:: L^{tgt}_{cls} = - \mathbb{E}_{q \in \hat T} \sum_k \hat y_q[k] \log \hat y_q[k]

    A class of probability zero adds zero to value and gradient.

    Shapes: log-probabilities (B, K) -> 0-dim.

    >>> round(float(target_entropy(torch.tensor([[1.0, 0.0], [0.5, 0.5]]).log())), 4)
    0.3466
    """
    # exp() of twice the smallest normal number's logarithm is zero already, so the value is untouched, while the
    # gradient stays a product of finite numbers.
    floor = 2 * math.log(torch.finfo(log_probabilities.dtype).tiny)
    rows = log_probabilities.clamp(min=floor)
    return -(rows.exp() * rows).sum() / max(len(rows), 1)


def global_alignment(graph: Tensor, domains: int, *, seen: Tensor | None = None) -> Tensor:
    r"""How far the relations between classes differ from one pair of domains to another: eq. 13.

    .. math:: L_{global} = \frac{1}{(M+1)^4} \sum_{i,j,m,n} \lVert \tilde A_{ij} - \tilde A_{mn} \rVert_F

    All :math:`(M+1)^4` ordered pairs of blocks count, a block and itself included. Differences are taken directly:
    blocks become nearly equal when training succeeds, and there the matrix-product form of a distance loses every
    digit. Where two blocks coincide the norm has no derivative and zero is taken, the smallest subgradient. The loss
    can be differentiated once.

    With ``seen``, an entry (k, l) of a pair of blocks counts only if the four prototypes it compares are all seen.

    Shapes: graph (DK, DK) ordered by domain, then class; seen (D, K) bool -> 0-dim.

    >>> round(float(global_alignment(torch.eye(4), 2)), 4)
    0.7071
    """
    (graph,) = wide(graph)
    classes = len(graph) // domains
    rows = graph.view(domains, classes, domains, classes).transpose(1, 2).reshape(domains**2, classes**2)
    mask = None
    if seen is not None:
        known = seen.to(rows.dtype)
        mask = (known[:, None, :, None] * known[None, :, None, :]).reshape(domains**2, classes**2)
    loss: Tensor = _MeanNorm.apply(rows, mask)
    return loss


def local_alignment(embedding: Tensor, prototypes: Tensor, weight: Tensor) -> Tensor:
    r"""How far samples lie from the prototype of their own domain and class: eq. 14.

    .. math:: L_{local} = \frac{1}{|B|} \sum_{i \in B} w_i \lVert f(x_i) - c_{(i)} \rVert_2^2

    A target sample without a trusted pseudo-label has weight 0, and counts in :math:`|B|` all the same.

    Shapes: embedding (B, d), prototypes (B, d) row by row, weight (B,) -> 0-dim.
    """
    embedding, prototypes = wide(embedding, prototypes)
    return (weight * (embedding - prototypes).square().sum(1)).sum() / max(len(embedding), 1)


class _MeanNorm(torch.autograd.Function):
    """Mean Euclidean norm over all ordered pairs of rows, with the gradient taken along.

    Autograd would keep every difference, N x N x E numbers; here a few rows are compared at a time and what is kept is
    the gradient, N x E.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, mask: Tensor | None) -> Tensor:
        count, size = rows.shape
        step = max(1, ELEMENTS // (count * size))
        total = rows.new_zeros(())
        slopes = []
        for start in range(0, count, step):
            some = slice(start, start + step)
            difference = rows[some, None] - rows
            if mask is not None:
                difference *= mask
                difference *= mask[some, None]
            norm = torch.linalg.vector_norm(difference, dim=2)
            total = total + norm.sum()
            if ctx.needs_input_grad[0]:
                direction = torch.where(norm > 0, 1 / norm, 0)
                slopes.append(torch.bmm(direction[:, None], difference).squeeze(1))
        if slopes:
            ctx.save_for_backward(torch.cat(slopes) * (2 / count**2))
        return total / count**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return grad * slope, None
