r"""MRF-MSDA: Markov networks over prototypes and a query, as energies in log space (eqs. 16-22).

All networks of a query share the K cliques among prototypes of a class, of total energy S (already divided by the
temperature here). They differ in the query's one edge, and some negatives have one edge more.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmsda.errors import UserError
from graphmsda.graphs.draws import integers
from graphmsda.graphs.prototypes import graph_distances, squared_distances, wide

READINGS = ("verbatim", "mean-clique", "log", "logistic")


def energies(embedding: Tensor, prototypes: Tensor, *, temperature: Tensor | float) -> Tensor:
    r"""Energy of the edge between each query and each prototype: eq. 17.

    .. math:: E_{q,mk} = \frac{1}{\tau} \lVert z_q - c^m_k \rVert_2^2

    ``temperature`` is :math:`\tau` times `distance_scale`.

    Shapes: embedding (B, d), prototypes (D, K, d) -> (B, D, K).
    """
    distances = squared_distances(embedding, prototypes.flatten(0, 1))
    return distances.view(len(embedding), *prototypes.shape[:2]) / temperature


def clique_edges(
    prototypes: Tensor, *, temperature: Tensor | float, seen: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Total energy of the cliques that join the prototypes of a class across domains, and their number of edges.

    .. math:: \frac{S}{\tau} = \frac{1}{\tau} \sum_k \sum_{m < m'} \lVert c^m_k - c^{m'}_k \rVert_2^2
              = \frac{1}{\tau} \sum_k n_k \sum_m \lVert c^m_k - \bar c_k \rVert_2^2

    over the :math:`n_k` seen prototypes of class k. The right-hand form takes O(DKd); positions are relative to those
    of the first domain, so prototypes that coincide give exactly zero, in the gradient too.

    Shapes: prototypes (D, K, d), seen (D, K) bool -> two 0-dim tensors.

    >>> clique_edges(torch.tensor([[[0.0]], [[2.0]], [[4.0]]]), temperature=0.5)
    (tensor(48.), tensor(3.))
    """
    (points,) = wide(prototypes)
    points = points - points[:1].detach()
    weight = points.new_ones(points.shape[:2]) if seen is None else seen.to(points.dtype)
    count = weight.sum(0)
    mean = (weight[:, :, None] * points).sum(0) / count.clamp(min=1)[:, None]
    spread = (weight * (points - mean).square().sum(2)).sum(0)
    return (count * spread).sum() / temperature, (count * (count - 1)).sum() / 2


def log_joint(energies: Tensor, seen: Tensor | None = None) -> Tensor:
    r"""Log-probability of each pair of domain and class: eqs. 18 and 19.

    .. math:: \log p(y_d = m, y = k \mid q) = - E_{q,mk} - \log \sum_{m',k'} e^{- E_{q,m'k'}}

    Every network holds the same cliques and has the same partition function, so both cancel. Prototypes not seen have
    log-probability -inf; before any is seen, all take part.

    Shapes: energies (B, D, K), seen (D, K) bool -> (B, D, K).
    """
    scores = -energies
    if seen is not None:
        scores = scores.masked_fill(~(seen | ~seen.any()), -math.inf)
    return scores.flatten(1).log_softmax(1).view_as(energies)


def label_posterior(log_joint: Tensor) -> Tensor:
    r"""Log-probability of each class, whatever the domain: eq. 20.

    .. math:: \log p(y = k \mid q) = \log \sum_m p(y_d = m, y = k \mid q)

    A class masked in all domains stays at -inf and passes a zero gradient.

    Shapes: (B, D, K) -> (B, K).
    """
    return _marginal(log_joint, 1)


def domain_posterior(log_joint: Tensor) -> Tensor:
    r"""Log-probability of each domain, whatever the class: which domain a sample looks like.

    .. math:: \log p(y_d = m \mid q) = \log \sum_k p(y_d = m, y = k \mid q)

    Shapes: (B, D, K) -> (B, D).
    """
    return _marginal(log_joint, 2)


def _marginal(log_joint: Tensor, dim: int) -> Tensor:
    masked = (log_joint == -math.inf).all(dim, keepdim=True)
    # logsumexp over nothing but -inf has a NaN gradient, so those sums are taken over zeros and put back after.
    return log_joint.masked_fill(masked, 0).logsumexp(dim).masked_fill(masked.squeeze(dim), -math.inf)


def sample_wrong_edges(queries: int, count: int, *, domains: int, classes: int, seed: Tensor) -> Tensor:
    r"""Pairs of prototypes that should not be joined, for the second kind of negative network (Sec. 5.1).

    Uniform over all unordered pairs of prototypes of distinct categories, in any domains: the first is any prototype,
    the second any of another class.

    Shapes: seed int64 0-dim -> (queries, count, 2) int64, indices :math:`u = mK + k` into prototypes flattened to
    (DK, d).

    >>> sample_wrong_edges(2, 3, domains=2, classes=5, seed=torch.tensor(0)).shape
    torch.Size([2, 3, 2])
    """
    others = domains * (classes - 1)
    draw = integers(domains * classes * others, (queries, count), seed)
    first, rest = draw // others, draw % others
    domain, step = rest // (classes - 1), rest % (classes - 1) + 1
    return torch.stack((first, domain * classes + (first % classes + step) % classes), dim=2)


def network_energies(
    embedding: Tensor, prototypes: Tensor, edges: Tensor, *, temperature: Tensor | float
) -> tuple[Tensor, Tensor]:
    r"""`energies` of queries, and the energies of given edges between prototypes: eq. 17.

    .. math:: E_{uv} = \frac{1}{\tau} \lVert c_u - c_v \rVert_2^2

    For the second, whatever takes less memory is used: the differences along the edges, or the table of all distances
    to look them up, which comes from one product with the first.

    Shapes: embedding (B, d), prototypes (D, K, d), edges (Q, N, 2) int64 -> (B, D, K) and (Q, N).
    """
    embedding, points = wide(embedding, prototypes.flatten(0, 1))
    count, size = points.shape
    first, second = edges.unbind(2)
    if count * (count + 2 * size) < 3 * first.numel() * size:
        distances, table = graph_distances(embedding, points)
        wrong = table.flatten()[first * count + second]
    else:
        distances = squared_distances(embedding, points)
        wrong = (points[first] - points[second]).square().sum(2)
    return distances.view(len(embedding), *prototypes.shape[:2]) / temperature, wrong / temperature


def likelihood(
    energies: Tensor,
    domain: Tensor,
    label: Tensor,
    weight: Tensor,
    *,
    clique: Tensor,
    wrong: Tensor,
    reading: str,
) -> Tensor:
    r"""Contrast of each query's positive network with its negatives: eq. 22.

    The positive network joins the query to the prototype of its domain m and class y. The first K - 1 negatives join it
    to another class of the same domain; the other :math:`N_2` keep the positive edge and add a wrong one. With the
    clique energy :math:`S`, the networks' energies are

    .. math:: f^+ = S + E_{my}, \quad f^-_k = S + E_{mk} \ (k \neq y), \quad f^-_j = S + E_{my} + W_j

    and, with :math:`N = N_2 + K - 1` negatives, the loss is the mean over the batch of :math:`w_q` times

    - ``"verbatim"``: :math:`- e^{-f^+} + \frac{1}{N} \sum_n e^{-f^-_n}`, as printed. It vanishes, and its gradient too,
      wherever S is large.
    - ``"mean-clique"``: the same, where the caller passes S as a mean over edges.
    - ``"log"``: :math:`- \log \frac{e^{-f^+}}{e^{-f^+} + \sum_n e^{-f^-_n}}` (InfoNCE). S cancels: aligning prototypes
      across domains is then left to a term of its own.
    - ``"logistic"``: :math:`- \log h(f^+) - \sum_n \log (1 - h(f^-_n))` with
      :math:`h(f) = \frac{e^{-f}}{e^{-f} + N p_0}` and noise uniform over the networks, :math:`p_0 = \frac{1}{N+1}`.

    Samples of weight 0 add nothing and count in the batch size.

    Shapes: energies (B, D, K), domain and label (B,) int64, weight (B,), clique 0-dim, wrong (B, N2) -> 0-dim.
    """
    if reading not in READINGS:
        raise UserError(f"likelihood reading is {reading!r}; choose one of {', '.join(READINGS)}")
    batch, _, classes = energies.shape
    own = energies.gather(1, domain.view(-1, 1, 1).expand(-1, 1, classes)).squeeze(1)
    positive = own.gather(1, label[:, None])
    networks = torch.cat((own, positive + wrong), dim=1)
    index = torch.arange(networks.shape[1], device=label.device)
    is_negative = index != label[:, None]
    negatives = networks.shape[1] - 1
    if reading == "log":
        loss = torch.logsumexp(-networks, 1) + positive.squeeze(1)
    elif reading == "logistic":
        odds = -(networks + clique) - math.log(negatives / (negatives + 1))
        loss = -F.logsigmoid(torch.where(is_negative, -odds, odds)).sum(1)
    else:
        likelihoods = torch.exp(-(networks + clique))
        loss = torch.where(is_negative, likelihoods / negatives, -likelihoods).sum(1)
    return (weight * loss).sum() / max(batch, 1)
