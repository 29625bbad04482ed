"""MCD's three steps: what each moves and what it makes larger or smaller."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphmsda import UserError
from graphmsda.backbones import build_backbone
from graphmsda.domains import Batch
from graphmsda.engine.fit import updated_parameters
from graphmsda.methods import Phase, build_method
from graphmsda.methods.mcd import MCD
from graphmsda.norm import DomainBatchNorm
from tests.methods.steps import CLASSES, DOMAINS, batch


def new(**given: float) -> MCD:
    torch.manual_seed(0)
    method = build_method("mcd", build_backbone("mlp", (5,), DOMAINS, dropout=0.0), CLASSES, DOMAINS, given)
    assert isinstance(method, MCD)
    return method


def run(method: MCD, given: Batch, lr: float = 0.0) -> list[Phase]:
    """Take gradient steps for all phases; the first of each kind and the last are what tests look at."""
    phases = []
    for phase in method.phases(given):
        parameters = updated_parameters(method, phase.updates)
        gradients = torch.autograd.grad(torch.stack(list(phase.terms.values())).sum(), parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0 if gradient is None else lr * gradient
        phases.append(phase)
    return phases


def probabilities(method: MCD, x: Tensor, domain: int) -> list[Tensor]:
    z = method.backbone(x, (len(x),), (domain,))
    return [F.linear(z, head.weight, head.bias).softmax(1) for head in method.heads]


def test_the_losses_are_eqs_2_to_6() -> None:
    method, given = new(discrepancy_weight=0.5, balance_weight=0.1), batch()
    reference = copy.deepcopy(method)
    phases = run(method, given)
    risk = 0.0
    for domain, part in enumerate(given.sources):
        for p in probabilities(reference, part.x, domain):
            risk = risk + F.nll_loss(p.log(), part.y) / len(given.sources)
    one, two = probabilities(reference, given.target, DOMAINS - 1)
    distance = (one - two).abs().mean()
    balance = -one.mean(0).log().mean() - two.mean(0).log().mean()
    assert [list(phase.terms) for phase in phases] == [
        ["source", "balance"],
        ["source", "balance", "separation"],
        *[["discrepancy"]] * 4,
    ]
    assert [phase.updates for phase in phases] == [(), ("heads",), *[("backbone",)] * 4]
    for phase in phases[:2]:
        torch.testing.assert_close(phase.terms["source"], risk)
        torch.testing.assert_close(phase.terms["balance"], 0.1 * balance)
    torch.testing.assert_close(phases[1].terms["separation"], -0.5 * distance)
    torch.testing.assert_close(phases[-1].terms["discrepancy"], distance)


def test_classifiers_part_and_the_network_reunites_them() -> None:
    method, given = new(generator_steps=8, discrepancy_weight=20.0), batch()
    changes = {("heads",): 0.0, ("backbone",): 0.0, (): 0.0}
    for phase in method.phases(given):
        parameters = updated_parameters(method, phase.updates)
        gradients = torch.autograd.grad(torch.stack(list(phase.terms.values())).sum(), parameters, allow_unused=True)
        before = method.disagreement(method.embed_target(given, noted=False))
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0 if gradient is None else 0.01 * gradient
        after = method.disagreement(method.embed_target(given, noted=False))
        changes[phase.updates] += float((after - before).detach())
    assert changes["heads",] > 0
    assert changes["backbone",] < 0


def test_running_statistics_note_the_target_once_a_batch() -> None:
    for balance, seen in ((0.0, 1), (0.1, 2)):
        method = new(balance_weight=balance)
        run(method, batch())
        counts = [m.count.tolist() for m in method.modules() if isinstance(m, DomainBatchNorm)]
        assert counts == [[2, 2, seen]] * 3


def test_the_mean_of_both_classifiers_predicts() -> None:
    method = new()
    z = torch.randn(6, method.backbone.features)
    mean = sum(F.linear(z, head.weight, head.bias).softmax(1) for head in method.heads) / 2
    torch.testing.assert_close(method.predict(z).exp(), mean)
    sure = new()
    with torch.no_grad():
        for head in sure.heads:
            head.weight.mul_(1e4)
    assert torch.isfinite(sure.predict(z).exp()).all()
    assert not torch.isnan(sure.predict(z)).any()
    assert float(sure.predict(z).detach().max()) <= 1e-6


@pytest.mark.parametrize(
    ("given", "told"),
    [({"generator_steps": 0}, "a whole number from 1"), ({"balance_weight": -1.0}, "a number not below 0")],
)
def test_settings_out_of_range_are_refused(given: dict[str, float], told: str) -> None:
    with pytest.raises(UserError, match=told):
        new(**given)
