"""DCTN: a discriminator and a classifier for each source, and target samples voted on by those they resemble."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.graphs.constraints import source_risk
from graphmsda.graphs.prototypes import one_hot
from graphmsda.graphs.pseudo import by_confidence
from graphmsda.losses.adversarial import Discriminator
from graphmsda.losses.multiway import confusion, perplexity_scores, separation_risk, worst_case
from graphmsda.methods.base import Embedded, Method, Phase, ramped, require
from graphmsda.methods.voting import SourceHeads, own_predictions

MEMORY = 0.01  # weight of a batch in the discriminators' mean losses on their sources


class DCTN(Method):
    r"""DCTN: Xu et al., "Deep Cocktail Network: Multi-source UDA with Category Shift" (CVPR 2018).

    Discriminator :math:`D_j` tells source j from the target, classifier :math:`C_j` learns from source j. A target
    sample's classes are voted on by the classifiers of the sources :math:`\mathcal J_k` that have class k, weighed by
    how much the sample is taken for one of theirs (the perplexity scores :math:`\mathcal S_j`):

    .. math:: \text{confidence}(k \mid x) = \sum_{j \in \mathcal J_k}
              \frac{\mathcal S_j(x)}{\sum_{i \in \mathcal J_k} \mathcal S_i(x)} C_j(k \mid x), \qquad
              \mathcal S_j(x) = -\log(1 - D_j(f(x))) + \alpha_j

    Each batch trains the discriminators, then network and classifiers: on their sources' labels, by the confusion loss
    against the one discriminator that tells its source from the target worst (online hard domain mining), and on
    target samples whose vote is confident. The paper pretrains on the sources and alternates the last two for epochs;
    here both come in over the ramp and go together, and all classifiers start alike (`graphmsda.methods.voting`).
    Confidences are divided by their sum over classes, which is one unless sources lack classes.

    Args:
        adversary: Weight of the confusion loss.
        target_weight: Weight of the pseudo-labelled target samples.
        confidence: Least confidence of a vote that becomes a pseudo-label.
        ramp: Share of the training over which the confusion loss and pseudo-labels come in.
        mining: Attack only the hardest source (true) or all alike (false).
        hidden: Units in each of a discriminator's two hidden layers.
    """

    constants: Tensor
    met: Tensor

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        adversary: float = 0.1,
        target_weight: float = 1.0,
        confidence: float = 0.9,
        ramp: float = 0.2,
        mining: bool = True,
        hidden: int = 256,
    ) -> None:
        super().__init__(backbone, classes, domains)
        require(adversary >= 0, "adversary", adversary, "a number not below 0")
        require(target_weight >= 0, "target_weight", target_weight, "a number not below 0")
        require(0 <= confidence < 1, "confidence", confidence, "a number from 0 to below 1")
        require(0 <= ramp <= 1, "ramp", ramp, "a number from 0 to 1")
        require(hidden >= 1, "hidden", hidden, "a whole number from 1")
        self.adversary, self.target_weight, self.confidence = adversary, target_weight, confidence
        self.ramp, self.mining = ramp, mining
        sources = domains - 1
        self.heads = SourceHeads(backbone.features, sources, classes)
        self.discriminators = nn.ModuleList(Discriminator(backbone.features, 1, hidden) for _ in range(sources))
        self.register_buffer("constants", torch.zeros(sources))  # alpha
        self.register_buffer("met", torch.zeros(sources, classes, dtype=torch.bool))  # which source has which class

    def phases(self, batch: Batch) -> Iterator[Phase]:
        """A step of the discriminators, then one of network and classifiers against them as they are then."""
        embedded = self.embed_batch(batch)
        separations = [
            separation_risk(source, target) for source, target in self.opinions(embedded, moves_network=False)
        ]
        yield Phase({"domain": torch.stack(separations).sum()}, updates=("discriminators",))
        opinions = self.opinions(embedded)
        self.take_note(embedded, opinions)
        doubts = torch.stack([(confusion(source) + confusion(target)) / 2 for source, target in opinions])
        hardness = torch.stack([separation_risk(source, target) for source, target in opinions])
        attacked = worst_case(hardness) if self.mining else torch.full_like(hardness, 1 / len(hardness))
        weight = ramped(batch.progress, self.ramp)

        x, _, _ = embedded.flat()
        labels = [part.y for part in embedded.sources]
        predictions = own_predictions(self.heads(x), [len(y) for y in labels])
        with torch.no_grad():
            guess, believed = by_confidence(self.predict(embedded.target), threshold=self.confidence)
        terms = {
            "source": source_risk(predictions, labels),
            "confusion": self.adversary * weight * (attacked * doubts).sum(),
            "target": self.target_weight * weight * self.target_risk(embedded.target, guess, believed),
        }
        yield Phase(terms, updates=("backbone", "heads"), shown={"pseudo-labelled": believed.mean()})

    def opinions(self, embedded: Embedded, *, moves_network: bool = True) -> list[tuple[Tensor, Tensor]]:
        """Return each discriminator's logits of its source and of the target, ``(B_m,)`` and ``(B,)``."""
        found = []
        for part, discriminator in zip(embedded.sources, self.discriminators, strict=True):
            pair = torch.cat([part.x, embedded.target])
            logits = discriminator(pair if moves_network else pair.detach()).squeeze(1)
            found.append((logits[: len(part.x)], logits[len(part.x) :]))
        return found

    @torch.no_grad()
    def take_note(self, embedded: Embedded, opinions: list[tuple[Tensor, Tensor]]) -> None:
        """Take in the discriminators' mean losses on their sources, and which classes the sources have."""
        own = torch.stack([nn.functional.softplus(-source).sum() / max(1, len(source)) for source, _ in opinions])
        self.constants.copy_(torch.where(self.constants == 0, own, torch.lerp(self.constants, own, MEMORY)))
        members = [one_hot(part.y, self.classes).amax(0) > 0 for part in embedded.sources]
        self.met.logical_or_(torch.stack(members))

    def target_risk(self, embedding: Tensor, guess: Tensor, believed: Tensor) -> Tensor:
        """Return the cross-entropy of target samples believed, by the classifiers of sources that have the class."""
        likelihoods = self.heads(embedding).gather(2, guess[:, None, None].expand(-1, self.domains - 1, 1)).squeeze(2)
        knowing = self.knowing().to(embedding.dtype).T[guess]  # (B, M)
        mean: Tensor = (knowing * likelihoods).sum(1) / knowing.sum(1)
        return -(believed * mean).sum() / max(1, len(guess))

    def knowing(self) -> Tensor:
        """Return which sources have which classes, ``(M, K)`` bool; of one met nowhere yet, all may speak."""
        return self.met | ~self.met.any(0)

    def source_scores(self, embedding: Tensor) -> Tensor:
        """The perplexity scores: how much each discriminator takes a sample for one of its source."""
        logits = torch.cat([discriminator(embedding) for discriminator in self.discriminators], 1)
        return perplexity_scores(logits, self.constants)

    def predict(self, embedding: Tensor) -> Tensor:
        """The vote of the sources that have a class, weighed by the perplexity scores."""
        shares = self.source_scores(embedding).clamp(min=1e-12)[:, :, None] * self.knowing()  # (B, M, K)
        shares = shares / shares.sum(1, keepdim=True)
        confidences = torch.logsumexp(self.heads(embedding) + shares.log(), 1)
        return confidences.log_softmax(1)
