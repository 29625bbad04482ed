"""The moment distance against a transcription of the printed equation in loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graphmsda.losses.moments import moment_distance, moments


def draw(sizes: list[int], dimensions: int = 3, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, dimensions, generator=generator, dtype=torch.float64) + m for m, n in enumerate(sizes)]


def transcription(domains: list[Tensor], orders: int, centred: bool) -> float:
    """Eq. 1 of Peng et al. (ICCV 2019), number by number; the target is the last domain."""

    def moment(x: Tensor, i: int, k: int) -> float:
        column = [float(row[i]) for row in x]
        mean = sum(column) / len(column)
        if k == 1:
            return mean
        return sum((v - (mean if centred else 0.0)) ** k for v in column) / len(column)

    def distance(a: Tensor, b: Tensor, k: int) -> float:
        return math.sqrt(sum((moment(a, i, k) - moment(b, i, k)) ** 2 for i in range(a.shape[1])))

    *sources, target = domains
    count = len(sources)
    total = 0.0
    for k in range(1, orders + 1):
        total += sum(distance(source, target, k) for source in sources) / count
        pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
        if pairs:
            total += sum(distance(sources[i], sources[j], k) for i, j in pairs) / math.comb(count, 2)
    return total


@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    orders=st.integers(1, 5),
    centred=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_it_is_the_printed_equation(sizes: list[int], orders: int, centred: bool, seed: int) -> None:
    domains = draw(sizes, seed=seed)
    found = moment_distance(domains[:-1], domains[-1], orders=orders, centred=centred)
    assert float(found) == pytest.approx(transcription(domains, orders, centred), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("sizes", [[4, 3], [2, 5, 3, 4]])
def test_gradients(sizes: list[int], centred: bool) -> None:
    domains = [x.requires_grad_() for x in draw(sizes)]
    assert torch.autograd.gradcheck(
        lambda *parts: moment_distance(parts[:-1], parts[-1], orders=3, centred=centred), domains
    )


def test_every_pair_counts_once_and_every_source_alike() -> None:
    domains = draw([5, 5, 5, 5, 5])
    found = moment_distance(domains[:4], domains[4])
    for order in ([3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]):
        torch.testing.assert_close(moment_distance([domains[i] for i in order], domains[4]), found)


def test_equal_domains_have_distance_and_gradient_zero() -> None:
    x = draw([4])[0].requires_grad_()
    distance = moment_distance([x, x.detach()], x.detach())
    assert distance.item() == 0
    assert torch.equal(torch.autograd.grad(distance, x)[0], torch.zeros_like(x))


def test_a_shift_moves_no_moment_about_the_mean() -> None:
    x = draw([6])[0]
    one, two = moments(x, orders=4, centred=True), moments(x + 5, orders=4, centred=True)
    torch.testing.assert_close(two[1:], one[1:])
    torch.testing.assert_close(two[0], one[0] + 5)
    torch.testing.assert_close(one[1], x.var(0, correction=0))
