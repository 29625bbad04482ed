"""MDAN: the gradient of the worst source's bound, exactly."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphmsda.backbones import build_backbone
from graphmsda.domains import Batch, Labelled
from graphmsda.errors import UserError
from graphmsda.methods import build_method, complete_parameters
from graphmsda.methods.mdan import MDAN
from tests.conftest import feature_task
from tests.methods.steps import CLASSES, one_phase

SOURCES = 3


def new(**given: object) -> MDAN:
    torch.manual_seed(0)
    backbone = build_backbone("mlp", (5,), SOURCES + 1, dropout=0.0)
    method = build_method("mdan", backbone, CLASSES, SOURCES + 1, complete_parameters("mdan", given)).double()
    assert isinstance(method, MDAN)
    return method


def make_batch() -> Batch:
    """Sources of different sizes."""
    task = feature_task(sources=SOURCES)
    parts = [Labelled(s.x[: 20 - 3 * m].double(), s.y[: 20 - 3 * m]) for m, s in enumerate(task.sources)]
    return Batch(tuple(parts), task.target.x.double(), torch.tensor(0.5), torch.tensor(0))


def bounds(method: MDAN, batch: Batch) -> tuple[Tensor, Tensor]:
    """Each source's classification risk and its discriminator's risk, domain by domain."""
    target = method.embed(batch.target)
    risks, separations = [], []
    for m, part in enumerate(batch.sources):
        x = method.embed(part.x, m)
        risks.append(F.cross_entropy(F.linear(x, method.head.weight, method.head.bias), part.y))
        ours, theirs = method.discriminators[m](x), method.discriminators[m](target)
        right = F.binary_cross_entropy_with_logits(ours, torch.ones_like(ours))
        wrong = F.binary_cross_entropy_with_logits(theirs, torch.zeros_like(theirs))
        separations.append((right + wrong) / 2)
    return torch.stack(risks), torch.stack(separations)


@pytest.mark.parametrize("form", ["soft", "hard"])
@pytest.mark.parametrize("mu", [0.0, 0.3, 2.0])
def test_network_and_classifier_descend_the_bound_and_discriminators_their_own_risk(form: str, mu: float) -> None:
    method, given = new(form=form, mu=mu, gamma=5.0), make_batch()
    reference = copy.deepcopy(method)
    found = torch.autograd.grad(sum(one_phase(method, given).terms.values()), list(method.parameters()))
    risks, separations = bounds(reference, given)
    values = risks - mu * separations
    bound = values.max() if form == "hard" else torch.log(torch.exp(5.0 * values).sum()) / 5.0
    for (name, parameter), gradient in zip(reference.named_parameters(), found, strict=True):
        objective = separations.sum() if name.startswith("discriminators") else bound
        (expected,) = torch.autograd.grad(objective, parameter, retain_graph=True)
        torch.testing.assert_close(gradient, expected, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("given", [{"mu": -1.0}, {"gamma": 0.0}, {"hidden": 0}])
def test_mistakes_are_one_sentence(given: dict[str, object]) -> None:
    with pytest.raises(UserError, match=rf"--set {next(iter(given))}=.*: out of range; give a"):
        new(**given)
