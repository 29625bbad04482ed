"""DCTN: the vote with category shift, the hardest source, pseudo-labels."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from graphmsda.backbones import build_backbone
from graphmsda.domains import Batch, Labelled
from graphmsda.engine.fit import updated_parameters
from graphmsda.errors import UserError
from graphmsda.methods import build_method, complete_parameters
from graphmsda.methods.dctn import DCTN
from tests.conftest import feature_task
from tests.methods.steps import CLASSES

SOURCES = 3


def new(**given: object) -> DCTN:
    torch.manual_seed(0)
    backbone = build_backbone("mlp", (5,), SOURCES + 1, dropout=0.0)
    method = build_method("dctn", backbone, CLASSES, SOURCES + 1, complete_parameters("dctn", given)).double()
    assert isinstance(method, DCTN)
    torch.nn.init.normal_(method.heads.weight, std=0.1)  # they start alike, which would hide much
    return method


def make_batch(progress: float = 0.5) -> Batch:
    """Sources of different sizes; source 0 lacks class 2."""
    task = feature_task(sources=SOURCES)
    parts = [Labelled(s.x[: 20 - 3 * m].double(), s.y[: 20 - 3 * m]) for m, s in enumerate(task.sources)]
    kept = parts[0].y != 2
    parts[0] = Labelled(parts[0].x[kept], parts[0].y[kept])
    return Batch(tuple(parts), task.target.x.double(), torch.tensor(progress), torch.tensor(0))


def test_the_vote_is_the_papers_and_leaves_out_sources_that_lack_a_class() -> None:
    method, x = new(), torch.randn(4, 128, dtype=torch.float64)
    method.constants.copy_(torch.tensor([0.1, 0.5, 0.9]))
    method.met.copy_(torch.tensor([[True, True, False], [True, True, True], [False, True, False]]))
    found = method.predict(x).exp()
    heads = method.heads(x).exp().detach()
    for i in range(4):
        scores, confidences = [], []
        for j in range(SOURCES):
            share = 1 / (1 + math.exp(-method.discriminators[j](x[i : i + 1]).item()))
            scores.append(-math.log(1 - share) + float(method.constants[j]))
        torch.testing.assert_close(method.source_scores(x)[i], torch.tensor(scores, dtype=torch.float64))
        for k in range(CLASSES):
            having = [j for j in range(SOURCES) if method.met[j, k]]
            total = sum(scores[j] for j in having)
            confidences.append(sum(scores[j] / total * float(heads[i, j, k]) for j in having))
        expected = torch.tensor(confidences, dtype=torch.float64) / sum(confidences)
        torch.testing.assert_close(found[i], expected)


def test_a_fresh_model_and_classes_met_nowhere_can_be_predicted() -> None:
    method, x = new(), torch.randn(4, 128, dtype=torch.float64)
    torch.testing.assert_close(method.predict(x).exp().sum(1), torch.ones(4, dtype=torch.float64))
    method.met[:, :2] = True
    assert (method.predict(x).exp()[:, 2] > 0).all()


@pytest.mark.parametrize("mining", [True, False])
def test_the_network_works_against_the_source_that_is_told_apart_worst(mining: bool) -> None:
    method, given = new(mining=mining, ramp=0.0, target_weight=0.0, adversary=0.7), make_batch()
    first, second = method.phases(given)  # no step is taken in between
    domains = [method.embed(part.x, m) for m, part in enumerate(given.sources)]
    target = method.embed(given.target)
    separations, doubts = [], []
    for x, discriminator in zip(domains, method.discriminators, strict=True):
        ours, theirs = discriminator(x), discriminator(target)
        separations.append((F.softplus(-ours).mean() + F.softplus(theirs).mean()) / 2)
        doubts.append(sum((F.softplus(-z) + F.softplus(z)).mean() / 2 for z in (ours, theirs)) / 2)
    torch.testing.assert_close(first.terms["domain"], sum(separations))
    hardest = int(torch.stack(separations).argmax())
    expected = doubts[hardest] if mining else sum(doubts) / SOURCES
    torch.testing.assert_close(second.terms["confusion"], 0.7 * expected)


def test_discriminators_move_first_and_alone() -> None:
    method, given = new(), make_batch()
    first, second = method.phases(given)
    assert first.updates == ("discriminators",)
    others = [p for name, p in method.named_parameters() if not name.startswith("discriminators")]
    slopes = torch.autograd.grad(first.terms["domain"], others, allow_unused=True, retain_graph=True)
    assert all(slope is None for slope in slopes)
    moved = {id(p) for p in updated_parameters(method, second.updates)}
    assert moved == {id(p) for p in others}


def test_the_second_step_meets_the_discriminators_as_the_first_has_left_them() -> None:
    method, given = new(ramp=0.0), make_batch()
    steps = method.phases(given)
    next(steps)
    with torch.no_grad():
        for discriminator in method.discriminators:
            for parameter in discriminator.parameters():
                parameter.zero_()
    torch.testing.assert_close(next(steps).terms["confusion"], torch.tensor(0.1 * math.log(2), dtype=torch.float64))


def test_confident_target_samples_train_the_classifiers_that_know_the_class() -> None:
    method, given = new(ramp=0.0, confidence=0.4, target_weight=2.0), make_batch()
    _, second = method.phases(given)
    x = method.embed(given.target).detach()
    heads = method.heads(x).detach()
    probabilities, guess = method.predict(x).exp().max(1)
    assert 0 < (probabilities > 0.4).sum() < len(x)  # else this tests little
    total = 0.0
    for i in range(len(x)):
        if probabilities[i] > 0.4:
            knowing = [1, 2] if guess[i] == 2 else [0, 1, 2]
            total -= sum(float(heads[i, j, guess[i]]) for j in knowing) / len(knowing)
    assert float(second.terms["target"].detach()) == pytest.approx(2.0 * total / len(x))
    assert second.shown is not None
    assert float(second.shown["pseudo-labelled"]) == pytest.approx(float((probabilities > 0.4).double().mean()))


def test_nothing_is_learnt_from_the_target_before_the_ramp() -> None:
    method = new(confidence=0.0)
    _, second = method.phases(make_batch(progress=0.0))
    assert float(second.terms["confusion"].detach()) == 0
    assert float(second.terms["target"].detach()) == 0


def test_it_remembers_which_source_has_which_class_and_how_well_it_is_known() -> None:
    method, given = new(), make_batch()
    list(method.phases(given))
    assert method.met.tolist() == [[True, True, False], [True, True, True], [True, True, True]]
    own = [
        F.softplus(-method.discriminators[m](method.embed(part.x, m))).mean() for m, part in enumerate(given.sources)
    ]
    torch.testing.assert_close(method.constants, torch.stack(own).detach())


@pytest.mark.parametrize(
    "given",
    [{"adversary": -1.0}, {"target_weight": -1.0}, {"confidence": 1.0}, {"ramp": 2.0}, {"hidden": 0}],
)
def test_mistakes_are_one_sentence(given: dict[str, object]) -> None:
    with pytest.raises(UserError, match=rf"--set {next(iter(given))}=.*: out of range; give a"):
        new(**given)
