"""Losses on predictions and on the relation graph: classification (eqs. 7-9) and alignment (eqs. 13, 14).

Eqs. 8 and 9 serve both models: eq. 10 adds eq. 7 to them (CRF-MSDA), eq. 21 is their plain sum (MRF-MSDA).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from graphmsda.graphs.prototypes import wide

# Up to this many differences eq. 13 takes them one by one: near here matrix products begin to be faster on a processor,
# while on a GPU both cost little more than the launches of their kernels.
DIRECT = 2**17

# Float64 numbers in a slice of eq. 13. On a processor 4 MiB nearly stay in the cache, and less would make the products
# of 20 sources too narrow to be fast; on a GPU 64 MiB keep the launches few.
CPU_SLICE, GPU_SLICE = 2**19, 2**23

REMEMBERED = 10  # samples of each class that the shares of predicted classes remember

ROUNDING = 1e-13  # of a sum of float64 squares; up to 3e-14 was seen, with 10^6 numbers a row


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
    sources = max(1, sum(len(y) > 0 for y in labels))
    rows, y = torch.cat(list(log_probabilities)), torch.cat(list(labels))
    weight = torch.cat([rows.new_full((len(part),), 1 / (sources * max(1, len(part)))) for part in labels])
    return -(weight * rows.gather(1, y[:, None]).squeeze(1)).sum()


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


def class_imbalance(log_probabilities: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
    r"""How much a batch of target predictions adds to classes that are predicted too often, and the new shares.

    .. math:: \sum_k \bar p_k \log (K s_k), \qquad \bar p = \mathbb{E}_{q \in \hat T} \, \hat y_q, \qquad
              s \leftarrow s + \frac{B}{B + 10 K} (\bar p - s)

    Its gradient is that of :math:`\log K - H(s)`, which beside `target_entropy` makes up the mutual information of
    sample and label (Krause, Perona and Gomes, "Discriminative Clustering by Regularized Information Maximization",
    2010): predicting one class for everything does not raise it. Shares s remember about ten samples of each class,
    since a small batch of even classes is uneven (MCD's `graphmsda.losses.discrepancy.class_balance` has no memory).

    Shapes: log-probabilities (B, K), shares (K,), which start at 1 / K -> 0-dim and (K,) without gradient.

    >>> loss, shares = class_imbalance(torch.tensor([[1.0, 0.0], [1.0, 0.0]]).log(), torch.tensor([0.5, 0.5]))
    >>> round(float(loss), 4), [round(share, 4) for share in shares.tolist()]
    (0.087, [0.5455, 0.4545])
    """
    count, classes = log_probabilities.shape
    now = log_probabilities.exp().sum(0) / max(count, 1)
    shares = torch.lerp(shares, now.detach(), count / (count + REMEMBERED * classes))
    # A class that nobody has predicted for long has no share left, and no logarithm.
    return (now * (classes * shares.clamp(min=torch.finfo(shares.dtype).tiny)).log()).sum(), shares


def global_alignment(graph: Tensor, domains: int, *, seen: Tensor | None = None) -> Tensor:
    r"""How far the relations between classes differ from one pair of domains to another: eq. 13.

    .. math:: L_{global} = \frac{1}{(M+1)^4} \sum_{i,j,m,n} \lVert \tilde A_{ij} - \tilde A_{mn} \rVert_F

    All :math:`(M+1)^4` ordered pairs of blocks count, a block and itself included. Where two blocks coincide the norm
    has no derivative and zero is taken, the smallest subgradient. The loss can be differentiated once.

    Small cases subtract block from block. With many domains that is :math:`(M+1)^4 K^2` differences, and squared
    distances come from products in float64, after subtracting the mean block: blocks become nearly equal when training
    succeeds, and only what tells them apart may be squared. Blocks two million times closer to each other than to the
    mean block then count as equal.

    With ``seen``, an entry (k, l) of a pair of blocks counts only if the four prototypes it compares are all seen.

    Shapes: graph (DK, DK) ordered by domain, then class; seen (D, K) bool -> 0-dim.

    >>> round(float(global_alignment(torch.eye(4), 2)), 4)
    0.7071
    """
    (graph,) = wide(graph)
    classes = len(graph) // domains
    if seen is None:
        seen = torch.ones(domains, classes, dtype=torch.bool, device=graph.device)
    if domains**4 * classes**2 <= DIRECT:
        return _direct_mean_norm(graph, seen)
    loss: Tensor = _MeanNorm.apply(graph, seen.double())
    return loss


def local_alignment(distances: Tensor, members: Tensor) -> Tensor:
    r"""How far samples lie from the prototype of their own domain and class: eq. 14.

    .. math:: L_{local} = \frac{1}{|B|} \sum_{i \in B} \sum_u Y_{iu} \lVert f(x_i) - c_u \rVert_2^2

    A target sample without a trusted pseudo-label has no membership :math:`Y`, and counts in :math:`|B|` all the same.

    Shapes: squared distances (B, n), members (B, n) as from `one_hot`, times weights -> 0-dim.
    """
    distances, members = wide(distances, members)
    return (members * distances).sum() / max(len(distances), 1)


def _direct_mean_norm(graph: Tensor, seen: Tensor) -> Tensor:
    """Mean Frobenius norm over all ordered pairs of blocks, from their differences.

    Shapes: graph (DK, DK), seen (D, K) bool -> 0-dim.
    """
    domains, classes = seen.shape
    rows = graph.view(domains, classes, domains, classes).transpose(1, 2).reshape(domains**2, classes**2)
    known = seen.to(graph.dtype)
    mask = (known[:, None, :, None] * known[None, :, None, :]).reshape(domains**2, classes**2)
    difference = (rows[:, None] - rows) * (mask[:, None] * mask)
    norms: Tensor = torch.linalg.vector_norm(difference, dim=2)
    return norms.mean()


def _centred_blocks(graph: Tensor, seen: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Slices of all blocks in float64, less the mean block; zero where not seen.

    An entry's mean is over the blocks in which it is seen. It cancels in every difference, so it need not be exact.

    Shapes: graph (DK, DK), seen (D, K) float64 -> which rows of the blocks, their values and their mask (D^2, k, K).
    """
    domains, classes = seen.shape
    blocks = graph.view(domains, classes, domains, classes).transpose(1, 2)
    times = seen.sum(0).clamp(min=1)
    ones = seen.new_ones(domains**2)  # a product with ones is several times faster than `sum` over the first dimension
    step = max(1, (CPU_SLICE if graph.is_cpu else GPU_SLICE) // (domains**2 * classes))
    for start in range(0, classes, step):
        some = slice(start, start + step)
        mask = seen[:, None, some, None] * seen[:, None]
        values = (blocks[:, :, some] * mask).flatten(0, 1)
        mask = mask.flatten(0, 1)
        values -= (ones @ values.flatten(1)).view_as(values[0]) / (times[some, None] * times)
        values *= mask
        yield some, values, mask


class _MeanNorm(torch.autograd.Function):
    r"""Mean Frobenius norm over all ordered pairs of blocks, from matrix products.

    With masks :math:`m` of zeros and ones, and blocks :math:`a, b` already masked by their own,

    .. math:: \lVert m_a m_b (a - b) \rVert^2 = a^2 \cdot m_b + m_a \cdot b^2 - 2 a \cdot b

    A mask is the outer product of two rows of ``seen``, so the first two terms and their part of the gradient take
    :math:`D^3 K^2` steps; only the last term's product takes :math:`D^4 K^2`, once for the value and once for the
    gradient. What is kept in between is the input and a weight for each pair of blocks.
    """

    @staticmethod
    def forward(ctx: Any, graph: Tensor, seen: Tensor) -> Tensor:
        count = len(seen) ** 2
        length, product = seen.new_zeros(count, count), seen.new_zeros(count, count)
        for some, values, _ in _centred_blocks(graph, seen):
            rows = values.flatten(1)
            product = torch.addmm(product, rows, rows.T)
            length = length + (seen[:, some] @ values.square() @ seen.T).flatten(1)
        length = length + length.T
        square = length - 2 * product
        # Asked this way round, a NaN stays one.
        square = torch.where(square <= ROUNDING * length, 0, square).fill_diagonal_(0)
        ctx.save_for_backward(graph, seen, torch.where(square == 0, 0, square.rsqrt()))
        mean = square.sqrt().sum() / count**2
        # PyTorch 2.11, compiling, loses the gradient of a function that ends in a conversion to the type it has.
        return mean if mean.dtype == graph.dtype else mean.to(graph.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        graph, seen, weight = ctx.saved_tensors
        domains, classes = seen.shape
        weight = weight * (2 / domains**4 * grad)
        slope = torch.empty_like(graph)
        blocks = slope.view(domains, classes, domains, classes).transpose(1, 2)
        for some, values, mask in _centred_blocks(graph, seen):
            # The sum over blocks b of weight m_a m_b (a - b), for each block a.
            own = seen[:, some].T @ weight.unflatten(1, (domains, domains)) @ seen
            others = (weight @ values.flatten(1)).view_as(values)
            blocks[:, :, some] = (own * values - others * mask).unflatten(0, (domains, domains))
        return slope, None
