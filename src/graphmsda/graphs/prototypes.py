"""Prototypes: class means, their moving average, and distances between embeddings (eqs. 1-3)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from graphmsda.errors import UserError

READINGS = ("sum", "mean", "relative")


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which mixed precision is off for ``device``.

    It is the null context where nothing has to be switched off, which keeps exported programs free of the switch.
    TF32 has no such local switch: leave ``torch.backends.cuda.matmul.fp32_precision`` (or ``allow_tf32``) at its
    default, which is full float32. TF32 for convolutions is a setting of its own and does no harm here.
    """
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


def wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in one common floating-point type, float32 or wider."""
    dtype = torch.float32
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return tuple(tensor.to(dtype) for tensor in tensors)


def one_hot(labels: Tensor, classes: int, weight: Tensor | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    r"""Class membership of each sample, times the sample's weight.

    .. math:: Y_{ik} = w_i \, [y_i = k]

    A weight of zero takes a sample out of its class without changing a shape, which is how pseudo-labels that are not
    trusted are left out of eq. 2.

    Shapes: labels (B,) int64, weight (B,) -> (B, K).

    >>> one_hot(torch.tensor([1, 0]), 3, torch.tensor([1.0, 0.5]))
    tensor([[0.0000, 1.0000, 0.0000],
            [0.5000, 0.0000, 0.0000]])
    """
    membership = (labels[:, None] == torch.arange(classes, device=labels.device)).to(dtype)
    return membership if weight is None else membership * weight[:, None].to(dtype)


def class_means(embedding: Tensor, membership: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean embedding of each class in a batch: eq. 1 with labels, eq. 2 with pseudo-labels.

    .. math:: \hat c_k = \frac{\sum_i Y_{ik} f(x_i)}{\sum_i Y_{ik}}

    A class without mass has mean zero, mass zero, and passes no gradient.

    Shapes: embedding (B, d), membership (B, K) as from `one_hot` -> means (K, d), mass (K,).
    """
    embedding, membership = wide(embedding, membership)
    mass = membership.sum(0)
    with full_precision(embedding.device):
        total = membership.T @ embedding
    return total / torch.where(mass > 0, mass, 1)[:, None], mass


def moving_average(
    prototypes: Tensor, seen: Tensor, means: Tensor, mass: Tensor, *, beta: float
) -> tuple[Tensor, Tensor]:
    r"""Prototypes after a batch: eq. 3.

    .. math:: c_k \leftarrow \beta \, c_k + (1 - \beta) \, \hat c_k

    A prototype starts at the first class mean seen; from zero it would begin at :math:`1 - \beta` of its length. A
    class absent from the batch keeps its prototype. Old prototypes are constants and gradients flow through ``means``
    alone. The result therefore hangs on this step's autograd graph: use it in this step's losses, and store only its
    ``detach()``.

    Shapes: prototypes and means (..., K, d), seen (..., K) bool, mass (..., K) -> the new prototypes and seen.

    >>> old, seen = torch.zeros(2, 1), torch.tensor([False, True])
    >>> moving_average(old, seen, torch.ones(2, 1), torch.ones(2), beta=0.75)
    (tensor([[1.0000],
            [0.2500]]), tensor([True, True]))
    """
    old = prototypes.detach().to(means.dtype)
    present = mass > 0
    started = torch.where(seen[..., None], beta * old + (1 - beta) * means, means)
    return torch.where(present[..., None], started, old), seen | present


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    r"""Squared Euclidean distances between all rows of two matrices, by one matrix product.

    .. math:: \lVert a_i - b_j \rVert_2^2 = \lVert a_i' \rVert^2 + \lVert b_j' \rVert^2 - 2 \langle a_i', b_j' \rangle

    The primes mark rows taken relative to the mean of ``b``. That removes what all points share, so the error is that
    of the points' spread and not of their distance from the origin: about :math:`10^{-7} \lVert a_i' \rVert^2` in
    float32. The mean is of ``b`` alone so that a row of ``a`` (a query) never depends on other rows of ``a``. Where
    ``b is a`` the diagonal is exactly zero.

    Rounding below zero is cut off in the value only; the gradient is :math:`2 (a_i - b_j)` everywhere, zero where the
    points coincide. See `full_precision` about TF32.

    Shapes: a (A, d), b (B, d) -> (A, B).

    >>> squared_distances(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.0], [4.0, 6.0]]))
    tensor([[ 4., 25.]])
    """
    same = b is a
    a, b = wide(a, b)
    centre = b.detach().mean(0)
    distances = _distances(a - centre, b - centre)
    return _zero_diagonal(distances) if same else distances


def graph_distances(queries: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """`squared_distances` of queries to nodes, and of nodes to each other, by one matrix product for both.

    Shapes: queries (B, d), nodes (n, d) -> (B, n), (n, n).
    """
    queries, nodes = wide(queries, nodes)
    centre = nodes.detach().mean(0)
    nodes = nodes - centre
    distances = _distances(torch.cat((queries - centre, nodes)), nodes)
    return distances[: len(queries)], _zero_diagonal(distances[len(queries) :])


def _distances(a: Tensor, b: Tensor) -> Tensor:
    with full_precision(a.device):
        product = a @ b.T
    distances = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * product
    return distances + (distances.clamp(min=0) - distances).detach()


def _zero_diagonal(distances: Tensor) -> Tensor:
    return distances.masked_fill(torch.eye(len(distances), dtype=torch.bool, device=distances.device), 0)


def distance_scale(prototypes: Tensor, seen: Tensor, *, reading: str) -> Tensor:
    r"""What squared distances are divided by, next to :math:`2 \sigma^2` (eq. 4) or :math:`\tau` (eq. 17).

    - ``"sum"``: 1, the distance as printed.
    - ``"mean"``: :math:`d`, the distance per dimension, as in the authors' code.
    - ``"relative"``: the mean squared distance over distinct pairs of seen prototypes, a constant to autograd. The
      bandwidth is then one of the prototypes' own spread, whatever the backbone's units:

      .. math:: \bar d = \frac{1}{n (n-1)} \sum_{u \neq v} \lVert c_u - c_v \rVert^2
                = \frac{2}{n - 1} \sum_u \lVert c_u - \bar c \rVert^2

      It is 1 where fewer than two prototypes are seen or where they differ by no more than rounding.

    Shapes: prototypes (D, K, d), seen (D, K) bool -> 0-dim.

    >>> c = torch.tensor([[[0.0, 0.0], [3.0, 4.0]]])
    >>> [float(distance_scale(c, torch.ones(1, 2, dtype=torch.bool), reading=r)) for r in READINGS]
    [1.0, 2.0, 25.0]
    """
    if reading not in READINGS:
        raise UserError(f"distance reading is {reading!r}; choose one of {', '.join(READINGS)}")
    (points,) = wide(prototypes.detach().flatten(0, -2))
    if reading != "relative":
        return points.new_ones(()) if reading == "sum" else points.new_full((), points.shape[1])
    weight = seen.flatten().to(points.dtype)
    count = weight.sum()
    mean = (weight[:, None] * points).sum(0) / count.clamp(min=1)
    spread = 2 * (weight * (points - mean).square().sum(1)).sum() / (count - 1).clamp(min=1)
    limits = torch.finfo(points.dtype)
    noise = limits.tiny + limits.eps**2 * (weight * points.square().sum(1)).sum() / count.clamp(min=1)
    return torch.where((count > 1) & (spread > noise), spread, 1)
