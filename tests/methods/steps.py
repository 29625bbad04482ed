"""Single steps of a method on a small task of feature vectors, for tests that look inside one."""

from __future__ import annotations

import torch

from graphmsda.domains import Batch, Labelled
from graphmsda.graphs.constraints import source_risk
from graphmsda.methods import Method, Phase
from graphmsda.methods.base import LinearMethod
from tests.conftest import feature_task

CLASSES, DOMAINS = 3, 3


def batch(seed: int = 0, absent: int = -1) -> Batch:
    """Two sources and a target; the class `absent` is missing from the sources."""
    task = feature_task(seed=seed)
    sources = tuple(Labelled(s.x[s.y != absent], s.y[s.y != absent]) for s in task.sources)
    return Batch(sources, task.target.x, torch.tensor(0.5), torch.tensor(seed))


def one_phase(method: Method, given: Batch) -> Phase:
    """The one phase of a method that has one."""
    (phase,) = method.phases(given)
    return phase


def step(method: Method, given: Batch, lr: float = 0.01) -> Phase:
    """A step of plain gradient descent."""
    phase = one_phase(method, given)
    gradients = torch.autograd.grad(sum(phase.terms.values()), list(method.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(method.parameters(), gradients, strict=True):
            parameter -= lr * gradient
    return phase


def values(phase: Phase) -> dict[str, float]:
    """The loss terms as numbers."""
    return {name: float(term.detach()) for name, term in phase.terms.items()}


class Apart(LinearMethod):
    """Source-only whose sources keep their batch statistics apart: what most methods are without what they add."""

    def losses(self, batch: Batch) -> Phase:
        sources = self.embed_batch(batch, target=False).sources
        return Phase({"source": source_risk([self.predict(part.x) for part in sources], [part.y for part in sources])})
