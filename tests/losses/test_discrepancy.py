"""How far classifiers disagree, and how evenly they answer, against loops over samples and classes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphmsda.losses.discrepancy import class_balance, discrepancy


def predictions(rows: int, classes: int, seed: int, sharpness: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (sharpness * torch.randn(rows, classes, generator=generator, dtype=torch.float64)).log_softmax(1)


def slow_discrepancy(one: Tensor, two: Tensor) -> float:
    total = 0.0
    for p, q in zip(one.tolist(), two.tolist(), strict=True):
        total += sum(abs(math.exp(a) - math.exp(b)) for a, b in zip(p, q, strict=True)) / len(p)
    return total / len(one)


def slow_balance(log_probabilities: Tensor) -> float:
    rows, classes = log_probabilities.shape
    total = 0.0
    for k in range(classes):
        mean = sum(math.exp(log_probabilities[q, k]) for q in range(rows)) / rows
        total -= math.log(mean) / classes
    return total


shapes = given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 99))


@settings(deadline=None, max_examples=30)
@shapes
def test_discrepancy_is_eq_1(rows: int, classes: int, seed: int) -> None:
    one, two = predictions(rows, classes, seed), predictions(rows, classes, seed + 100)
    assert float(discrepancy(one, two)) == pytest.approx(slow_discrepancy(one, two), abs=1e-12)
    assert float(discrepancy(one, one)) == 0


@settings(deadline=None, max_examples=30)
@shapes
def test_class_balance_is_the_formula(rows: int, classes: int, seed: int) -> None:
    rows_given = predictions(rows, classes, seed, sharpness=3)
    assert float(class_balance(rows_given)) == pytest.approx(slow_balance(rows_given), abs=1e-12)
    assert float(class_balance(rows_given)) >= math.log(classes) - 1e-12  # least where all classes are predicted alike


def test_the_largest_discrepancy() -> None:
    """Two sure classifiers of different opinion differ by 1 in two classes of K."""
    one, two = torch.eye(4).log()[:1], torch.eye(4).log()[1:2]
    assert float(discrepancy(one, two)) == pytest.approx(2 / 4)


def test_a_class_that_is_never_predicted_has_a_gradient() -> None:
    logits = torch.tensor([[100.0, 0.0], [90.0, 0.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(class_balance(logits.log_softmax(1)), logits)
    assert torch.isfinite(gradient).all()
    assert (gradient[:, 0] > 0).all()


def test_gradients() -> None:
    one, two = (predictions(5, 3, seed).requires_grad_() for seed in (0, 1))
    assert torch.autograd.gradcheck(discrepancy, (one, two))
    assert torch.autograd.gradcheck(class_balance, (one,))
