"""MDAN: a discriminator for each source, and the worst source's bound on the target's error made small."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.losses.adversarial import Discriminator, reverse_gradient
from graphmsda.losses.multiway import separation_risk, worst_case
from graphmsda.methods.base import Embedded, LinearMethod, Phase, require


class MDAN(LinearMethod):
    r"""MDAN: Zhao et al., "Adversarial Multiple Source Domain Adaptation" (NeurIPS 2018), Sec. 4.

    .. math:: \min_{f, h} \max_i v_i \quad \text{(hard)} \qquad \text{or} \qquad
              \min_{f, h} \tfrac{1}{\gamma} \log \sum_i e^{\gamma v_i} \quad \text{(soft)}, \qquad
              v_i = \hat\epsilon_{S_i}(h) - \mu \min_{h_i} \hat\epsilon_{T, S_i}(h_i)

    The bound on the target's error is the classification risk on a source plus its divergence from the target, which
    is large where a discriminator :math:`h_i` can tell them apart, that is where its own risk is small. The network and
    the classifier reduce the worst source's bound, or a smooth maximum of all; every discriminator reduces its own
    risk. The gradient is exact: the released code has the opposite sign before the discriminators' risks where it
    weighs the sources, takes the two maxima of the hard form apart, and leaves the discriminators of other sources
    untrained.

    Args:
        form: Reduce a smooth maximum over sources (soft) or the maximum itself (hard).
        mu: Weight of the divergence of source and target; the bound has 1, the released code 0.01.
        gamma: Sharpness of the smooth maximum.
        hidden: Units in each of a discriminator's two hidden layers.
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        form: Literal["soft", "hard"] = "soft",
        mu: float = 1.0,
        gamma: float = 10.0,
        hidden: int = 256,
    ) -> None:
        super().__init__(backbone, classes, domains)
        require(mu >= 0, "mu", mu, "a number not below 0")
        require(gamma > 0, "gamma", gamma, "a positive number")
        require(hidden >= 1, "hidden", hidden, "a whole number from 1")
        self.form, self.mu, self.gamma = form, mu, gamma
        self.discriminators = nn.ModuleList(Discriminator(backbone.features, 1, hidden) for _ in range(domains - 1))

    def losses(self, batch: Batch) -> Phase:
        """The sources' risks as the worst case weighs them, and the discriminators' risks."""
        embedded = self.embed_batch(batch)
        risks = torch.stack([self.class_risk(part.x, part.y) for part in embedded.sources])
        with torch.no_grad():
            separations = self.separations(embedded)
        weights = worst_case(risks - self.mu * separations, self.gamma if self.form == "soft" else None)
        # Discriminators follow their own gradients; the network goes against them as far as a source counts.
        opposed = self.separations(embedded, self.mu * weights)
        return Phase({"source": (weights * risks).sum(), "domain": opposed.sum()}, shown={"worst": weights.max()})

    def class_risk(self, embedding: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of the classifier on a source's samples."""
        return -self.predict(embedding).gather(1, labels[:, None]).sum() / max(1, len(labels))

    def separations(self, embedded: Embedded, opposed: Tensor | None = None) -> Tensor:
        """Return each discriminator's risk, ``(M,)``.

        Args:
            embedded: The batch.
            opposed: How strongly the network works against each, ``(M,)``; None for along with them.
        """
        found = []
        for m, (part, discriminator) in enumerate(zip(embedded.sources, self.discriminators, strict=True)):
            pair = torch.cat([part.x, embedded.target])
            logits = discriminator(pair if opposed is None else reverse_gradient(pair, opposed[m])).squeeze(1)
            found.append(separation_risk(logits[: len(part.x)], logits[len(part.x) :]))
        return torch.stack(found)
