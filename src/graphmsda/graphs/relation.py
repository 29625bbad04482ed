"""CRF-MSDA: the relation graph over prototypes and a query, and message passing on it (eqs. 4-7).

Every query has a graph of its own, of the n = (M+1)K prototypes and itself. The functions here give its predictions
without building it, at a cost of O(B n h) beside what all queries share.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from graphmsda.errors import UserError
from graphmsda.graphs.gather import gather
from graphmsda.graphs.prototypes import full_precision, graph_distances, squared_distances, wide

Normalise = Literal["none", "row", "symmetric"]
NORMALISATIONS: tuple[Normalise, ...] = ("none", "row", "symmetric")


class Layers(NamedTuple):
    """Weights of the two graph convolutions and of the linear classifier; vectors multiply from the left.

    Without a classifier of its own, the second convolution is it, and ends without activation: h2 is K.
    """

    w1: Tensor
    """(d, h)"""
    b1: Tensor
    """(h,)"""
    w2: Tensor
    """(h, h2)"""
    b2: Tensor
    """(h2,)"""
    w: Tensor | None = None
    """(h2, K)"""
    b: Tensor | None = None
    """(K,)"""


class Graph(NamedTuple):
    """The graphs of all queries of a batch, from `connect`: what they share, and each query's own edges."""

    prototypes: Tensor
    """(n, d)"""
    distances: Tensor
    """(B, n): squared ones from queries to prototypes, in units of ``scale``."""
    edges: Tensor
    """(B, n): from queries to prototypes."""
    among: Tensor
    """(n, n): among prototypes, self-weights included. A prototype not seen has zeros in its row and column."""


class Prepared(NamedTuple):
    """What all queries of the same prototypes share, from `prepare`."""

    layers: Layers
    normalise: Normalise
    degree: Tensor
    """(n,): sum of each prototype's edges to prototypes."""
    messages: Tensor
    """(n, h): what each prototype says in the first layer."""
    shared: Tensor
    """(n, h): what each prototype hears from the others, before bias and activation."""


def adjacency(distances: Tensor, *, sigma: float) -> Tensor:
    r"""Edge weights between nodes: eq. 4.

    .. math:: A_{uv} = \exp \Big( - \frac{\lVert a_u - b_v \rVert_2^2}{2 \sigma^2 \, \text{scale}} \Big)

    ``distances`` are squared ones, already divided by ``scale`` (`distance_scale`), which is 1 as printed. A prototype
    never seen gets no edge, not even to itself: multiply by ``seen``, and among prototypes by its outer product.

    Shapes: (A, B) -> (A, B).

    >>> adjacency(torch.tensor([0.0, 25.0]), sigma=5.0)
    tensor([1.0000, 0.6065])
    """
    return torch.exp(distances * (-0.5 / sigma**2))


def prototype_graph(prototypes: Tensor, *, sigma: float, scale: Tensor | float, seen: Tensor | None = None) -> Tensor:
    """The prototypes' block of the adjacency matrix, with ones on its diagonal.

    Shapes: prototypes (n, d), seen (n,) bool -> (n, n).
    """
    graph = adjacency(squared_distances(prototypes, prototypes) / scale, sigma=sigma)
    return graph if seen is None else graph * (seen[:, None] & seen)


def connect(queries: Tensor, prototypes: Tensor, seen: Tensor, *, sigma: float, scale: Tensor | float) -> Graph:
    """Connect each query with all prototypes and these with each other: eq. 4.

    Shapes: queries (B, d), prototypes (n, d), seen (n,) bool.
    """
    distances, among = (squared / scale for squared in graph_distances(queries, prototypes))
    edges = adjacency(distances, sigma=sigma) * seen
    return Graph(prototypes, distances, edges, adjacency(among, sigma=sigma) * (seen[:, None] & seen))


def detach(graph: Graph) -> Graph:
    """Return the same graph as a constant, through which no gradient passes."""
    return Graph(*(part.detach() for part in graph))


def node_logits(
    queries: Tensor,
    graph: Graph,
    layers: Layers,
    *,
    normalise: Normalise,
    two_way: bool,
    dropout: float = 0.0,
    training: bool = False,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Class scores of queries, each in the graph of itself and all prototypes, and of the prototypes: eqs. 5 to 7.

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

    The prototypes' own scores are

    .. math:: \mathrm{relu}\big( A \, \mathrm{relu}(A U + b_1) W_2 + b_2 \big) W + b.

    A departure: their graph is that of the prototypes alone. The paper's prototypes sit in as many graphs as there are
    queries, which would cost O(B n^2 h).

    Dropout acts on hidden activations after the first layer. Each prototype draws one mask a step that all queries
    and its own scores share, each query one for its own node: for one query this is ordinary dropout, and no mask of
    B x n x h is needed.

    Queries and prototypes pass each product together: with few prototypes, a product costs little more than its start.

    Shapes: queries (B, d) -> (B, K) and (n, K). Scores of a prototype not seen are finite and mean nothing.

    Args:
        queries: Embeddings of the samples.
        graph: Their graphs, from `connect`.
        layers: Weights.
        normalise: One of `NORMALISATIONS`.
        two_way: Whether prototypes hear the query in the first layer.
        dropout: Probability of dropping a hidden activation.
        training: Whether dropout is on.
        chunk: Queries taken at a time in the two-way form, which bounds memory; by default what is fastest. 0 takes all
            at once in plain operations, which an exporter can trace for any batch size. See
            `graphmsda.graphs.gather.gather`.
    """
    queries, prototypes, edges, among, *weights = wide(
        queries, graph.prototypes, graph.edges, graph.among, *given(layers)
    )
    layers = Layers(*weights)
    w1, b1, w2, b2, w, b = layers
    count, degree = len(queries), _degree(among)
    listen, own = _query_weights(edges, degree, normalise)
    among = _normalised(among, degree, normalise)
    messages = _linear(torch.cat((queries, prototypes)), w1)
    message, said = messages[:count], messages[count:]
    with full_precision(queries.device):
        heard = torch.cat((listen, among)) @ said
        prepared = Prepared(layers, normalise, degree, said, heard[count:])
        keep = F.dropout(torch.ones_like(said), dropout, training) if training and dropout > 0 else None
        centre = F.dropout(F.relu(heard[:count] + own * message + b1), dropout, training)
        gathered = _gathered(listen, edges, message, prepared, two_way=two_way, keep=keep, chunk=chunk)
        summed = torch.cat((gathered + own * centre, among @ _hidden(prepared, keep)))
    second = _linear(summed, w2)
    with full_precision(queries.device):
        scores = class_scores(second + b2, w, b)
    return scores[:count], scores[count:]


def prepare(prototypes: Tensor, graph: Tensor, layers: Layers, *, normalise: Normalise) -> Prepared:
    """Compute what all queries of `prepared_logits` share; with fixed prototypes, once is enough.

    Shapes: prototypes (n, d), graph (n, n).
    """
    prototypes, graph, *weights = wide(prototypes, graph, *given(layers))
    layers = Layers(*weights)
    degree = _degree(graph)
    messages = _linear(prototypes, layers.w1)
    with full_precision(prototypes.device):
        return Prepared(layers, normalise, degree, messages, _normalised(graph, degree, normalise) @ messages)


def prepared_logits(
    queries: Tensor, edges: Tensor, prepared: Prepared, *, two_way: bool, chunk: int | None = None
) -> Tensor:
    """The queries' scores of `node_logits` without dropout, from what `prepare` returned and in its type.

    Shapes: queries (B, d), edges (B, n) -> (B, K).
    """
    w1, b1, w2, b2, w, b = prepared.layers
    queries, edges = queries.to(w1.dtype), edges.to(w1.dtype)
    listen, own = _query_weights(edges, prepared.degree, prepared.normalise)
    message = _linear(queries, w1)
    with full_precision(queries.device):
        centre = F.relu(listen @ prepared.messages + own * message + b1)
        gathered = _gathered(listen, edges, message, prepared, two_way=two_way, keep=None, chunk=chunk)
    second = _linear(gathered + own * centre, w2)
    with full_precision(queries.device):
        return class_scores(second + b2, w, b)


def class_scores(second: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
    """What the second convolution gave, activated and classified, or as it is: ``(B, h2) -> (B, K)``."""
    return second if w is None or b is None else F.relu(second) @ w + b


def given(layers: Layers) -> list[Tensor]:
    """Return the weights that are there."""
    return [weight for weight in layers if weight is not None]


def _linear(x: Tensor, weight: Tensor) -> Tensor:
    """Apply a layer's weights: the one product here that mixed precision, where it is on, may take in fewer bits."""
    return (x @ weight).to(x.dtype)


def _hidden(prepared: Prepared, keep: Tensor | None) -> Tensor:
    """The prototypes' activations after the first layer, where they do not hear the query: (n, h)."""
    hidden = F.relu(prepared.shared + prepared.layers.b1)
    return hidden if keep is None else hidden * keep


def _gathered(
    listen: Tensor,
    edges: Tensor,
    message: Tensor,
    prepared: Prepared,
    *,
    two_way: bool,
    keep: Tensor | None,
    chunk: int | None,
) -> Tensor:
    """What each query takes from the prototypes in the second layer: (B, h)."""
    if not two_way:
        return listen @ _hidden(prepared, keep)
    share = heard = None
    if prepared.normalise == "row":
        total = prepared.degree + edges
        share, heard = prepared.degree / total, edges / total
    return gather(listen, share, heard, prepared.shared, message, prepared.layers.b1, keep, chunk)


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
