"""M3SDA: embeddings whose moments agree over all pairs of domains, and a classifier for each source."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.graphs.constraints import source_risk
from graphmsda.losses.moments import moment_distance
from graphmsda.methods.base import Embedded, Method, Phase, require
from graphmsda.methods.voting import SourceHeads, accuracy_elsewhere, own_predictions, vote

MEMORY = 0.01  # weight of a batch in the classifiers' accuracies


class M3SDA(Method):
    r"""M3SDA: Peng et al., "Moment Matching for Multi-Source Domain Adaptation" (ICCV 2019).

    .. math:: \min_{G, C} \frac1N \sum_{i=1}^{N} L_{D_i} + \lambda \min_G MD^2(D_S, D_T) \qquad (2)

    with the cross-entropy :math:`L_{D_i}` of each source's own classifier and the moment distance of eq. 1
    (`graphmsda.losses.moments`), in which each pair of domains counts once and each has its own mean (not so in the
    released code). Classifiers vote with weights :math:`w_i = acc_i / \sum_j acc_j`.

    The paper takes :math:`acc_i` from a model trained on source i alone and tested on the target, which takes labels of
    the target. Here it is how often classifier i is right about the *other* sources while training. All classifiers
    start alike (`graphmsda.methods.voting`).

    Args:
        weight: Weight of the moment distance, lambda.
        orders: How many moments are matched; the paper's eq. 1 has 2.
        centred: Take the moments from the second on about each domain's mean, which eq. 1 does not.
        votes: Weigh the classifiers by their accuracy on other sources (accuracy) or all alike (mean).
    """

    accuracy: Tensor

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        weight: float = 0.1,
        orders: int = 2,
        centred: bool = False,
        votes: Literal["accuracy", "mean"] = "accuracy",
    ) -> None:
        super().__init__(backbone, classes, domains)
        require(weight >= 0, "weight", weight, "a number not below 0")
        require(orders >= 1, "orders", orders, "a whole number from 1")
        self.weight, self.orders, self.centred, self.votes = weight, orders, centred, votes
        self.heads = SourceHeads(backbone.features, domains - 1, classes)
        self.register_buffer("accuracy", torch.zeros(domains - 1))

    def losses(self, batch: Batch) -> Phase:
        """Each source's risk by its own classifier, and the moment distance."""
        embedded = self.embed_batch(batch)
        risk, accuracy = self.risk(embedded)
        return Phase({"source": risk, "moments": self.moment_term(embedded)}, state={"accuracy": accuracy})

    def classify(self, embedding: Tensor) -> Tensor:
        """Log-probabilities of all classifiers, ``(B, d) -> (B, C, K)``, source by source."""
        log_probabilities: Tensor = self.heads(embedding)
        return log_probabilities

    def risk(self, embedded: Embedded) -> tuple[Tensor, Tensor]:
        """Return the mean risk of the classifiers on their own sources, and their accuracies after this batch."""
        x, _, _ = embedded.flat()
        labels = [part.y for part in embedded.sources]
        predictions = self.classify(x)
        risk = source_risk(own_predictions(predictions, [len(y) for y in labels]), labels)
        # All start at zero and are never compared with anything but each other, so the start needs no correction.
        return risk, torch.lerp(self.accuracy, accuracy_elsewhere(predictions, labels), MEMORY)

    def moment_term(self, embedded: Embedded) -> Tensor:
        """Return the weighted moment distance, eq. 1."""
        sources = [part.x for part in embedded.sources]
        return self.weight * moment_distance(sources, embedded.target, orders=self.orders, centred=self.centred)

    def vote_weights(self) -> Tensor:
        """Return the classifiers' shares of the vote, ``(M,)``."""
        # As long as none has been right about anything, all count alike.
        standing = self.accuracy + 1e-6 if self.votes == "accuracy" else torch.ones_like(self.accuracy)
        return standing / standing.sum()

    def predict(self, embedding: Tensor) -> Tensor:
        """The classifiers' weighted vote."""
        return vote(self.classify(embedding), self.vote_weights())
