"""The critic's gap, its slope penalty and source distilling against loops, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from graphmsda.losses import wasserstein as fast

few = settings(deadline=None, max_examples=20)
sizes = st.integers(1, 7)


def make(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def smooth_critic(seed: int, d: int, hidden: int = 4) -> tuple[Tensor, Tensor]:
    return make(seed, hidden, d), make(seed + 1, hidden)


def score(critic: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    """A critic with one hidden layer of tanh: ``(n, d) -> (n, 1)``."""
    first, second = critic
    return (torch.tanh(x @ first.T) @ second)[:, None]


def slow_gap(source: Tensor, target: Tensor) -> float:
    return sum(float(s) for s in source) / len(source) - sum(float(t) for t in target) / len(target)


def slow_penalty(critic: tuple[Tensor, Tensor], points: Tensor) -> float:
    """The slope of `score` written out: sum over hidden units of second (1 - tanh^2) first."""
    first, second = critic
    total = 0.0
    for x in points.tolist():
        slope = [0.0] * len(x)
        for row, out in zip(first.tolist(), second.tolist(), strict=True):
            bend = 1 - math.tanh(sum(w * v for w, v in zip(row, x, strict=True))) ** 2
            slope = [s + out * bend * w for s, w in zip(slope, row, strict=True)]
        total += (math.sqrt(sum(s * s for s in slope)) - 1) ** 2
    return total / len(points)


@few
@given(st.integers(0, 2**31 - 10), sizes, sizes)
def test_the_gap_is_a_difference_of_means(seed: int, n: int, m: int) -> None:
    source, target = make(seed, n, 1), make(seed + 1, m, 1)
    assert float(fast.critic_gap(source, target)) == pytest.approx(slow_gap(source, target), rel=1e-9, abs=1e-12)


@few
@given(st.integers(0, 2**31 - 10), sizes, st.integers(1, 5))
def test_the_penalty_is_eq_3(seed: int, n: int, d: int) -> None:
    critic, points = smooth_critic(seed, d), make(seed + 2, n, d)
    found = fast.gradient_penalty(lambda x: score(critic, x), points)
    assert float(found.detach()) == pytest.approx(slow_penalty(critic, points), rel=1e-9, abs=1e-12)


def test_gradients() -> None:
    assert torch.autograd.gradcheck(fast.critic_gap, [make(0, 4, 1).requires_grad_(), make(1, 3, 1).requires_grad_()])
    points = make(2, 5, 3)

    def penalty(first: Tensor, second: Tensor) -> Tensor:
        return fast.gradient_penalty(lambda x: score((first, second), x), points)

    assert torch.autograd.gradcheck(penalty, [weight.requires_grad_() for weight in smooth_critic(3, 3)])


def test_no_gradient_flows_to_the_points_and_gradients_may_be_off_outside() -> None:
    points = make(0, 5, 3).requires_grad_()
    critic = smooth_critic(1, 3)
    critic[0].requires_grad_()
    loss = fast.gradient_penalty(lambda x: score(critic, x), points)
    assert torch.autograd.grad(loss, points, allow_unused=True) == (None,)
    with torch.no_grad():
        assert torch.equal(fast.gradient_penalty(lambda x: score(critic, x), points), loss)


def test_a_critic_of_slope_zero_has_a_finite_gradient() -> None:
    critic = nn.Linear(3, 1).double()
    nn.init.zeros_(critic.weight)
    loss = fast.gradient_penalty(critic, make(0, 4, 3))
    assert float(loss.detach()) == 1
    (gradient,) = torch.autograd.grad(loss, critic.weight)
    assert torch.equal(gradient, torch.zeros_like(gradient))


@few
@given(st.integers(0, 2**31 - 10), sizes, sizes, st.integers(1, 4))
def test_points_lie_between_pairs_of_samples(seed: int, n: int, m: int, d: int) -> None:
    source, target = make(seed, n, d), make(seed + 1, m, d)
    points = fast.between(source, target, torch.tensor(seed))
    assert points.shape == (max(n, m), d)
    for i, point in enumerate(points):
        one, other = source[i % n], target[i % m]
        share = float((point - one) @ (other - one) / (other - one).square().sum())
        assert -1e-9 <= share < 1
        torch.testing.assert_close(point, one + share * (other - one))
    assert torch.equal(points, fast.between(source, target, torch.tensor(seed)))


def test_other_seeds_give_other_points_all_along_the_lines() -> None:
    source, target = torch.zeros(1000, 1), torch.ones(1000, 1)
    one, two = (fast.between(source, target, torch.tensor(seed)) for seed in (5, 5 + 2**32))
    assert not torch.equal(one, two)
    assert one.min() < 0.01
    assert one.max() > 0.99
    assert abs(float(one.mean()) - 0.5) < 0.03
    assert abs(float(torch.corrcoef(torch.cat([one, two], 1).T)[0, 1])) < 0.1


def test_each_source_has_a_critic_of_its_own() -> None:
    critics = [nn.Linear(3, 1).double() for _ in range(2)]
    sources, targets = [make(0, 4, 3), make(1, 6, 3)], [make(2, 5, 3), make(3, 5, 3)]
    given = list(zip(critics, sources, targets, strict=True))
    gaps = [slow_gap(critic(x).detach(), critic(y).detach()) for critic, x, y in given]
    assert fast.critic_gaps(critics, sources, targets).tolist() == pytest.approx(gaps)
    slopes = [(float(critic.weight.norm()) - 1) ** 2 for critic in critics]  # the same everywhere
    assert fast.gradient_penalties(critics, sources, targets, torch.tensor(5)).tolist() == pytest.approx(slopes)


@few
@given(st.integers(0, 2**31 - 10), sizes, sizes, st.sampled_from([0.01, 0.3, 0.5, 1.0]))
def test_the_nearest_samples_are_those_of_least_tau(seed: int, n: int, m: int, share: float) -> None:
    source, target = make(seed, n, 1), make(seed + 1, m, 1)
    mean = sum(float(t) for t in target) / m
    taus = sorted((abs(float(s) - mean), row) for row, s in enumerate(source))
    expected = [row for _, row in taus[: max(1, round(share * n))]]
    assert sorted(fast.nearest(source, target, share).tolist()) == sorted(expected)


def test_a_trained_critic_finds_the_distance_of_two_shifted_clouds() -> None:
    """The Wasserstein distance of a cloud and the same cloud moved by v is the length of v."""
    torch.manual_seed(0)
    target = torch.randn(64, 3)
    source = target + torch.tensor([1.2, 0.0, 1.6])
    critic = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 1))
    optimiser = torch.optim.Adam(critic.parameters(), lr=0.02)
    for step in range(150):
        points = fast.between(source, target, torch.tensor(step * 2**32))
        loss = -fast.critic_gap(critic(source), critic(target)) + 10 * fast.gradient_penalty(critic, points)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float(fast.critic_gap(critic(source), critic(target)).detach()) == pytest.approx(2.0, rel=0.15)
