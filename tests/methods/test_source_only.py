"""Source-only never sees the target; AdaBN is the same network read with the target's statistics."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from graphmsda import Task, Unlabelled, fit
from graphmsda.backbones import build_backbone
from graphmsda.domains import Batch, Labelled
from graphmsda.methods import build_method
from graphmsda.methods.source_only import SourceOnly
from graphmsda.norm import DomainBatchNorm
from tests.conftest import QUICK, feature_task, image_task


def new(name: str = "source-only", dropout: float = 0.0) -> SourceOnly:
    torch.manual_seed(0)
    method = build_method(name, build_backbone("mlp", (5,), 3, dropout=dropout), 3, 3, {})
    assert isinstance(method, SourceOnly)
    return method


def batch() -> Batch:
    task = feature_task()
    sources = tuple(Labelled(s.x, s.y) for s in task.sources)
    return Batch(sources, task.target.x + 5, torch.tensor(0.0), torch.tensor(0))


def other_target(task: Task) -> Task:
    x = task.target.x
    return dataclasses.replace(task, target=Unlabelled("target", 255 - x if task.is_images else 3 * x + 1))


def test_the_loss_is_eq_8() -> None:
    method, given = new(), batch()
    reference = copy.deepcopy(method)
    (phase,) = method.phases(given)
    x = torch.cat([part.x for part in given.sources])
    z = torch.split(reference.backbone(x, (len(x),), (0,)), [len(part.x) for part in given.sources])
    risks = [
        F.cross_entropy(F.linear(one, reference.head.weight, reference.head.bias), part.y)
        for one, part in zip(z, given.sources, strict=True)
    ]
    assert list(phase.terms) == ["source"]
    torch.testing.assert_close(phase.terms["source"], (risks[0] + risks[1]) / 2)


def test_source_only_never_sees_the_target() -> None:
    method = new()
    list(method.phases(batch()))
    norms = [m for m in method.modules() if isinstance(m, DomainBatchNorm)]
    assert [norm.count.tolist() for norm in norms] == [[1, 0, 0]] * 3  # the sources share what is kept for the first
    x = torch.cat([part.x for part in batch().sources])
    torch.testing.assert_close(norms[0].statistics(2)[0], x.mean(0))
    torch.testing.assert_close(norms[0].statistics(2)[1], x.var(0))


@pytest.mark.parametrize("name", ["source-only", "adabn"])
def test_sources_are_read_with_their_common_statistics(name: str) -> None:
    method, given = new(name), batch()
    list(method.phases(given))
    method.eval()
    x = given.sources[1].x
    torch.testing.assert_close(method.embed(x, 0), method.embed(x, 1), rtol=0, atol=0)
    same = torch.equal(method.embed(x), method.embed(x, 0))
    assert same == (name == "source-only")


def test_adabn_sees_the_targets_statistics_and_nothing_else() -> None:
    plain, adapted, given = new(), new("adabn", dropout=0.5), batch()
    plain = new("source-only", dropout=0.5)
    states = []
    for method in (plain, adapted):
        torch.manual_seed(1)
        (phase,) = method.phases(given)
        states.append((phase.terms["source"].detach(), torch.random.get_rng_state()))
    assert torch.equal(states[0][0], states[1][0])
    assert torch.equal(states[0][1], states[1][1])  # no random number more or less, so the next step is the same
    first = next(m for m in adapted.modules() if isinstance(m, DomainBatchNorm))
    torch.testing.assert_close(first.statistics(2)[0], given.target.mean(0))
    torch.testing.assert_close(first.statistics(2)[1], given.target.var(0))
    assert all(module.training for module in adapted.modules())
    assert not any(buffer.requires_grad for buffer in adapted.buffers())


@pytest.mark.parametrize("task", [feature_task(), image_task()], ids=["features", "images"])
def test_adabn_is_source_only_to_the_bit(task: Task, tmp_path: Path) -> None:
    settings = QUICK | {"seed": 4}
    one = fit(task, "source-only", out=tmp_path / "source-only", **settings).method
    two = fit(task, "adabn", out=tmp_path / "adabn", **settings).method
    parameters = dict(two.named_parameters())
    assert all(torch.equal(p, parameters[name]) for name, p in one.named_parameters())
    norms = [[m for m in method.modules() if isinstance(m, DomainBatchNorm)] for method in (one, two)]
    for a, b in zip(*norms, strict=True):
        assert torch.equal(a.running_mean[0], b.running_mean[0])
        assert not torch.equal(a.statistics(2)[0], b.statistics(2)[0])
    x = task.target.x
    assert not torch.equal(one.predict(one.embed(x)), two.predict(two.embed(x)))


@pytest.mark.parametrize("name", ["source-only", "adabn"])
def test_weights_do_not_depend_on_the_target(name: str, tmp_path: Path) -> None:
    task = feature_task()
    methods = [fit(t, name, out=tmp_path / str(n), **QUICK).method for n, t in enumerate((task, other_target(task)))]
    one, two = (dict(method.named_parameters()) for method in methods)
    assert all(torch.equal(one[key], two[key]) for key in one)
    same = [torch.equal(a, b) for a, b in zip(methods[0].buffers(), methods[1].buffers(), strict=True)]
    assert all(same) == (name == "source-only")
