"""M3SDA-beta: M3SDA with a pair of classifiers for each source, which seek target samples to disagree on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.graphs.constraints import source_risk
from graphmsda.losses.discrepancy import discrepancy
from graphmsda.methods.base import Embedded, Method, Phase, require
from graphmsda.methods.m3sda import M3SDA, MEMORY
from graphmsda.methods.voting import SourceHeads, accuracy_elsewhere, own_predictions


class M3SDABeta(M3SDA):
    r"""M3SDA-beta: Peng et al. (ICCV 2019), Sec. 4: a pair of classifiers for each source, trained as in MCD.

    .. math::
        & \min_{G, C'} \frac1N \sum_i L_{D_i} + \lambda \, MD^2(D_S, D_T) & (2) \\
        & \min_{C'} \frac1N \sum_i L_{D_i} - \frac1N \sum_i \lvert P_{C_i}(D_T) - P_{C_i'}(D_T) \rvert & (3) \\
        & \min_{G} \frac1N \sum_i \lvert P_{C_i}(D_T) - P_{C_i'}(D_T) \rvert, \; n \text{ times} & (4)

    The first step aligns moments, the others the classes. A pair's two classifiers have half of its vote each.

    Args:
        weight: Weight of the moment distance, lambda.
        orders: How many moments are matched; the paper's eq. 1 has 2.
        centred: Take the moments from the second on about each domain's mean, which eq. 1 does not.
        votes: Weigh the pairs by their accuracy on other sources (accuracy) or all alike (mean).
        generator_steps: Steps of the network (the third kind) for each batch, n; 4 in the released code.
    """

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
        generator_steps: int = 4,
    ) -> None:
        super().__init__(backbone, classes, domains, weight=weight, orders=orders, centred=centred, votes=votes)
        require(generator_steps >= 1, "generator_steps", generator_steps, "a whole number from 1")
        self.generator_steps = generator_steps
        self.twins = SourceHeads(backbone.features, domains - 1, classes)

    losses = Method.losses  # none: several steps are not compiled as one

    def phases(self, batch: Batch) -> Iterator[Phase]:
        """Eqs. 2, 3 and, several times, 4."""
        embedded = self.embed_batch(batch)
        risk, accuracy = self.risk(embedded)
        yield Phase({"source": risk, "moments": self.moment_term(embedded)})
        self.accuracy.copy_(accuracy)
        with torch.no_grad():  # this step moves classifiers alone
            embedded = self.embed_batch(batch)
        terms = {"source": self.risk(embedded)[0], "separation": -self.disagreement(embedded.target)}
        yield Phase(terms, updates=("heads", "twins"))
        for _ in range(self.generator_steps):
            # The same samples again: running statistics have taken note of them already.
            target = self.embed_target(batch, noted=False)
            yield Phase({"discrepancy": self.disagreement(target)}, updates=("backbone",))

    def risk(self, embedded: Embedded) -> tuple[Tensor, Tensor]:
        """Return the mean risk of each pair, the sum of its two classifiers', and the pairs' accuracies."""
        x, _, _ = embedded.flat()
        labels = [part.y for part in embedded.sources]
        sizes = [len(y) for y in labels]
        one, two = self.heads(x), self.twins(x)
        risk = source_risk(own_predictions(one, sizes), labels) + source_risk(own_predictions(two, sizes), labels)
        now = accuracy_elsewhere(torch.logaddexp(one, two), labels)
        return risk, torch.lerp(self.accuracy, now, MEMORY)

    def disagreement(self, embedding: Tensor) -> Tensor:
        """Return the mean absolute difference of a pair's probabilities, over samples, pairs and classes."""
        return discrepancy(self.heads(embedding), self.twins(embedding))

    def classify(self, embedding: Tensor) -> Tensor:
        """Log-probabilities of each pair: of the mean of its two classifiers, ``(B, d) -> (B, M, K)``."""
        return torch.logaddexp(self.heads(embedding), self.twins(embedding)) - math.log(2)
