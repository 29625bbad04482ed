"""M3SDA-beta: the three kinds of steps, and the vote of pairs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from graphmsda.backbones import build_backbone
from graphmsda.domains import Batch
from graphmsda.engine.fit import updated_parameters
from graphmsda.errors import UserError
from graphmsda.methods import Method, build_method, complete_parameters
from graphmsda.methods.m3sda_beta import M3SDABeta
from graphmsda.norm import DomainBatchNorm
from tests.methods.steps import CLASSES, DOMAINS, batch


def new(**given: object) -> M3SDABeta:
    torch.manual_seed(0)
    backbone = build_backbone("mlp", (5,), DOMAINS, dropout=0.0)
    method = build_method("m3sda-beta", backbone, CLASSES, DOMAINS, complete_parameters("m3sda-beta", given)).double()
    assert isinstance(method, M3SDABeta)
    torch.nn.init.normal_(method.heads.weight, std=0.1)  # they start alike, which would hide much
    torch.nn.init.normal_(method.twins.weight, std=0.1)
    return method


def double() -> Batch:
    found = batch()
    sources = tuple(dataclasses.replace(part, x=part.x.double()) for part in found.sources)
    return dataclasses.replace(found, sources=sources, target=found.target.double())


def test_it_takes_the_three_kinds_of_steps_of_its_paper() -> None:
    method, given = new(generator_steps=3), double()
    assert M3SDABeta.losses is Method.losses  # else a compiler would take the wrong steps
    named = {id(parameter): name for name, parameter in method.named_parameters()}
    seen = []
    for phase in method.phases(given):
        parameters = updated_parameters(method, phase.updates)
        moved = {named[id(p)].split(".")[0] for p in parameters}
        before = method.disagreement(method.embed(given.target)).detach()
        loss = phase.terms.get("separation", torch.stack(list(phase.terms.values())).sum())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0 if gradient is None else 1e-3 * gradient
        after = method.disagreement(method.embed(given.target)).detach()
        seen.append((sorted(phase.terms), sorted(moved), bool(after > before)))
    assert seen[0][:2] == (["moments", "source"], ["backbone", "heads", "twins"])
    assert seen[1] == (["separation", "source"], ["heads", "twins"], True)
    assert seen[2:] == [(["discrepancy"], ["backbone"], False)] * 3


def test_it_notes_each_domain_as_often() -> None:
    method, given = new(), double()
    for _ in method.phases(given):
        pass
    for norm in (m for m in method.modules() if isinstance(m, DomainBatchNorm)):
        assert norm.count.tolist() == [2, 2, 2]


def test_the_classifiers_of_a_pair_have_half_of_its_vote_each() -> None:
    method, x = new(), torch.randn(6, 128, dtype=torch.float64)
    method.accuracy.copy_(torch.tensor([0.9, 0.3]))
    pairs = (method.heads(x).exp() + method.twins(x).exp()) / 2
    torch.testing.assert_close(method.predict(x).exp(), 0.75 * pairs[:, 0] + 0.25 * pairs[:, 1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("given", [{"weight": -1.0}, {"generator_steps": 0}])
def test_mistakes_are_one_sentence(given: dict[str, object]) -> None:
    with pytest.raises(UserError, match=rf"--set {next(iter(given))}=.*: out of range; give a"):
        new(**given)
