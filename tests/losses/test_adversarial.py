"""Reversed gradients, their schedule, and the two sides' losses against loops over samples."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphmsda.losses.adversarial import Discriminator, domain_risk, inverted_risk, reverse_gradient, warm_up


def logits(sizes: list[int], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [3 * torch.randn(size, 1, generator=generator, dtype=torch.float64) for size in sizes]


def probability(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def slow_domain_risk(sources: list[Tensor], target: Tensor) -> float:
    total, filled = 0.0, [part for part in sources if len(part)]
    for part in filled:
        for logit in part[:, 0].tolist():
            total -= math.log(probability(logit)) / (len(part) * len(filled))
    for logit in target[:, 0].tolist():
        total -= math.log(probability(-logit)) / len(target)  # 1 - D(x), without cancelling where D(x) is near 1
    return total


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 7), min_size=2, max_size=5), st.integers(0, 99))
def test_both_sides_are_the_equations(sizes: list[int], seed: int) -> None:
    *sources, target = logits(sizes, seed)
    assert float(domain_risk(sources, target)) == pytest.approx(slow_domain_risk(sources, target), abs=1e-12)
    wrong = -sum(math.log(probability(logit)) for logit in target[:, 0].tolist()) / len(target)
    assert float(inverted_risk(target)) == pytest.approx(wrong, abs=1e-12)


def test_a_source_without_samples_is_not_counted() -> None:
    one, empty, target = logits([3, 0, 4], 0)
    assert float(domain_risk([one, empty], target)) == float(domain_risk([one], target))


def test_sure_discriminators_stay_finite() -> None:
    for sign in (-1, 1):
        far = torch.tensor([[1e4 * sign]], requires_grad=True)
        for loss in (domain_risk([far], far), inverted_risk(far)):
            (gradient,) = torch.autograd.grad(loss, far)
            assert torch.isfinite(loss)
            assert torch.isfinite(gradient).all()


def test_inverted_labels_push_where_reversal_does_not() -> None:
    """Against a discriminator that is sure of the target, minus its loss has hardly a gradient left."""
    sure = torch.tensor([[-20.0]], requires_grad=True)
    (inverted,) = torch.autograd.grad(inverted_risk(sure), sure)
    (reversed_one,) = torch.autograd.grad(-domain_risk([], sure), sure)
    assert float(inverted) == pytest.approx(-1)
    assert abs(float(reversed_one)) < 1e-8


def test_gradients() -> None:
    *sources, target = (part.requires_grad_() for part in logits([3, 5, 4], 1))
    assert torch.autograd.gradcheck(lambda *given: domain_risk(given[:-1], given[-1]), (*sources, target))
    assert torch.autograd.gradcheck(inverted_risk, (target,))


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0, torch.tensor(2.0)])
def test_a_reversed_gradient_leaves_the_value(weight: Tensor | float) -> None:
    x = torch.randn(4, 3, requires_grad=True)
    y = reverse_gradient(x, weight)
    assert torch.equal(y, x)
    slope = torch.randn(4, 3)
    (gradient,) = torch.autograd.grad(y, x, slope)
    torch.testing.assert_close(gradient, -weight * slope)


def test_the_schedule() -> None:
    progress = torch.linspace(0, 1, 11, dtype=torch.float64)
    for gamma in (1.0, 10.0):
        expected = [2 / (1 + math.exp(-gamma * p)) - 1 for p in progress.tolist()]
        torch.testing.assert_close(warm_up(progress, gamma), torch.tensor(expected, dtype=torch.float64))


def test_a_discriminator_has_two_hidden_layers() -> None:
    network = Discriminator(5, 2, hidden=7)
    assert [tuple(p.shape) for p in network.parameters() if p.ndim == 2] == [(7, 5), (7, 7), (2, 7)]
    assert network(torch.zeros(3, 5)).shape == (3, 2)
