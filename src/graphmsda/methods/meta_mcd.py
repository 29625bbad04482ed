"""Meta-MCD: MCD from weights that are learnt to be a good start for MCD, by rehearsing it on the sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch, Labelled
from graphmsda.graphs.draws import integers
from graphmsda.methods.base import Phase, require
from graphmsda.methods.mcd import MCD
from graphmsda.parallel import average_gradients

# Which parameters each of MCD's steps moves, by the beginning of their names.
MOVES = {"A": ("backbone.", "heads."), "B": ("heads.",), "C": ("backbone.",)}


class MetaMCD(MCD):
    r"""Meta-MCD: "Online Meta-Learning for Multi-Source and Semi-Supervised Domain Adaptation" (ECCV 2020).

    By Li and Hospedales, with MCD (Saito et al., CVPR 2018) as what adapts.

    .. math:: \Theta_0 \leftarrow \Theta_0 - \eta \nabla_{\Theta} L_{sup}(\Theta_0 - \nabla^{short}; D_{mte}), \quad
              \nabla^{short} = \Theta_0 - \Theta_J

    In each batch one source, drawn at random, plays the target. From the weights :math:`\Theta_0` as they are, J
    iterations of MCD with the other sources lead to :math:`\Theta_J`; the risk there on the labels of the one that
    played the target moves :math:`\Theta_0`. The path is held constant (the paper's shortest-path gradient), so no
    second derivative is taken. In the first stage meta-learning and adaptation take turns, as in the paper's online
    form; in the second MCD goes on from there alone.

    Departures: the turns change with every batch, and the meta-gradient shares the step A of MCD with the source risk,
    as a weighted mean of both. In a step of its own, or added in full, it was worse than MCD, perhaps since one
    optimiser scales all steps, C among them, by the size of past gradients; and so it was in all of the training
    instead of its first stage (docs/fidelity.md). The rehearsal takes plain gradient steps. With a single source the
    rehearsal is with the target itself and its risk that of the source.

    Args:
        generator_steps: Steps of the network (C) for each batch, n.
        discrepancy_weight: Weight of the discrepancy that classifiers seek in B.
        balance_weight: Weight of the term in A and B that keeps target predictions spread over all classes.
        start: Share of the training that the first stage takes; 0 leaves MCD alone.
        meta_share: Share of the risk after a rehearsal in step A, from 0 to 1.
        inner_steps: Iterations of MCD in a rehearsal, J.
        inner_lr: Learning rate of the rehearsal.
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
        start: float = 0.15,
        meta_share: float = 0.5,
        inner_steps: int = 1,
        inner_lr: float = 0.01,
    ) -> None:
        super().__init__(
            backbone,
            classes,
            domains,
            generator_steps=generator_steps,
            discrepancy_weight=discrepancy_weight,
            balance_weight=balance_weight,
        )
        require(0 <= start <= 1, "start", start, "a number from 0 to 1")
        require(0 <= meta_share <= 1, "meta_share", meta_share, "a number from 0 to 1")
        require(inner_steps >= 0, "inner_steps", inner_steps, "a whole number from 0")
        require(inner_lr >= 0, "inner_lr", inner_lr, "a number not below 0")
        self.meta_share, self.inner_steps, self.inner_lr = meta_share, inner_steps, inner_lr
        stages = (("start", start), ("adapt", 1 - start))
        self.stages = tuple(stage for stage in stages if stage[1] > 0)

    def phases(self, batch: Batch) -> Iterator[Phase]:
        """The steps of MCD, the first of them with the risk after a rehearsal."""
        steps = super().phases(batch)
        if self.stage == "start" and self.meta_share > 0:
            rehearsed, judged = rehearsal(batch)
            # Running statistics belong to the true domains: a rehearsal has copies, which are thrown away.
            buffers = {name: buffer.clone() for name, buffer in self.named_buffers()}
            end = self.rehearse(rehearsed, buffers)
            reached = {name: p + (end[name] - p).detach() for name, p in self.named_parameters()}
            meta = self.meta_share * self.at(reached, buffers, judged, "A")
            first = next(steps)
            yield Phase({**{name: (1 - self.meta_share) * term for name, term in first.terms.items()}, "meta": meta})
        yield from steps

    def rehearse(self, batch: Batch, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all parameters as they are after `inner_steps` iterations of MCD with a batch."""
        now = {name: p.detach().requires_grad_() for name, p in self.named_parameters()}
        for step in [*"AB", *"C" * self.generator_steps] * self.inner_steps:
            moved = [name for name in now if name.startswith(MOVES[step])]
            loss = self.at(now, buffers, batch, step)
            gradients = torch.autograd.grad(loss, [now[name] for name in moved], allow_unused=True)
            average_gradients(gradients)
            for name, gradient in zip(moved, gradients, strict=True):
                if gradient is not None:
                    now[name] = (now[name] - self.inner_lr * gradient).detach().requires_grad_()
        return now

    def at(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Batch, step: str) -> Tensor:
        """Return the loss of one of MCD's steps at other parameters than the method's own."""
        phase = torch.func.functional_call(self, {**parameters, **buffers}, (batch, step))
        return torch.stack(list(phase.terms.values())).sum()

    def forward(self, batch: Batch, step: str = "A") -> Phase:
        """The loss terms of step A, B or C of MCD."""
        if step == "C":
            return Phase({"discrepancy": self.disagreement(self.embed_target(batch, noted=False))})
        if step == "A":
            return Phase(self.source_terms(self.embed_batch(batch, target=self.balance_weight > 0)))
        with torch.no_grad():
            embedded = self.embed_batch(batch)
        separation = -self.discrepancy_weight * self.disagreement(embedded.target)
        return Phase({**self.source_terms(embedded), "separation": separation})


def rehearsal(batch: Batch) -> tuple[Batch, Batch]:
    """Return a batch in which a source drawn by the seed plays the target, and one of that source with its labels.

    All sources get as many samples as the largest has, those of smaller ones again from the first: which of them plays
    may then be decided on the device.
    """
    sources = batch.sources
    if len(sources) == 1:
        return batch, batch
    device = batch.seed.device
    sizes = torch.stack([torch.full((), len(part.y), device=device) for part in sources])  # copied from nowhere
    begins = sizes.cumsum(0) - sizes
    place = torch.arange(max(len(part.y) for part in sources), device=device)
    x, y = torch.cat([part.x for part in sources]), torch.cat([part.y for part in sources])
    first = integers(len(sources), (), batch.seed)
    parts = []
    for number in range(len(sources)):
        source = ((first + number) % len(sources))[None]
        rows = begins[source] + place % sizes[source]
        parts.append(Labelled(x[rows], y[rows]))
    target, *others = parts
    return replace(batch, sources=tuple(others), target=target.x), replace(batch, sources=(target,), target=target.x)
