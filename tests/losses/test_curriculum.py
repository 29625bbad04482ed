"""Curriculum weights and the weighted domain risk against loops, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphmsda.losses import curriculum as fast

few = settings(deadline=None, max_examples=20)


def make(seed: int, *shape: int) -> Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_weights(scores: Tensor) -> list[float]:
    total = sum(math.exp(s) for s in scores.tolist())
    return [len(scores) * math.exp(s) / total for s in scores.tolist()]


def slow_risk(source: Tensor, target: Tensor, weights: Tensor) -> float:
    def probability(logit: float) -> float:
        return 1 / (1 + math.exp(-logit))

    on_source = [w * math.log(probability(s)) for s, w in zip(source.flatten().tolist(), weights.tolist(), strict=True)]
    on_target = [math.log(1 - probability(t)) for t in target.flatten().tolist()]
    return -sum(on_source) / len(source) - sum(on_target) / len(target)


@few
@given(st.integers(0, 2**31 - 10), st.integers(1, 9))
def test_weights_are_one_on_average(seed: int, n: int) -> None:
    scores = make(seed, n)
    weights = fast.curriculum_weights(scores)
    assert weights.tolist() == pytest.approx(slow_weights(scores))
    assert float(weights.mean()) == pytest.approx(1)


@few
@given(st.integers(0, 2**31 - 10), st.integers(1, 9), st.integers(1, 9))
def test_the_risk_is_the_printed_one(seed: int, n: int, m: int) -> None:
    source, target, weights = make(seed, n, 1), make(seed + 1, m, 1), make(seed + 2, n).exp()
    found = float(fast.weighted_domain_risk(source, target, weights))
    assert found == pytest.approx(slow_risk(source, target, weights), rel=1e-9)


def test_gradients() -> None:
    given = [make(0, 4, 1).requires_grad_(), make(1, 3, 1).requires_grad_(), make(2, 4).exp().requires_grad_()]
    assert torch.autograd.gradcheck(fast.weighted_domain_risk, given)
    assert torch.autograd.gradcheck(fast.curriculum_weights, [make(3, 5).requires_grad_()])


def test_certain_discriminators_give_finite_risks() -> None:
    found = fast.weighted_domain_risk(torch.tensor([[-1e4], [1e4]]), torch.tensor([[1e4]]), torch.ones(2))
    assert float(found) == pytest.approx(1.5e4)
