"""The CORAL loss against loops over samples and dimensions, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphmsda.losses import covariance as fast

few = settings(deadline=None, max_examples=20)


def make(seed: int, *shape: int) -> Tensor:
    return 2 + torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_covariance(x: Tensor) -> list[list[float]]:
    """Eqs. 2 and 3 as printed."""
    n, d = x.shape
    rows = x.tolist()
    sums = [sum(row[a] for row in rows) for a in range(d)]
    return [
        [(sum(row[a] * row[b] for row in rows) - sums[a] * sums[b] / n) / (n - 1) for b in range(d)] for a in range(d)
    ]


def slow_coral(source: Tensor, target: Tensor) -> float:
    d = source.shape[1]
    one, other = slow_covariance(source), slow_covariance(target)
    return sum((one[a][b] - other[a][b]) ** 2 for a in range(d) for b in range(d)) / (4 * d**2)


@few
@given(st.integers(0, 2**31 - 10), st.integers(2, 9), st.integers(2, 9), st.integers(1, 5))
def test_coral_is_eq_1(seed: int, n: int, m: int, d: int) -> None:
    source, target = make(seed, n, d), 3 * make(seed + 1, m, d)
    assert float(fast.coral(source, target)) == pytest.approx(slow_coral(source, target), rel=1e-9, abs=1e-12)


def test_covariance_is_the_usual_one() -> None:
    x = make(0, 7, 4)
    torch.testing.assert_close(fast.covariance(x), torch.cov(x.T))


@pytest.mark.parametrize(("n", "m"), [(2, 2), (5, 3)])
def test_gradients(n: int, m: int) -> None:
    assert torch.autograd.gradcheck(fast.coral, [make(0, n, 3).requires_grad_(), make(1, m, 3).requires_grad_()])


def test_it_sees_the_spread_and_not_the_place() -> None:
    x = make(0, 30, 4)
    assert fast.coral(x, x + 5) < 1e-20
    assert fast.coral(x, 2 * x) > 0.1


@pytest.mark.parametrize(("n", "m"), [(1, 4), (4, 1), (0, 3)])
def test_fewer_than_two_samples_say_nothing(n: int, m: int) -> None:
    loss = fast.coral(make(0, n, 3), make(1, m, 3))
    assert loss == 0


def test_a_large_mean_does_no_harm() -> None:
    source, target = make(0, 20, 4), 2 * make(1, 30, 4)
    mine = fast.coral((source + 1000).float(), (target + 1000).float())
    torch.testing.assert_close(mine.double(), fast.coral(source, target), rtol=1e-3, atol=0)
