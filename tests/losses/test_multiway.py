"""Losses of methods with a discriminator for each source, against transcriptions in loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graphmsda.losses.multiway import confusion, perplexity_scores, separation_risk, worst_case


def draw(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@given(source=st.integers(1, 7), target=st.integers(1, 7), seed=st.integers(0, 1000))
def test_separation_and_confusion(source: int, target: int, seed: int) -> None:
    a, b = draw(source, seed=seed), draw(target, seed=seed + 1)
    ours = -sum(math.log(sigmoid(float(x))) for x in a) / source
    theirs = -sum(math.log(1 - sigmoid(float(x))) for x in b) / target
    assert float(separation_risk(a, b)) == pytest.approx((ours + theirs) / 2)
    doubt = -sum((math.log(sigmoid(float(x))) + math.log(1 - sigmoid(float(x)))) / 2 for x in a) / source
    assert float(confusion(a)) == pytest.approx(doubt)
    assert doubt >= math.log(2) - 1e-12


@given(samples=st.integers(1, 5), sources=st.integers(1, 5), seed=st.integers(0, 1000))
def test_perplexity_scores(samples: int, sources: int, seed: int) -> None:
    logits, constants = draw(samples, sources, seed=seed), draw(sources, seed=seed + 1).abs()
    found = perplexity_scores(logits, constants)
    for i in range(samples):
        for j in range(sources):
            expected = -math.log(1 - sigmoid(float(logits[i, j]))) + float(constants[j])
            assert float(found[i, j]) == pytest.approx(expected)


def test_gradients() -> None:
    a, b = draw(4).requires_grad_(), draw(3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(separation_risk, (a, b))
    assert torch.autograd.gradcheck(confusion, (a,))
    assert torch.autograd.gradcheck(perplexity_scores, (draw(3, 2).requires_grad_(), draw(2).requires_grad_()))


@pytest.mark.parametrize("gamma", [None, 0.5, 10.0])
@pytest.mark.parametrize("sources", [1, 2, 5])
def test_worst_case_weights_give_the_gradient_of_the_maximum(gamma: float | None, sources: int) -> None:
    """The gradient of the (smooth) maximum of functions of x is the weighted sum of theirs."""
    x, slopes = draw(3).requires_grad_(), draw(sources, 3, seed=1)

    def objectives(x: Tensor) -> Tensor:
        return torch.sin(slopes * x).sum(1)

    values = objectives(x)
    maximum = values.max() if gamma is None else torch.log(torch.exp(gamma * values).sum()) / gamma
    (expected,) = torch.autograd.grad(maximum, x, retain_graph=True)
    weights = worst_case(values, gamma)
    assert not weights.requires_grad
    assert float(weights.sum()) == pytest.approx(1)
    (found,) = torch.autograd.grad((weights * values).sum(), x)
    torch.testing.assert_close(found, expected)
