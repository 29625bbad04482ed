"""ADDA: a network of the target's own, trained to embed it where another has embedded the sources."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.graphs.constraints import source_risk
from graphmsda.losses.adversarial import Discriminator, domain_risk, inverted_risk
from graphmsda.methods.base import LinearMethod, Phase, require


class ADDA(LinearMethod):
    r"""ADDA: Tzeng et al., "Adversarial Discriminative Domain Adaptation" (CVPR 2017).

    .. math::
        \text{pretrain:} & \min_{M_s, C} - \mathbb{E} \log C(M_s(x_s))[y_s] & (1) \\
        \text{adapt:} & \min_D - \mathbb{E} \log D(M_s(x_s)) - \mathbb{E} \log (1 - D(M_t(x_t))) & (2) \\
        & \min_{M_t} - \mathbb{E} \log D(M_t(x_t)) & (7)

    which together are eq. 9. The first stage is Source-only. The second leaves its network :math:`M_s` and classifier C
    as they are; the target's network :math:`M_t` shares no weight with it and starts as its copy. D and :math:`M_t`
    move at the same time, each by the other as it was, as in the released code. All sources share one :math:`M_s` and
    are one side of D.

    Args:
        pretrain: Share of the training that the first stage takes.
        adapt_rate: Learning rate of the second stage, as a share of the first one's.
        hidden: Width of the discriminator's two hidden layers.
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        pretrain: float = 0.5,
        adapt_rate: float = 0.1,
        hidden: int = 256,
    ) -> None:
        super().__init__(backbone, classes, domains)
        require(0 < pretrain < 1, "pretrain", pretrain, "a number above 0 and below 1")
        require(hidden >= 1, "hidden", hidden, "a whole number from 1")
        require(adapt_rate > 0, "adapt_rate", adapt_rate, "a positive number")
        self.stages = (("pretrain", pretrain), ("adapt", 1 - pretrain, adapt_rate))
        self.target_encoder = copy.deepcopy(backbone)
        self.discriminator = Discriminator(backbone.features, hidden=hidden)

    def begin_stage(self, name: str) -> None:
        """The target's network starts where that of the sources has arrived."""
        if name == "adapt":
            self.target_encoder.load_state_dict(self.backbone.state_dict())

    def losses(self, batch: Batch) -> Phase:
        """Eq. 1 in the first stage; eqs. 2 and 7 in the second."""
        if self.stage != "adapt":
            known = self.embed_batch(batch, target=False).sources
            risk = source_risk([self.predict(part.x) for part in known], [part.y for part in known])
            return Phase({"source": risk}, updates=("backbone", "head"))
        with torch.no_grad():
            sources = self.embed_batch(batch, target=False).sources
        target = self.embed_target(batch, encoder=self.target_encoder)
        logits = [self.discriminator(part.x) for part in sources]
        judge = {name: parameter.detach() for name, parameter in self.discriminator.named_parameters()}
        terms = {
            "domain": domain_risk(logits, self.discriminator(target.detach())),
            "inverted": inverted_risk(torch.func.functional_call(self.discriminator, judge, target)),
        }
        return Phase(terms, updates=("target_encoder", "discriminator"))

    def embed(self, x: Tensor, domain: int = -1) -> Tensor:
        """Embed samples of a source by the sources' network, those of the target by its own."""
        number = domain % self.domains
        network = self.target_encoder if number == self.domains - 1 else self.backbone
        return network(x, (len(x),), (number,))  # type: ignore[no-any-return]
