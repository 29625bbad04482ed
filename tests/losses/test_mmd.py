"""Discrepancies between samples against loops over pairs of samples, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphmsda.losses import mmd as fast

few = settings(deadline=None, max_examples=20)
seeds = st.integers(0, 2**31 - 10)
sizes = st.tuples(st.integers(2, 6), st.integers(2, 6), st.integers(1, 4))


def make(seed: int, *shape: int, shift: float = 0.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return shift + torch.randn(shape, generator=generator, dtype=torch.float64)


# --- the slow transcription -------------------------------------------------------------------------------------------


def distance(a: Tensor, b: Tensor) -> Tensor:
    total = a.new_zeros(())
    for left, right in zip(a, b, strict=True):
        total = total + (left - right) ** 2
    return total


def mean_distance(rows: list[Tensor]) -> float:
    found = [float(distance(a.detach(), b.detach())) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    return sum(found) / len(found)


def kernel(a: Tensor, b: Tensor, gamma: float, count: int, factor: float) -> Tensor:
    total = a.new_zeros(())
    for u in range(count):
        total = total + torch.exp(-distance(a, b) / (gamma * factor ** (u - count // 2)))
    return total / count


def estimate(k: list[list[Tensor]], n: int) -> Tensor:
    """The unbiased estimate from a table of kernels, the first n rows of which are the one batch."""
    m = len(k) - n
    total = k[0][0].new_zeros(())
    for i in range(n + m):
        for j in range(n + m):
            if i != j and i < n and j < n:
                total = total + k[i][j] / (n * (n - 1))
            elif i != j and i >= n and j >= n:
                total = total + k[i][j] / (m * (m - 1))
            elif i != j:
                total = total - k[i][j] / (n * m)
    return total


def slow_joint(
    sources: list[Tensor], targets: list[Tensor], counts: list[int], gammas: list[float], f: float
) -> Tensor:
    samples = [[*source, *target] for source, target in zip(sources, targets, strict=True)]
    gammas = [gamma or mean_distance(rows) for gamma, rows in zip(gammas, samples, strict=True)]
    table = []
    for i in range(len(samples[0])):
        row = []
        for j in range(len(samples[0])):
            product = sources[0].new_ones(())
            for rows, count, gamma in zip(samples, counts, gammas, strict=True):
                product = product * kernel(rows[i], rows[j], gamma, count, f)
            row.append(product)
        table.append(row)
    return estimate(table, len(sources[0]))


def slow_tensor(sources: list[Tensor], targets: list[Tensor]) -> Tensor:
    layers = [[*source, *target] for source, target in zip(sources, targets, strict=True)]
    fused = []
    for parts in zip(*layers, strict=True):
        product = parts[0].new_ones(1)
        for part in parts:
            product = torch.stack([a * b for a in product for b in part])
        fused.append(product)
    gamma = mean_distance(fused)
    return estimate([[kernel(a, b, gamma, 1, 2.0) for b in fused] for a in fused], len(sources[0]))


def assert_same(mine: Tensor, slow: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(mine, slow, rtol=1e-9, atol=1e-11)
    for a, b in zip(torch.autograd.grad(mine, inputs), torch.autograd.grad(slow, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


# --- values and gradients ---------------------------------------------------------------------------------------------


@few
@given(seeds, sizes, st.integers(1, 5), st.sampled_from([1.5, 2.0]))
def test_mmd_is_the_printed_one(seed: int, size: tuple[int, int, int], kernels: int, factor: float) -> None:
    n, m, d = size
    source, target = make(seed, n, d).requires_grad_(), make(seed + 1, m, d, shift=0.5).requires_grad_()
    mine = fast.mmd(source, target, kernels=kernels, factor=factor)
    assert_same(mine, slow_joint([source], [target], [kernels], [0.0], factor), [source, target])


@few
@given(seeds, sizes, st.sampled_from([0.0, 1.68]))
def test_joint_mmd_multiplies_the_layers_kernels(seed: int, size: tuple[int, int, int], bandwidth: float) -> None:
    n, m, d = size
    sources = [make(seed, n, d).requires_grad_(), make(seed + 1, n, 3).requires_grad_()]
    targets = [make(seed + 2, m, d).requires_grad_(), make(seed + 3, m, 3, shift=1.0).requires_grad_()]
    mine = fast.joint_mmd(sources, targets, kernels=[5, 1], bandwidths=[0.0, bandwidth])
    assert_same(mine, slow_joint(sources, targets, [5, 1], [0.0, bandwidth], 2.0), [*sources, *targets])


@few
@given(seeds, sizes, st.integers(1, 3))
def test_tensor_mmd_is_that_of_the_tensor_products(seed: int, size: tuple[int, int, int], layers: int) -> None:
    n, m, d = size
    sources = [make(seed + i, n, d + i).requires_grad_() for i in range(layers)]
    targets = [make(seed + 5 + i, m, d + i, shift=0.5).requires_grad_() for i in range(layers)]
    mine = fast.tensor_mmd(sources, targets)
    assert_same(mine, slow_tensor(sources, targets), [*sources, *targets])


@pytest.mark.parametrize(("n", "m"), [(2, 2), (4, 3), (2, 6)])
def test_gradients(n: int, m: int) -> None:
    """With bandwidths given: those taken of the batch are constants to autograd, which finite differences are not."""
    inputs = [make(i, rows, 3).requires_grad_() for i, rows in enumerate((n, n, m, m))]

    def joint(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        return fast.joint_mmd([a, b], [c, d], kernels=[3, 1], bandwidths=[2.0, 1.68])

    def fused(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        distances = fast.fused_distances([torch.cat([a, c]), torch.cat([b, d])])
        return fast.unbiased_mmd(fast.gaussian_kernels(distances, count=2, bandwidth=4.0), n)

    assert torch.autograd.gradcheck(joint, inputs)
    assert torch.autograd.gradcheck(fused, inputs)


# --- what it is for ---------------------------------------------------------------------------------------------------


def test_it_is_unbiased_and_may_be_negative() -> None:
    """Of one distribution its mean is 0, which the estimate that compares samples with themselves misses by far."""
    bandwidths = {"kernels": [1], "bandwidths": [2.0]}
    found, biased = [], []
    for seed in range(400):
        one, other = make(2 * seed, 8, 2), make(2 * seed + 1, 5, 2)
        found.append(float(fast.joint_mmd([one], [other], **bandwidths)))
        both = torch.cat([one, other])
        k = torch.exp(-(torch.cdist(both, both) ** 2) / 2)
        biased.append(float(k[:8, :8].mean() + k[8:, 8:].mean() - 2 * k[:8, 8:].mean()))
    error = torch.tensor(found).std() / 400**0.5
    mean = sum(found) / 400
    assert abs(mean) < 3 * error
    assert min(found) < 0
    assert min(biased) > 0
    assert sum(biased) / 400 > 20 * error


def test_it_grows_with_the_shift_and_not_with_the_scale() -> None:
    one = make(0, 60, 4)
    near, far = (make(1, 40, 4, shift=s) for s in (0.3, 2.0))
    assert fast.mmd(one, near) < fast.mmd(one, far)
    torch.testing.assert_close(fast.mmd(1000 * one, 1000 * far), fast.mmd(one, far))
    torch.testing.assert_close(fast.mmd(far, one), fast.mmd(one, far))


def test_joint_sees_what_marginals_hide() -> None:
    """Two layers, each of one distribution in both domains, that hang together in one domain only."""
    x = make(0, 300, 1)
    one, other = [x[:150], x[:150]], [x[150:], x[150:][torch.randperm(150, generator=torch.Generator().manual_seed(0))]]
    apart = [float(fast.mmd(a, b)) for a, b in zip(one, other, strict=True)]
    together = float(fast.joint_mmd(one, other, kernels=[5, 5]))
    assert max(map(abs, apart)) < 0.01
    assert together > 0.02


@pytest.mark.parametrize(("n", "m"), [(1, 4), (4, 1), (1, 1), (0, 3), (3, 0)])
def test_fewer_than_two_samples_say_nothing(n: int, m: int) -> None:
    source, target = make(0, n, 3).requires_grad_(), make(1, m, 3).requires_grad_()
    for loss in (fast.mmd(source, target), fast.tensor_mmd([source, source], [target, target])):
        assert loss == 0
        assert not loss.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("value", [0.0, 3.0, 1e-18])
def test_samples_that_coincide_are_finite(dtype: torch.dtype, value: float) -> None:
    source = torch.full((3, 4), value, dtype=dtype, requires_grad=True)
    target = torch.full((5, 4), value, dtype=dtype, requires_grad=True)
    for loss in (fast.mmd(source, target), fast.tensor_mmd([source, source], [target, target])):
        gradients = torch.autograd.grad(loss, [source, target])
        assert math.isclose(float(loss.detach()), 0, abs_tol=1e-6)
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_far_off_samples_keep_their_distances() -> None:
    """What all samples share is taken out before distances are, so float32 is enough far from the origin."""
    one, other = make(0, 20, 4), make(1, 30, 4, shift=1.0)
    mine = fast.mmd((one + 1000).float(), (other + 1000).float())
    torch.testing.assert_close(mine.double(), fast.mmd(one, other), rtol=1e-3, atol=0)
