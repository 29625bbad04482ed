"""Meta-MCD: a rehearsal is MCD itself, its gradient is taken at its end, and it leaves no trace."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from graphmsda.backbones import build_backbone
from graphmsda.domains import Batch, Labelled
from graphmsda.engine.fit import updated_parameters
from graphmsda.errors import UserError
from graphmsda.methods import build_method, complete_parameters
from graphmsda.methods.mcd import MCD
from graphmsda.methods.meta_mcd import MetaMCD, rehearsal
from tests.conftest import feature_task
from tests.methods.steps import CLASSES

SOURCES = 3


def new(name: str = "meta-mcd", sources: int = SOURCES, **given: object) -> MCD:
    torch.manual_seed(0)
    backbone = build_backbone("mlp", (5,), sources + 1, dropout=0.0)
    method = build_method(name, backbone, CLASSES, sources + 1, complete_parameters(name, given)).double()
    assert isinstance(method, MCD)
    method.stage = method.stages[0][0] if method.stages else ""
    return method


def make_batch(seed: int = 0, sources: int = SOURCES, uneven: int = 0) -> Batch:
    task = feature_task(sources=sources)
    parts = [Labelled(s.x[: 20 - uneven * m].double(), s.y[: 20 - uneven * m]) for m, s in enumerate(task.sources)]
    return Batch(tuple(parts), task.target.x.double(), torch.tensor(0.5), torch.tensor(seed))


def descend(method: MCD, batch: Batch, lr: float) -> None:
    """MCD's steps by plain gradient descent."""
    for phase in method.phases(batch):
        parameters = updated_parameters(method, phase.updates)
        gradients = torch.autograd.grad(sum(phase.terms.values()), parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter -= lr * gradient


@pytest.mark.parametrize("uneven", [0, 4])
def test_one_source_plays_the_target_and_all_of_them_do_in_time(uneven: int) -> None:
    played = set()
    for seed in range(0, 40 * 2**32, 2**32):
        batch = make_batch(seed, uneven=uneven)
        rehearsed, judged = rehearsal(batch)
        assert torch.equal(rehearsed.target, judged.sources[0].x)

        def number(x: Tensor, y: Tensor | None, batch: Batch = batch) -> int:
            """Which source these samples are of: all of them in order, then again from the first."""
            for m, part in enumerate(batch.sources):
                rows = torch.arange(20) % len(part.y)
                if torch.equal(x, part.x[rows]) and (y is None or torch.equal(y, part.y[rows])):
                    return m
            raise AssertionError("samples of no source")

        first = number(judged.sources[0].x, judged.sources[0].y)
        assert sorted([first, *(number(part.x, part.y) for part in rehearsed.sources)]) == [0, 1, 2]
        played.add(first)
    assert played == {0, 1, 2}


def test_with_one_source_the_target_plays_itself() -> None:
    batch = make_batch(sources=1)
    assert rehearsal(batch) == (batch, batch)


@pytest.mark.parametrize("given", [{"inner_steps": 1}, {"inner_steps": 3, "generator_steps": 2, "balance_weight": 0.1}])
def test_a_rehearsal_is_mcd_by_gradient_descent(given: dict[str, object]) -> None:
    method = new(inner_lr=0.1, **given)
    assert isinstance(method, MetaMCD)
    plain = new("mcd", **{key: value for key, value in given.items() if key != "inner_steps"})
    rehearsed, _ = rehearsal(make_batch())
    buffers = {name: buffer.clone() for name, buffer in method.named_buffers()}
    end = method.rehearse(rehearsed, buffers)
    for _ in range(method.inner_steps):
        descend(plain, rehearsed, 0.1)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(end[name], parameter.data, rtol=1e-9, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


def test_the_gradient_is_that_of_the_risk_at_the_end_of_the_rehearsal() -> None:
    method, batch = new(inner_lr=0.1), make_batch()
    assert isinstance(method, MetaMCD)
    rehearsed, judged = rehearsal(batch)
    phase = next(iter(method.phases(batch)))
    assert list(phase.terms) == ["source", "meta"]
    assert phase.updates == ()
    found = torch.autograd.grad(phase.terms["meta"], list(method.parameters()))
    found = tuple(gradient / method.meta_share for gradient in found)

    other = copy.deepcopy(method)
    descend(new_mcd_from(other), rehearsed, 0.1)
    expected = torch.autograd.grad(
        sum(other.source_terms(other.embed_batch(judged, target=False)).values()), list(other.parameters())
    )
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


def new_mcd_from(method: MetaMCD) -> MCD:
    """MCD on the very modules of a method."""
    plain = new("mcd")
    plain.backbone, plain.heads = method.backbone, method.heads
    return plain


def test_the_source_risk_and_the_risk_after_a_rehearsal_share_a_step() -> None:
    """As many optimiser steps as MCD takes, and in the first of them a mean of two risks."""
    method, batch = new(meta_share=0.3), make_batch()
    phases, plain = list(method.phases(batch)), list(new("mcd").phases(batch))
    assert [phase.updates for phase in phases] == [phase.updates for phase in plain]
    torch.testing.assert_close(phases[0].terms["source"], 0.7 * plain[0].terms["source"])


def test_only_the_first_stage_rehearses() -> None:
    method = new(start=0.25)
    assert method.stages == (("start", 0.25), ("adapt", 0.75))
    assert "meta" in next(iter(method.phases(make_batch()))).terms
    method.stage = "adapt"
    assert "meta" not in next(iter(method.phases(make_batch()))).terms
    assert new(start=1.0).stages == (("start", 1.0),)


def test_a_rehearsal_leaves_no_trace() -> None:
    """Running statistics are those that MCD's own step has left."""
    method, plain, batch = new(), new("mcd"), make_batch()
    next(iter(method.phases(batch)))
    next(iter(plain.phases(batch)))
    expected = plain.state_dict()
    for name, tensor in method.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("given", [{"meta_share": 0.0}, {"start": 0.0}])
def test_without_a_rehearsal_it_is_mcd(given: dict[str, object]) -> None:
    one, two = new(**given), new("mcd")
    for seed in range(2):
        for method in (one, two):
            descend(method, make_batch(seed), 0.05)
    for (name, a), b in zip(one.state_dict().items(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b), name


def test_the_start_learns_to_be_a_good_one() -> None:
    """Meta steps alone lower the risk that is left after a rehearsal on sources not trained on in it."""
    method = new(inner_lr=0.05, meta_share=1.0)
    seen = []
    for step in range(25):
        phase = next(iter(method.phases(make_batch(step * 2**32))))
        parameters = list(method.parameters())
        gradients = torch.autograd.grad(phase.terms["meta"], parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.1 * gradient
        seen.append(float(phase.terms["meta"].detach()))
    assert sum(seen[-5:]) < 0.7 * sum(seen[:5])


@pytest.mark.parametrize(
    "given", [{"meta_share": 1.5}, {"inner_steps": -1}, {"inner_lr": -0.1}, {"generator_steps": 0}]
)
def test_hyperparameters_out_of_range_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(UserError, match=f"--set {next(iter(given))}="):
        new(**given)
