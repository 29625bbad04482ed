"""CRF-MSDA: a relational graph over each query and all prototypes, message passing, global and local alignment."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.graphs import markov, relation
from graphmsda.graphs.constraints import global_alignment, local_alignment, prototype_risk, source_risk, target_entropy
from graphmsda.graphs.many_classes import bandwidth, entropy_share
from graphmsda.graphs.prototypes import class_means, distance_scale, moving_average, one_hot, squared_distances
from graphmsda.methods.base import BatchStatistics, Method, Phase, Predictor, ramped, require
from graphmsda.methods.guess import Rule, guess_target


class CRF(Method):
    r"""CRF-MSDA: Xu, Wang and Ni, "Graphical Modeling for Multi-Source Domain Adaptation" (TPAMI 2022), Sec. 3.

    .. math:: \min_{f,g,c} L_{cls} + \lambda_1 L_{global} + \lambda_2 L_{local} \qquad (15)

    A query and the prototypes of all classes of all domains form a graph, weighted by an RBF kernel (eq. 4); two graph
    convolutions and a linear classifier predict the label of each node. Prototypes are moving averages of class means
    (eqs. 1-3), the target's by pseudo-labels. docs/fidelity.md says where this departs from the printed paper.

    Args:
        sigma: Bandwidth of the kernel, in units of `scale`. Relative ones are for up to ten classes; for more the
            kernel is made narrower (`graphmsda.graphs.many_classes.bandwidth`).
        scale: Squared distances are divided by the mean squared distance between prototypes (relative), by the number
            of dimensions (mean, as in the authors' code) or by nothing (sum, as printed).
        normalise: Normalisation of the adjacency matrix inside the graph convolutions.
        two_way: Whether prototypes hear the query (the exact graph of Sec. 3) or only speak to it (cheaper).
        beta: Decay of the prototypes' moving average, eq. 3.
        lambda_1: Weight of the global alignment, eq. 13.
        lambda_2: Weight of the local alignment, eq. 14, in units of `scale`.
        prototype_weight: Weight of the prototypes' classification, eq. 7.
        entropy_weight: Weight of the target's entropy, eq. 9.
        entropy_per_class: Divide that entropy by the number of classes, as the authors' code does, but by ten at most.
        edge_weight: Weight of the same classification (eqs. 8 and 9) by the query's edges alone, which is not in the
            paper: as printed nothing but the local alignment asks that an edge lead to the right class. Where the
            backbone starts from trained weights, rehearsals were better without (docs/fidelity.md).
        learn_edges: Whether that classification is of edges to prototypes that are learned, as MRF-MSDA's are, or of
            the graph's own edges, to the moving averages.
        graph_teaches: Whether the graph's classification (eqs. 7 to 9) shapes the embedding, as printed, or only reads
            it, which is then shaped by the edges and the alignment. Without the edges' classification it always does.
        pseudo_labels: Keep a target prediction as a label by its entropy (below the threshold, nats), by its
            confidence (above the threshold) or by the cited rule (confidence above 1/(1+exp(-3A)), A the accuracy on
            the sources).
        threshold: Threshold of the rule.
        ramp: Share of the training over which the target's entropy and pseudo-labels come in, from 0 to full weight.
        hidden: Width of the first graph convolution's result, or the embedding's if that is smaller.
        dropout: Dropout after the first graph convolution.
        own_classifier: Whether a linear classifier follows the two graph convolutions, as printed, or the second of
            them is the classifier, as in the authors' code.
        batch_statistics: Whether each domain is normalised by its own (own); so in training, and read with the mean of
            all domains' (mean), as a batch norm has it that meets them in turn; or all of a batch by its (common).
    """

    pretrained: ClassVar = {"edge_weight": 0.0}
    # 1: the hidden layer was as wide as the embedding; 2: the bandwidth did not depend on classes; 3: the edges led to
    # the moving averages.
    version = 4
    presets: ClassVar = {
        "paper": {
            "sigma": 0.005,
            "scale": "sum",
            "normalise": "none",
            "beta": 0.7,
            "lambda_1": 20.0,
            "lambda_2": 0.001,
            "entropy_weight": 1.0,
            "entropy_per_class": False,
            "edge_weight": 0.0,
            "learn_edges": False,
            "graph_teaches": True,
            "pseudo_labels": "accuracy",
            "ramp": 0.0,
            "dropout": 0.0,
            "own_classifier": True,
        }
    }
    prototypes: Tensor
    seen: Tensor

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        sigma: float = 0.3,
        scale: Literal["relative", "mean", "sum"] = "relative",
        normalise: Literal["symmetric", "row", "none"] = "symmetric",
        two_way: bool = True,
        beta: float = 0.4,
        lambda_1: float = 0.3,
        lambda_2: float = 0.01,
        prototype_weight: float = 1.0,
        entropy_weight: float = 1.0,
        entropy_per_class: bool = True,
        edge_weight: float = 1.0,
        learn_edges: bool = True,
        graph_teaches: bool = False,
        pseudo_labels: Rule = "entropy",
        threshold: float = 0.5,
        ramp: float = 0.3,
        hidden: int = 512,
        dropout: float = 0.5,
        own_classifier: bool = True,
        batch_statistics: BatchStatistics = "own",
    ) -> None:
        super().__init__(backbone, classes, domains)
        self.batch_statistics = batch_statistics
        require(sigma > 0, "sigma", sigma, "a positive number")
        require(0 <= beta < 1, "beta", beta, "a number from 0 to below 1")
        require(0 <= dropout < 1, "dropout", dropout, "a number from 0 to below 1")
        require(threshold >= 0, "threshold", threshold, "a number not below 0")
        require(0 <= ramp <= 1, "ramp", ramp, "a number from 0 to 1")
        require(hidden >= 1, "hidden", hidden, "a whole number from 1")
        self.ramp = ramp
        weights = {
            "lambda_1": lambda_1,
            "lambda_2": lambda_2,
            "prototype_weight": prototype_weight,
            "entropy_weight": entropy_weight,
            "edge_weight": edge_weight,
        }
        for name, value in weights.items():
            require(value >= 0, name, value, "a number not below 0")
        self.sigma = bandwidth(sigma, classes) if scale == "relative" else sigma
        self.scale, self.normalise, self.two_way = scale, normalise, two_way
        self.beta = beta
        self.lambda_1, self.lambda_2, self.prototype_weight = lambda_1, lambda_2, prototype_weight
        self.entropy_weight = entropy_weight * (entropy_share(classes) if entropy_per_class else 1.0)
        self.edge_weight, self.graph_teaches = edge_weight, graph_teaches or edge_weight == 0
        self.pseudo_labels, self.threshold, self.dropout = pseudo_labels, threshold, dropout
        d = backbone.features
        self.convolution_1 = nn.Linear(d, min(d, hidden))
        self.convolution_2 = nn.Linear(min(d, hidden), d if own_classifier else classes)
        self.classifier = nn.Linear(d, classes) if own_classifier else None
        self.register_buffer("prototypes", torch.zeros(domains, classes, d))
        self.register_buffer("seen", torch.zeros(domains, classes, dtype=torch.bool))
        self.edge_prototypes = nn.Parameter(torch.zeros(domains, classes, d)) if learn_edges and edge_weight else None

    def losses(self, batch: Batch) -> Phase:
        """Eq. 15 and the edges: pseudo-labels by the old prototypes, then new prototypes, then the graphs.

        Unless the graph teaches, eqs. 7 to 9 of its predictions train its own layers alone.
        """
        embedded = self.embed_batch(batch)
        label, guessed = guess_target(self.predict, embedded, rule=self.pseudo_labels, threshold=self.threshold)
        guessed = guessed * self.seen.any()  # with no prototype yet, nothing is believed
        queries, labels, domains = embedded.flat(label)
        known = [part.y for part in embedded.sources]
        sizes = [*map(len, known), len(embedded.target)]
        ramp = ramped(batch.progress, self.ramp)
        weight = torch.cat([guessed.new_ones(sum(sizes[:-1])), ramp * guessed])
        members = one_hot(domains * self.classes + labels, self.domains * self.classes, weight, dtype=queries.dtype)
        prototypes, seen = self.new_prototypes(queries, members)
        self.meet(prototypes, seen)
        graph = self.connect(queries, prototypes, seen)
        read = (queries, graph) if self.graph_teaches else (queries.detach(), relation.detach(graph))
        predictions, prototype_logits = self.classify(*read, dropout=self.dropout)
        *source_predictions, target_predictions = torch.split(predictions, sizes)
        *source_edges, target_edges = torch.split(self.edge_predictions(queries, graph, seen), sizes)
        entropy = ramp * self.entropy_weight
        return Phase(
            {
                "source": source_risk(source_predictions, known),
                "entropy": entropy * target_entropy(target_predictions),
                "edges": self.edge_weight * (source_risk(source_edges, known) + entropy * target_entropy(target_edges)),
                "prototype": self.prototype_weight * self.prototype_risk(prototype_logits, seen),
                "global": self.lambda_1 * global_alignment(graph.among, self.domains, seen=seen),
                "local": self.lambda_2 * local_alignment(graph.distances, members),
            },
            shown={
                "pseudo-labelled": guessed.mean(),
                "adjacency": _off_diagonal_mean(graph.among, seen),
                "heard": graph.edges.detach().sum(1).mean(),  # what prototypes weigh to a query that weighs 1 itself
            },
            state={"prototypes": prototypes.detach(), "seen": seen},
        )

    def predict(self, embedding: Tensor) -> Tensor:
        """Log-probabilities of each query on its own graph with the stored prototypes (Sec. 3.3)."""
        graph = self.connect(embedding, self.prototypes, self.seen)
        return self.classify(embedding, graph, dropout=0.0)[0]

    def predictor(self) -> Predictor:
        """Return `predict` and `source_scores` in one, with what all queries share computed once."""
        nodes, seen = self.prototypes.flatten(0, 1), self.seen.flatten()
        scale = distance_scale(self.prototypes, self.seen, reading=self.scale)
        among = relation.prototype_graph(nodes, sigma=self.sigma, scale=scale, seen=seen)
        with self.backbone.mixed_precision():
            prepared = relation.prepare(nodes, among, self.layers(), normalise=self.normalise)

        def read(queries: Tensor) -> tuple[Tensor, Tensor]:
            edges = relation.adjacency(squared_distances(queries, nodes) / scale, sigma=self.sigma) * seen
            with self.backbone.mixed_precision():
                logits = relation.prepared_logits(queries, edges, prepared, two_way=self.two_way)
            return F.log_softmax(logits, dim=1), self.source_scores(queries)

        return read

    def new_prototypes(self, queries: Tensor, members: Tensor) -> tuple[Tensor, Tensor]:
        """Eqs. 1-3 for weighted members ``(B, DK)``; returns prototypes (with gradient) and which are seen."""
        means, mass = class_means(queries, members)
        means, mass = means.view_as(self.prototypes), mass.view_as(self.seen)
        return moving_average(self.prototypes.clone(), self.seen.clone(), means, mass, beta=self.beta)

    def connect(self, queries: Tensor, prototypes: Tensor, seen: Tensor) -> relation.Graph:
        """Eq. 4 with prototypes ``(D, K, d)``."""
        scale = distance_scale(prototypes, seen, reading=self.scale)
        return relation.connect(queries, prototypes.flatten(0, 1), seen.flatten(), sigma=self.sigma, scale=scale)

    def layers(self) -> relation.Layers:
        """Return the weights of the two graph convolutions and the classifier."""
        one, two, last = self.convolution_1, self.convolution_2, self.classifier
        weights = (one.weight.T, one.bias, two.weight.T, two.bias)
        return relation.Layers(*weights) if last is None else relation.Layers(*weights, last.weight.T, last.bias)

    def classify(self, queries: Tensor, graph: relation.Graph, *, dropout: float) -> tuple[Tensor, Tensor]:
        """Eqs. 5-6: log-probabilities of queries ``(B, K)``, each in its own graph, and logits of prototypes."""
        with self.backbone.mixed_precision():
            logits, prototype_logits = relation.node_logits(
                queries,
                graph,
                self.layers(),
                normalise=self.normalise,
                two_way=self.two_way,
                dropout=dropout,
                training=self.training,
            )
        return F.log_softmax(logits, dim=1), prototype_logits

    def edge_predictions(self, queries: Tensor, graph: relation.Graph, seen: Tensor) -> Tensor:
        r"""Log-probabilities of classes by a query's edges to prototypes of all domains, ``(B, K)``; not in the paper.

        .. math:: p(k \mid q) = \frac{\sum_m A_{q,mk}}{\sum_{m,k'} A_{q,mk'}}

        With the weights of eq. 4 that is what MRF-MSDA predicts at the temperature :math:`2 \sigma^2` (eq. 20). The
        prototypes are those of the graph or, as there, parameters.
        """
        if self.edge_prototypes is None:
            energies = graph.distances.view(-1, *seen.shape) * (0.5 / self.sigma**2)
        else:
            scale = distance_scale(self.edge_prototypes, seen, reading=self.scale)
            energies = markov.energies(queries, self.edge_prototypes, temperature=2 * self.sigma**2 * scale)
        return markov.label_posterior(markov.log_joint(energies, seen))

    @torch.no_grad()
    def meet(self, prototypes: Tensor, seen: Tensor) -> None:
        """Let the edges' prototypes whose first samples these are start where the graph's do."""
        if self.edge_prototypes is not None:
            first = (seen & ~self.seen)[..., None]
            self.edge_prototypes.copy_(torch.where(first, prototypes, self.edge_prototypes))

    def prototype_risk(self, logits: Tensor, seen: Tensor) -> Tensor:
        """Eq. 7."""
        classes = torch.arange(self.classes, device=logits.device).repeat(self.domains)
        return prototype_risk(logits, classes, seen.flatten())


def _off_diagonal_mean(graph: Tensor, seen: Tensor) -> Tensor:
    """Mean adjacency between distinct prototypes: 0 is a graph without messages, 1 one without structure."""
    n = seen.sum()
    return ((graph.sum() - graph.diagonal().sum()) / (n * (n - 1)).clamp(min=1)).detach()
