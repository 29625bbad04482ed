"""DANN: one step in which the discriminator goes down its loss and the network up."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from graphmsda.backbones import build_backbone
from graphmsda.losses.adversarial import warm_up
from graphmsda.methods import build_method
from graphmsda.methods.dann import DANN
from tests.methods.steps import CLASSES, DOMAINS, Apart, batch, one_phase


def new(**given: float) -> DANN:
    torch.manual_seed(0)
    method = build_method("dann", build_backbone("mlp", (5,), DOMAINS, dropout=0.0), CLASSES, DOMAINS, given)
    assert isinstance(method, DANN)
    return method.double()


@pytest.mark.parametrize("progress", [0.0, 0.1, 1.0])
def test_gradients_are_those_of_the_saddle_point(progress: float) -> None:
    """Eq. 9: the network goes along the gradient of L_y - lambda L_d, the discriminator along that of L_d."""
    method, given = new(weight=0.7, gamma=5.0), batch()
    given = dataclasses.replace(given, progress=torch.tensor(progress))
    reference = copy.deepcopy(method)
    terms = one_phase(method, given).terms
    total = terms["source"] + terms["domain"]

    sides = [*(part.x for part in given.sources), given.target]
    z = [reference.backbone(x, (len(x),), (m,)) for m, x in enumerate(sides)]
    risk = sum(F.nll_loss(reference.head(z[m]), part.y) for m, part in enumerate(given.sources)) / 2
    judged = [reference.discriminator(x).squeeze(1).sigmoid() for x in z]
    told_apart = -(judged[0].log().mean() + judged[1].log().mean()) / 2 - (1 - judged[2]).log().mean()
    torch.testing.assert_close(terms["source"], risk)
    torch.testing.assert_close(terms["domain"], told_apart)

    weight = 0.7 * float(warm_up(torch.tensor(progress), 5.0))
    expected = {"backbone": risk - weight * told_apart, "head": risk, "discriminator": told_apart}
    for part, loss in expected.items():
        mine = torch.autograd.grad(total, list(getattr(method, part).parameters()), retain_graph=True)
        wanted = torch.autograd.grad(loss, list(getattr(reference, part).parameters()), retain_graph=True)
        for a, b in zip(mine, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_without_weight_the_network_learns_as_source_only_does() -> None:
    method, plain, given = new(weight=0.0), Apart(new().backbone, CLASSES, DOMAINS), batch()
    plain.double().load_state_dict({k: v for k, v in method.state_dict().items() if not k.startswith("discr")})
    gradients = []
    for one in (method, plain):
        loss = torch.stack(list(one_phase(one, given).terms.values())).sum()
        gradients.append(torch.autograd.grad(loss, list(one.backbone.parameters())))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)
