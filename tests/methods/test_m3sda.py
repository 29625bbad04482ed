"""M3SDA: the objective and the vote."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F

from graphmsda.backbones import build_backbone
from graphmsda.domains import Batch
from graphmsda.errors import UserError
from graphmsda.losses.moments import moment_distance
from graphmsda.methods import build_method, complete_parameters
from graphmsda.methods.m3sda import M3SDA
from tests.methods.steps import CLASSES, DOMAINS, batch, one_phase


def new(**given: object) -> M3SDA:
    torch.manual_seed(0)
    backbone = build_backbone("mlp", (5,), DOMAINS, dropout=0.0)
    method = build_method("m3sda", backbone, CLASSES, DOMAINS, complete_parameters("m3sda", given)).double()
    assert isinstance(method, M3SDA)
    torch.nn.init.normal_(method.heads.weight, std=0.1)  # they start alike, which would hide much
    return method


def double() -> Batch:
    found = batch()
    sources = tuple(dataclasses.replace(part, x=part.x.double()) for part in found.sources)
    return dataclasses.replace(found, sources=sources, target=found.target.double())


@pytest.mark.parametrize("settings", [{}, {"weight": 0.1, "orders": 4, "centred": True}])
def test_the_objective_is_eq_2(settings: dict[str, object]) -> None:
    method, given = new(**settings), double()
    reference = copy.deepcopy(method)
    terms = one_phase(method, given).terms
    parts = [*(part.x for part in given.sources), given.target]
    embeddings = [reference.backbone(x, (len(x),), (m,)) for m, x in enumerate(parts)]
    risks = []
    for m, part in enumerate(given.sources):
        rows = slice(CLASSES * m, CLASSES * (m + 1))  # a source trains its own classifier alone
        logits = F.linear(embeddings[m], reference.heads.weight[rows], reference.heads.bias[rows])
        risks.append(F.cross_entropy(logits, part.y))
    distance = moment_distance(embeddings[:2], embeddings[2], orders=method.orders, centred=method.centred)
    torch.testing.assert_close(terms["source"], (risks[0] + risks[1]) / 2)
    torch.testing.assert_close(terms["moments"], method.weight * distance)


def test_classifiers_vote_by_their_accuracy_on_other_sources() -> None:
    method, x = new(), torch.randn(6, 128, dtype=torch.float64)
    assert method.vote_weights().tolist() == [0.5, 0.5]  # nothing is known yet
    method.accuracy.copy_(torch.tensor([0.9, 0.3]))
    torch.testing.assert_close(
        method.vote_weights(), torch.tensor([0.75, 0.25], dtype=torch.float64), rtol=0, atol=1e-5
    )
    one, two = method.heads(x).exp().unbind(1)
    torch.testing.assert_close(method.predict(x).exp(), 0.75 * one + 0.25 * two, rtol=0, atol=1e-5)
    equal = new(votes="mean")
    equal.accuracy.copy_(torch.tensor([0.9, 0.3]))
    assert equal.vote_weights().tolist() == [0.5, 0.5]


def test_accuracies_are_remembered() -> None:
    method, given = new(), double()
    with torch.no_grad():  # classifier 0 always says class 0, classifier 1 always class 2
        method.heads.weight.zero_()
        method.heads.bias.copy_(torch.tensor([9.0, 0.0, 0.0, 0.0, 0.0, 9.0]))
    shares = [torch.bincount(part.y, minlength=CLASSES) / len(part.y) for part in given.sources]
    for _ in range(3):
        one_phase(method, given)
    expected = torch.stack([shares[1][0], shares[0][2]])
    torch.testing.assert_close(method.vote_weights(), (expected / expected.sum()).double(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("given", [{"weight": -1.0}, {"orders": 0}])
def test_mistakes_are_one_sentence(given: dict[str, object]) -> None:
    with pytest.raises(UserError, match=rf"--set {next(iter(given))}=.*: out of range; give a"):
        new(**given)
