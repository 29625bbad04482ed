"""MDDA: for each source a network, a critic and a target network, in stages; the nearer source counts more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.branches import BranchedBackbone
from graphmsda.domains import Batch
from graphmsda.graphs.constraints import source_risk
from graphmsda.graphs.prototypes import squared_distances
from graphmsda.losses.adversarial import Discriminator
from graphmsda.losses.wasserstein import critic_gaps, gradient_penalties, nearest
from graphmsda.methods.base import LinearHead, Method, Phase, require

APART = 2**48  # between the seeds of two steps of the critics, who have seeds of their own in between
NEWEST = 0.05  # weight of a batch in the running distances


class MDDA(Method):
    r"""MDDA: Zhao et al., "Multi-source Distilling Domain Adaptation" (AAAI 2020).

    .. math::
        \text{pretrain:} & \min_{F_i, C_i} L_{cls}(F_i, C_i) \text{ on source } i \text{ alone} \\
        \text{adapt:} & \max_{D_i} E_{S_i} D_i(F_i(x)) - E_T D_i(F^T_i(x)) - \alpha L_{grad}(D_i), \quad
                        \min_{F^T_i} -E_T D_i(F^T_i(x)) \\
        \text{distil:} & \min_{C_i} L_{cls} \text{ on the samples of least }
                         \tau = \lvert D_i(F_i(x)) - E_T D_i(F^T_i) \rvert \\
        \text{predict:} & \sum_i \omega_i C_i(F^T_i(x)), \quad \omega_i \propto e^{-W_i^2 / 2}

    Each source has a network, a classifier, a critic and a target network that starts from the source's; no two share
    weights. :math:`W_i` is the critic's distance of source and target, as a running mean over batches.

    Departures: the nearest samples are chosen in each batch, not once in all of a source. The networks of the sources
    start from one that has been trained on all of them: from a random start, some hundred images of a single narrow
    domain teach nothing that holds on another, and no critic mends that afterwards. The paper's networks have tens of
    thousands of images of a source, or start from ImageNet's weights; ``--preset paper`` trains them apart throughout.

    Args:
        common: Share of the training in which one network learns from all sources; 0 trains them apart throughout.
        pretrain: Share of the training for the sources' networks, each by itself.
        distil: Share of the training for the classifiers on the nearest samples; the rest adapts.
        adapt_rate: Learning rate of the adaptation, as a share of the others'.
        critic_steps: Steps of the critics for each step of the target networks.
        penalty: Weight of the gradient penalty, alpha.
        kept: Share of a source's samples that distilling keeps.
    """

    presets: ClassVar = {"paper": {"common": 0.0, "pretrain": 0.5}}
    backbone: BranchedBackbone
    distances: Tensor

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        common: float = 0.4,
        pretrain: float = 0.1,
        distil: float = 0.1,
        adapt_rate: float = 0.3,
        critic_steps: int = 5,
        penalty: float = 10.0,
        kept: float = 0.5,
    ) -> None:
        super().__init__(BranchedBackbone(backbone, domains), classes, domains)
        require(0 <= common < 1, "common", common, "a number from 0 and below 1")
        require(0 < pretrain < 1 - common, "pretrain", pretrain, "a positive number below 1 - common")
        begun = common + pretrain
        require(0 < distil < 1 - begun, "distil", distil, "a positive number below 1 - common - pretrain")
        require(adapt_rate > 0, "adapt_rate", adapt_rate, "a positive number")
        require(critic_steps >= 1, "critic_steps", critic_steps, "a whole number from 1")
        require(penalty >= 0, "penalty", penalty, "a number not below 0")
        require(0 < kept <= 1, "kept", kept, "a number above 0 and up to 1")
        self.stages = (("pretrain", pretrain), ("adapt", 1 - begun - distil, adapt_rate), ("distil", distil))
        if common > 0:
            self.stages = (("common", common), *self.stages)
        self.common, self.critic_steps, self.penalty, self.kept = common, critic_steps, penalty, kept
        self.heads = nn.ModuleList(LinearHead(backbone.features, classes) for _ in range(domains - 1))
        self.critics = nn.ModuleList(Discriminator(backbone.features) for _ in range(domains - 1))
        self.register_buffer("distances", torch.zeros(domains - 1))

    @property
    def source_networks(self) -> nn.Module:
        """The sources' networks, for `Phase.updates`."""
        return self.backbone.body.sources

    @property
    def target_networks(self) -> nn.Module:
        """The target's networks, for `Phase.updates`."""
        return self.backbone.body.targets

    def begin_stage(self, name: str) -> None:
        """Let networks start from those that have been trained: the sources' from the common one, then the target's."""
        if name == "pretrain" and self.common > 0:
            self.backbone.part()
            first, *others = self.heads
            for other in others:
                other.load_state_dict(first.state_dict())
        if name == "adapt":
            self.backbone.follow()

    def phases(self, batch: Batch) -> Iterator[Phase]:
        """The steps of the current stage."""
        self.backbone.body.together = self.stage == "common"
        if self.stage not in ("adapt", "distil"):
            yield self.classify(*self.embed_sources(batch), updates=("source_networks", "heads"))
            return
        with torch.no_grad():  # the sources' networks stay as they are
            sources, labels = self.embed_sources(batch)
        if self.stage == "adapt":
            target = self.backbone.parts(self.embed_target(batch))
            yield from self.adapt(sources, target, batch.seed)
        else:
            with torch.no_grad():
                target = self.backbone.parts(self.embed_target(batch))
                given = zip(self.critics, sources, target, strict=True)
                near = [nearest(critic(x), critic(y), self.kept) for critic, x, y in given]
            chosen = [(x[rows], y[rows]) for x, y, rows in zip(sources, labels, near, strict=True)]
            yield self.classify(*zip(*chosen, strict=True), updates=("heads",))
        self.measure(sources, target)

    def classify(self, sources: Sequence[Tensor], labels: Sequence[Tensor], *, updates: tuple[str, ...]) -> Phase:
        """Return the risk of each source's classifier on its own samples."""
        heads = [self.heads[0]] * len(sources) if self.stage == "common" else self.heads
        predictions = [head(x) for head, x in zip(heads, sources, strict=True)]
        return Phase({"source": source_risk(predictions, labels)}, updates=updates)

    def adapt(self, sources: Sequence[Tensor], target: Sequence[Tensor], seed: Tensor) -> Iterator[Phase]:
        """Move the critics to tell each source from the target, then the target's networks against them."""
        fixed = [y.detach() for y in target]
        for step in range(self.critic_steps):
            slopes = gradient_penalties(self.critics, sources, fixed, seed + APART * step)
            gaps = critic_gaps(self.critics, sources, fixed)
            yield Phase({"critic": -gaps.mean(), "penalty": self.penalty * slopes.mean()}, updates=("critics",))
        scores = [critic(y).mean() for critic, y in zip(self.critics, target, strict=True)]
        yield Phase({"target": -torch.stack(scores).mean()}, updates=("target_networks",))

    @torch.no_grad()
    def measure(self, sources: Sequence[Tensor], target: Sequence[Tensor]) -> None:
        """Move the running distances of the sources to what they are in this batch."""
        now = critic_gaps(self.critics, sources, target).abs()
        self.distances.copy_(torch.where(self.distances == 0, now, self.distances.lerp(now, NEWEST)))

    def embed_sources(self, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
        """Return embeddings ``(B_m, d)`` and labels of each source, by its own network."""
        embedded = self.embed_batch(batch, target=False).sources
        return [self.backbone.parts(part.x)[m] for m, part in enumerate(embedded)], [part.y for part in embedded]

    def predict(self, embedding: Tensor) -> Tensor:
        """Logarithm of the classifiers' mean, weighted by the sources' distances; an absent part does not count."""
        parts = self.backbone.parts(embedding)
        present = torch.stack([part.ne(0).any(1) for part in parts], 1)
        present = present | ~present.any(1, keepdim=True)
        weights = torch.where(present, -self.distances.square() / 2, -torch.inf).log_softmax(1)
        answers = torch.stack([head(part) for head, part in zip(self.heads, parts, strict=True)], 1)
        return torch.logsumexp(weights[:, :, None] + answers, 1)

    def source_scores(self, embedding: Tensor) -> Tensor:
        """Minus the squared distance to each source's nearest class mean, in that source's part."""
        means = [self.backbone.parts(means)[m] for m, means in enumerate(self.source_means)]
        given = zip(self.backbone.parts(embedding), means, self.source_means_seen, strict=True)
        found = [squared_distances(x, mean).masked_fill(~seen, torch.inf).amin(1) for x, mean, seen in given]
        return -torch.stack(found, 1)
