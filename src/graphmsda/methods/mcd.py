"""MCD: two classifiers that seek target samples to disagree on, and a network that leaves them none."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.graphs.constraints import source_risk
from graphmsda.losses.discrepancy import class_balance, discrepancy
from graphmsda.methods.base import Embedded, LinearHead, Method, Phase, require


class MCD(Method):
    r"""MCD: Saito et al., "Maximum Classifier Discrepancy for Unsupervised Domain Adaptation" (CVPR 2018).

    .. math::
        \text{A:} & \min_{G, F_1, F_2} L(X_s, Y_s) & (2) \\
        \text{B:} & \min_{F_1, F_2} L(X_s, Y_s) - L_{adv}(X_t) & (4) \\
        \text{C:} & \min_{G} L_{adv}(X_t), \; n \text{ times} & (6)

    with the cross-entropy L of both classifiers (eq. 3), every source counting alike, and the mean absolute difference
    of their probabilities :math:`L_{adv}` (eqs. 1 and 5). The mean of both probabilities predicts.

    Args:
        generator_steps: Steps of the network (C) for each batch, n.
        discrepancy_weight: Weight of the discrepancy that classifiers seek in B.
        balance_weight: Weight of the term in A and B that keeps target predictions spread over all classes; the
            released code has 0.01 for VisDA and none for digits.
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        generator_steps: int = 4,
        discrepancy_weight: float = 1.0,
        balance_weight: float = 0.0,
    ) -> None:
        super().__init__(backbone, classes, domains)
        require(generator_steps >= 1, "generator_steps", generator_steps, "a whole number from 1")
        require(discrepancy_weight >= 0, "discrepancy_weight", discrepancy_weight, "a number not below 0")
        require(balance_weight >= 0, "balance_weight", balance_weight, "a number not below 0")
        self.generator_steps = generator_steps
        self.discrepancy_weight, self.balance_weight = discrepancy_weight, balance_weight
        self.heads = nn.ModuleList(LinearHead(backbone.features, classes) for _ in range(2))

    def phases(self, batch: Batch) -> Iterator[Phase]:
        """Steps A, B and C, the last of them `generator_steps` times."""
        yield Phase(self.source_terms(self.embed_batch(batch, target=self.balance_weight > 0)))
        with torch.no_grad():  # B moves classifiers alone
            embedded = self.embed_batch(batch)
        terms = self.source_terms(embedded)
        terms["separation"] = -self.discrepancy_weight * self.disagreement(embedded.target)
        yield Phase(terms, updates=("heads",))
        for _ in range(self.generator_steps):
            # The same samples again: running statistics have taken note of them once.
            yield Phase(
                {"discrepancy": self.disagreement(self.embed_target(batch, noted=False))}, updates=("backbone",)
            )

    def source_terms(self, embedded: Embedded) -> dict[str, Tensor]:
        """Return eq. 3 of both classifiers together, and the balance of target predictions if that counts."""
        labels = [part.y for part in embedded.sources]
        risks = [source_risk([head(part.x) for part in embedded.sources], labels) for head in self.heads]
        terms = {"source": torch.stack(risks).sum()}
        if self.balance_weight > 0:
            balances = [class_balance(head(embedded.target)) for head in self.heads]
            terms["balance"] = self.balance_weight * torch.stack(balances).sum()
        return terms

    def disagreement(self, embedding: Tensor) -> Tensor:
        """Return eq. 5 of the two classifiers: ``(B, d) -> ()``."""
        one, two = (head(embedding) for head in self.heads)
        return discrepancy(one, two)

    def predict(self, embedding: Tensor) -> Tensor:
        """Logarithm of the mean of both classifiers' probabilities."""
        one, two = (head(embedding) for head in self.heads)
        return torch.logaddexp(one, two) - math.log(2)
