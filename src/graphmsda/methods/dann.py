"""DANN: embeddings from which a discriminator cannot tell sources from the target."""

from __future__ import annotations

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.graphs.constraints import source_risk
from graphmsda.losses.adversarial import Discriminator, domain_risk, reverse_gradient, warm_up
from graphmsda.methods.base import LinearMethod, Phase, require


class DANN(LinearMethod):
    r"""DANN (RevGrad): Ganin et al., "Domain-Adversarial Training of Neural Networks" (JMLR 2016).

    .. math:: \min_{f, y} \max_{d} \; L_y(f, y) - \lambda L_d(f, d), \qquad
              \lambda = \lambda_{max} \Big( \frac{2}{1 + e^{-\gamma p}} - 1 \Big) \qquad (9)

    in one step for all, by a layer that turns the gradient of the discriminator's loss :math:`L_d` back on its way to
    the network (eqs. 16-18). The discriminator tells all sources from the target, every source counting alike; p is the
    share of the training that is done.

    Args:
        weight: What lambda grows to; the discriminator itself always learns in full.
        gamma: How fast lambda grows.
        hidden: Width of the discriminator's two hidden layers.
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        weight: float = 1.0,
        gamma: float = 10.0,
        hidden: int = 256,
    ) -> None:
        super().__init__(backbone, classes, domains)
        require(weight >= 0, "weight", weight, "a number not below 0")
        require(gamma > 0, "gamma", gamma, "a positive number")
        require(hidden >= 1, "hidden", hidden, "a whole number from 1")
        self.weight, self.gamma = weight, gamma
        self.discriminator = Discriminator(backbone.features, hidden=hidden)

    def losses(self, batch: Batch) -> Phase:
        """The source risk, and the discriminator's loss with its gradient reversed for the network."""
        embedded = self.embed_batch(batch)
        turn = self.weight * warm_up(batch.progress, self.gamma).to(embedded.target.dtype)
        *sources, target = (
            self.discriminator(reverse_gradient(x, turn))
            for x in (*(part.x for part in embedded.sources), embedded.target)
        )
        risk = source_risk([self.predict(part.x) for part in embedded.sources], [part.y for part in embedded.sources])
        return Phase({"source": risk, "domain": domain_risk(sources, target)})
