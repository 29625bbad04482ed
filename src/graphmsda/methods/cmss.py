"""CMSS: a curriculum manager weights the source samples by how hard they are to tell from the target."""

from __future__ import annotations

import torch
from torch import Tensor

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.graphs.constraints import source_risk
from graphmsda.losses.adversarial import Discriminator, reverse_gradient, warm_up
from graphmsda.losses.curriculum import curriculum_weights, weighted_domain_risk
from graphmsda.methods.base import LinearHead, Method, Phase, require


class CMSS(Method):
    r"""CMSS: Yang et al., "Curriculum Manager for Source Selection in Multi-Source Domain Adaptation" (ECCV 2020).

    .. math:: \min_{f, C} L_{cls} - \lambda L_{wdom}, \quad \min_D L_{wdom}, \quad \max_G L_{wdom}

    The manager G weights the source samples in the risk of a discriminator D of source and target, and learns to raise
    that risk: weight goes to the samples that look most like the target, and the network aligns those. No step uses
    to which source a sample belongs.

    The three players move in one step, by gradients that turn back on their way to the network and to the manager.
    Departures: the paper's manager is an independent network that reads images; here it reads the embedding, to which
    it sends no gradient. Its scores are bounded: for a given discriminator the best weights are all on one sample, and
    without a bound that is where they go. The classification risk counts every source alike.

    Args:
        weight: Weight of the adversary, lambda, once it has warmed up.
        contrast: Bound of the manager's scores: no sample weighs more than exp(2 contrast) times another; 0 makes all
            weights one.
        gamma: How fast the adversary warms up: its weight is (2 / (1 + exp(-gamma progress)) - 1) of the full one.
        hidden: Width of the hidden layers of discriminator and manager.
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        weight: float = 1.0,
        contrast: float = 1.0,
        gamma: float = 10.0,
        hidden: int = 256,
    ) -> None:
        super().__init__(backbone, classes, domains)
        require(weight >= 0, "weight", weight, "a number not below 0")
        require(contrast >= 0, "contrast", contrast, "a number not below 0")
        require(gamma > 0, "gamma", gamma, "a positive number")
        require(hidden >= 1, "hidden", hidden, "a whole number from 1")
        self.weight, self.contrast, self.gamma = weight, contrast, gamma
        self.head = LinearHead(backbone.features, classes)
        self.discriminator = Discriminator(backbone.features, hidden=hidden)
        self.manager = Discriminator(backbone.features, hidden=hidden)

    def losses(self, batch: Batch) -> Phase:
        """The source risk, and the weighted domain risk that the network and the manager raise."""
        embedded = self.embed_batch(batch)
        x, _, _ = embedded.flat()
        labels = [part.y for part in embedded.sources]
        sizes = [len(y) for y in labels]

        weights = self.weights(x)
        turned = reverse_gradient(torch.cat([x, embedded.target]), self.weight * warm_up(batch.progress, self.gamma))
        source_logits, target_logits = torch.split(self.discriminator(turned), [len(x), len(embedded.target)])
        terms = {
            "source": source_risk(torch.split(self.predict(x), sizes), labels),
            "domain": weighted_domain_risk(source_logits, target_logits, reverse_gradient(weights)),
        }
        # How many samples the weights come to: all of them if even, one if a single sample has all the weight.
        share = weights.detach().sum().square() / weights.detach().square().sum() / max(1, len(weights))
        return Phase(terms, shown={"samples used": share})

    def weights(self, embedding: Tensor) -> Tensor:
        """Return the manager's weights of source samples, one on average: ``(N, d) -> (N,)``."""
        scores = self.manager(embedding.detach()).squeeze(1)
        return curriculum_weights(self.contrast * torch.tanh(scores - scores.mean()))

    def predict(self, embedding: Tensor) -> Tensor:
        """Log-probabilities of the linear classifier."""
        log_probabilities: Tensor = self.head(embedding)
        return log_probabilities
