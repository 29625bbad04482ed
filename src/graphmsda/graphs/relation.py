"""CRF-MSDA: the relation graph over prototypes and a query, and message passing on it (eqs. 4-7).

Every query has a graph of its own, of the n = (M+1)K prototypes and itself. The functions here give its predictions
without building it, at a cost of O(B n h) beside what all queries share.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmsda.errors import UserError
from graphmsda.graphs.constraints import ELEMENTS
from graphmsda.graphs.prototypes import full_precision, squared_distances, wide

Normalise = Literal["none", "row", "symmetric"]
CACHED = 2**21  # numbers that a CPU's last cache holds, with room for others
NORMALISATIONS: tuple[Normalise, ...] = ("none", "row", "symmetric")


class Layers(NamedTuple):
    """Weights of the two graph convolutions and of the linear classifier; vectors multiply from the left."""

    w1: Tensor
    """(d, h)"""
    b1: Tensor
    """(h,)"""
    w2: Tensor
    """(h, h2)"""
    b2: Tensor
    """(h2,)"""
    w: Tensor
    """(h2, K)"""
    b: Tensor
    """(K,)"""


def adjacency(a: Tensor, b: Tensor, *, sigma: float, scale: Tensor | float) -> Tensor:
    r"""Edge weights between two sets of nodes: eq. 4.

    .. math:: A_{uv} = \exp \Big( - \frac{\lVert a_u - b_v \rVert_2^2}{2 \sigma^2 \, \text{scale}} \Big)

    ``scale`` is from `distance_scale` and is 1 as printed.

    Shapes: a (A, d), b (B, d) -> (A, B).

    >>> adjacency(torch.zeros(1, 2), torch.tensor([[0.0, 0.0], [3.0, 4.0]]), sigma=5.0, scale=1.0)
    tensor([[1.0000, 0.6065]])
    """
    return torch.exp(squared_distances(a, b) / scale * (-0.5 / sigma**2))


def prototype_graph(prototypes: Tensor, *, sigma: float, scale: Tensor | float, seen: Tensor | None = None) -> Tensor:
    r"""The prototypes' block of the adjacency matrix, with ones on its diagonal.

    A prototype never seen gets no edge, not even to itself; do the same to a query's edges with
    ``adjacency(z, c, ...) * seen``.

    Shapes: prototypes (n, d), seen (n,) bool -> (n, n).
    """
    graph = adjacency(prototypes, prototypes, sigma=sigma, scale=scale)
    return graph if seen is None else graph * (seen[:, None] & seen)


def query_logits(
    queries: Tensor,
    prototypes: Tensor,
    graph: Tensor,
    edges: Tensor,
    layers: Layers,
    *,
    normalise: Normalise,
    two_way: bool,
    dropout: float = 0.0,
    training: bool = False,
    chunk: int | None = None,
) -> Tensor:
    r"""Class scores of queries, each in the graph of itself and all prototypes: eqs. 5 and 6.

    With :math:`U = C W_1`, :math:`u_q = z_q W_1`, the query's edges :math:`s_q` and the prototypes' block :math:`A`,

    .. math::
        H_q &= \mathrm{relu}(A U + s_q u_q^\top + b_1), \quad h_q = \mathrm{relu}(s_q^\top U + u_q + b_1) \\
        \text{logits}_q &= \mathrm{relu}\big( (s_q^\top H_q + h_q) W_2 + b_2 \big) W + b

    are the rows that the query's class depends on in the full graph of n + 1 nodes, whose self-weights are 1. With
    ``two_way=False`` prototypes do not hear the query (no :math:`s_q u_q^\top`) and all queries share :math:`H`.

    Normalisation acts in both layers, biases are added after it. With :math:`r_v = \sum_w A_{vw}` and
    :math:`g_q = 1 + \sum_v s_{qv}`:

    - ``"none"``: as above.
    - ``"row"``: each row is divided by its sum, :math:`g_q` for the query and :math:`r_v + s_{qv}` for a prototype
      (:math:`r_v` if it does not hear the query).
    - ``"symmetric"``: an edge's weight is divided by the root of the product of both ends' degrees. A departure: a
      prototype's degree is :math:`r_v` without the query's share; with it the cost would be O(B n^2 h).

    Dropout acts on hidden activations after the first layer. Each prototype draws one mask a step that all queries
    share, each query one for its own node: for one query this is ordinary dropout, and no mask of B x n x h is needed.

    Shapes: queries (B, d), prototypes (n, d), graph (n, n), edges (B, n) -> (B, K). A masked prototype has zeros in its
    row and column of ``graph`` and in its column of ``edges``.

    Args:
        queries: Embeddings of the samples.
        prototypes: Embeddings of the prototypes.
        graph: Edge weights among prototypes, self-weights included (`prototype_graph`).
        edges: Edge weights from queries to prototypes.
        layers: Weights.
        normalise: One of `NORMALISATIONS`.
        two_way: Whether prototypes hear the query in the first layer.
        dropout: Probability of dropping a hidden activation.
        training: Whether dropout is on.
        chunk: Queries taken at a time in the two-way form, which bounds memory; by default as many as fit into
            128 MiB, or on a CPU into 8 MiB, which its cache holds. 0 takes all at once in plain operations, which an
            exporter can trace for any batch size.
    """
    queries, prototypes, graph, edges, *weights = wide(queries, prototypes, graph, edges, *layers)
    w1, b1, w2, b2, w, b = weights
    degree = _degree(graph)
    listen, own = _query_weights(edges, degree, normalise)
    with full_precision(queries.device):
        messages, message = prototypes @ w1, queries @ w1
        shared = _normalised(graph, degree, normalise) @ messages
        centre = F.dropout(F.relu(listen @ messages + own * message + b1), dropout, training)
        keep = F.dropout(torch.ones_like(shared), dropout, training) if training and dropout > 0 else None
        if two_way:
            share = degree / (degree + edges) if normalise == "row" else None
            heard = edges / (degree + edges) if normalise == "row" else listen
            size = max(1, _largest(shared) // shared.numel()) if chunk is None else chunk
            gathered = _gather(listen, share, heard, shared, message, b1, keep, size)
        else:
            hidden = F.relu(shared + b1)
            gathered = listen @ (hidden if keep is None else hidden * keep)
        return F.relu((gathered + own * centre) @ w2 + b2) @ w + b


def prototype_logits(
    prototypes: Tensor,
    graph: Tensor,
    layers: Layers,
    *,
    normalise: Normalise,
    dropout: float = 0.0,
    training: bool = False,
) -> Tensor:
    r"""Class scores of the prototypes, for eq. 7.

    .. math:: \text{logits} = \mathrm{relu}\big( A \, \mathrm{relu}(A C W_1 + b_1) W_2 + b_2 \big) W + b

    A departure: the graph is that of the prototypes alone. The paper's prototypes sit in as many graphs as there are
    queries, which would cost O(B n^2 h).

    Shapes: prototypes (n, d), graph (n, n) -> (n, K). Rows of masked prototypes are finite and mean nothing.
    """
    prototypes, graph, *weights = wide(prototypes, graph, *layers)
    w1, b1, w2, b2, w, b = weights
    weight = _normalised(graph, _degree(graph), normalise)
    with full_precision(prototypes.device):
        hidden = F.dropout(F.relu(weight @ (prototypes @ w1) + b1), dropout, training)
        return F.relu(weight @ (hidden @ w2) + b2) @ w + b


def _largest(like: Tensor) -> int:
    """Return how many numbers a temporary may hold."""
    return CACHED if like.device.type == "cpu" else ELEMENTS


def _degree(graph: Tensor) -> Tensor:
    degree = graph.sum(1)
    return torch.where(degree > 0, degree, 1)  # a masked prototype has no edge to share out


def _normalised(graph: Tensor, degree: Tensor, normalise: Normalise) -> Tensor:
    if normalise not in NORMALISATIONS:
        raise UserError(f"graph normalisation is {normalise!r}; choose one of {', '.join(NORMALISATIONS)}")
    if normalise == "none":
        return graph
    if normalise == "row":
        return graph / degree[:, None]
    root = degree.rsqrt()
    return graph * root[:, None] * root


def _query_weights(edges: Tensor, degree: Tensor, normalise: Normalise) -> tuple[Tensor, Tensor]:
    """What a query takes from each prototype (B, n) and from itself (B, 1)."""
    total = 1 + edges.sum(1, keepdim=True)
    if normalise == "none":
        return edges, torch.ones_like(total)
    if normalise == "row":
        return edges / total, 1 / total
    return edges * total.rsqrt() * degree.rsqrt(), 1 / total


def _gather(
    listen: Tensor,
    share: Tensor | None,
    heard: Tensor,
    shared: Tensor,
    message: Tensor,
    bias: Tensor,
    keep: Tensor | None,
    chunk: int,
) -> Tensor:
    r"""Sum over prototypes of what they say to each query after having heard it.

    .. math:: \text{out}_q = \sum_v l_{qv} \, k_v \odot \mathrm{relu}(a_{qv} P_v + t_{qv} u_q + b_1)

    Shapes: listen l, share a (None: all 1) and heard t (B, n), shared P and keep k (n, h), message u (B, h) -> (B, h).
    """
    if chunk > 0:
        gathered: Tensor = _Gather.apply(listen, share, heard, shared, message, bias, keep, chunk)
        return gathered
    hidden = F.relu(_before_relu(share, heard, shared, message, bias))
    return torch.bmm(listen[:, None], hidden if keep is None else hidden * keep).squeeze(1)


def _before_relu(share: Tensor | None, heard: Tensor, shared: Tensor, message: Tensor, bias: Tensor) -> Tensor:
    start = (shared if share is None else share[:, :, None] * shared) + bias
    return torch.addcmul(start, heard[:, :, None], message[:, None])


def _rows(tensor: Tensor | None, some: slice) -> Tensor | None:
    return None if tensor is None else tensor[some]


class _Gather(torch.autograd.Function):
    """`_gather` in chunks of queries: the B x n x h activations are made anew in the backward pass, never kept."""

    @staticmethod
    def forward(
        ctx: Any,
        listen: Tensor,
        share: Tensor | None,
        heard: Tensor,
        shared: Tensor,
        message: Tensor,
        bias: Tensor,
        keep: Tensor | None,
        chunk: int,
    ) -> Tensor:
        ctx.save_for_backward(listen, share, heard, shared, message, bias, keep)
        ctx.chunk = chunk
        parts = []
        for start in range(0, len(listen), chunk):
            some = slice(start, start + chunk)
            hidden = _before_relu(_rows(share, some), heard[some], shared, message[some], bias).relu_()
            if keep is not None:
                hidden *= keep
            parts.append(torch.bmm(listen[some, None], hidden).squeeze(1))
        return torch.cat(parts) if parts else torch.zeros_like(message)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        listen, share, heard, shared, message, bias, keep = ctx.saved_tensors
        share_grad = None if share is None else torch.zeros_like(share)
        listen_grad, heard_grad, shared_grad, message_grad, bias_grad = (
            torch.zeros_like(tensor) for tensor in (listen, heard, shared, message, bias)
        )
        # Passes over the q x v x h activations are what this costs: weights of q x v and q x h go into the products.
        for start in range(0, len(listen), ctx.chunk):
            some = slice(start, start + ctx.chunk)
            said, column = listen[some], grad[some]
            slope = _before_relu(_rows(share, some), heard[some], shared, message[some], bias).relu_()
            if keep is not None:
                slope *= keep
            listen_grad[some] = torch.bmm(slope, column[:, :, None]).squeeze(2)
            slope.sign_()
            if keep is not None:
                slope *= keep
            heard_grad[some] = said * torch.bmm(slope, (column * message[some])[:, :, None]).squeeze(2)
            message_grad[some] = column * torch.bmm((said * heard[some])[:, None], slope).squeeze(1)
            slope *= column[:, None]
            by_prototype = slope.transpose(0, 1)  # v x q x h
            if share_grad is not None:
                share_grad[some] = said * torch.bmm(by_prototype, shared[:, :, None]).squeeze(2).T
                bias_grad += torch.bmm(said.T[:, None], by_prototype).sum((0, 1))
                said = said * share[some]
            shared_grad += torch.bmm(said.T[:, None], by_prototype).squeeze(1)
        if share_grad is None:
            bias_grad = shared_grad.sum(0)
        return listen_grad, share_grad, heard_grad, shared_grad, message_grad, bias_grad, None, None
