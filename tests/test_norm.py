"""One pass over several domains is the same as one batch norm for each of them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from graphmsda.backbones import build_backbone
from graphmsda.engine.optim import AveragedState, averaging_weight
from graphmsda.norm import NOWHERE, DomainBatchNorm, Layout, convert_norms

CHANNELS = 4


def lay(layout: Layout, sizes: tuple[int, ...], domains: tuple[int, ...] | None = None) -> None:
    layout.sizes = layout.totals = sizes
    layout.domains = tuple(range(len(sizes))) if domains is None else domains


def new(domains: int = 3, **options: float) -> DomainBatchNorm:
    norm = DomainBatchNorm(CHANNELS, domains, Layout(), **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(CHANNELS, generator=generator))
        norm.bias.copy_(torch.randn(CHANNELS, generator=generator))
    return norm


def rows(count: int, images: bool, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn((count, CHANNELS, *((3, 5) if images else ())), generator=generator) + seed


def axes(images: bool) -> list[int]:
    return [0, 2, 3] if images else [0]


both_kinds = pytest.mark.parametrize("images", [False, True], ids=["features", "images"])


@both_kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_pass_equals_one_norm_per_domain(images: bool, dtype: torch.dtype) -> None:
    norm = new().to(dtype)
    parts = [rows(n, images, seed).to(dtype) for seed, n in enumerate((7, 2, 12))]
    upstream = torch.randn(torch.cat(parts).shape, generator=torch.Generator().manual_seed(5)).to(dtype)
    together = torch.cat(parts).requires_grad_()
    lay(norm.layout, (7, 2, 12))
    output = norm(together)
    output.backward(upstream)

    outputs, slopes, weight, bias = [], [], torch.zeros(CHANNELS).to(dtype), torch.zeros(CHANNELS).to(dtype)
    for part, gradient in zip(parts, torch.split(upstream, (7, 2, 12)), strict=True):
        alone = (nn.BatchNorm2d if images else nn.BatchNorm1d)(CHANNELS, dtype=dtype)
        alone.load_state_dict({"weight": norm.weight, "bias": norm.bias}, strict=False)
        x = part.clone().requires_grad_()
        y = alone(x)
        y.backward(gradient)
        outputs.append(y)
        slopes.append(x.grad)
        weight += alone.weight.grad
        bias += alone.bias.grad
    close = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(output, torch.cat(outputs), **close)
    torch.testing.assert_close(together.grad, torch.cat(slopes), **close)
    torch.testing.assert_close(norm.weight.grad, weight, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(norm.bias.grad, bias, rtol=1e-6, atol=1e-5)


@both_kinds
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_even_domains_all_at_once_are_the_same(images: bool, dtype: torch.dtype) -> None:
    norms = new(domains=4).to(dtype), new(domains=4).to(dtype)
    x = torch.cat([rows(6, images, seed) for seed in range(3)]).to(dtype)
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(5)).to(dtype)
    outputs, slopes = [], []
    for norm in norms:
        lay(norm.layout, (6, 6, 6), (1, 2, 3))
        leaf = x.clone().requires_grad_()
        outputs.append(norm(leaf) if norm is norms[0] else norm.forward_even(leaf))
        outputs[-1].backward(upstream)
        slopes.append(leaf.grad)
    close = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(outputs[1], outputs[0], **close)
    torch.testing.assert_close(slopes[1], slopes[0], **close)
    for (name, one), two in zip(norms[0].named_parameters(), norms[1].parameters(), strict=True):
        torch.testing.assert_close(two.grad, one.grad, rtol=1e-6, atol=1e-5, msg=name)
    torch.testing.assert_close(norms[1].state_dict(), norms[0].state_dict(), **close)


@both_kinds
@pytest.mark.parametrize("even", [True, False])
def test_a_chunk_of_no_domain_leaves_no_trace(images: bool, even: bool) -> None:
    """It is normalised by its own statistics, and changes neither running ones nor its neighbours."""
    alone, beside = new(domains=3), new(domains=3)
    x = torch.cat([rows(6, images, seed) for seed in range(3)])
    lay(alone.layout, (6, 6), (1, 2))
    lay(beside.layout, (6, 6, 6), (1, 2, NOWHERE))
    assert beside.layout.even
    expected = alone(x[:12])
    found = beside.forward_even(x) if even else beside(x)
    close = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(found[:12], expected, **close)
    torch.testing.assert_close(beside.state_dict(), alone.state_dict(), **close)
    other = new(domains=3)
    lay(other.layout, (6,), (0,))
    torch.testing.assert_close(found[12:], other(x[12:]), **close)


def test_dropout_is_left_out_where_nothing_may_be_uncertain() -> None:
    backbone = build_backbone("small", (3, 16, 16), 2, dropout=0.9)
    x = torch.rand(8, 3, 16, 16)
    twice = [backbone(x, (8,), (0,), certain=True) for _ in range(2)]
    torch.testing.assert_close(*twice)
    assert not torch.equal(backbone(x, (8,), (0,)), backbone(x, (8,), (0,)))


@both_kinds
def test_the_first_batch_counts_in_full(images: bool) -> None:
    norm = new()
    x = rows(9, images, seed=3)
    lay(norm.layout, (9,), (1,))
    norm(x)
    mean, var = norm.statistics(1)
    torch.testing.assert_close(mean, x.mean(axes(images)))
    torch.testing.assert_close(var, x.var(axes(images), unbiased=True))


def test_running_statistics_are_a_debiased_moving_average() -> None:
    norm = new(momentum=0.3).double()
    mean = var = torch.zeros(CHANNELS, dtype=torch.float64)
    total = 0.0
    for seed in range(5):
        x = rows(6, False, seed).double()
        lay(norm.layout, (6,), (2,))
        norm(x)
        mean, var, total = 0.7 * mean + 0.3 * x.mean(0), 0.7 * var + 0.3 * x.var(0), 0.7 * total + 0.3
        torch.testing.assert_close(norm.statistics(2), (mean / total, var / total))


@pytest.mark.parametrize("steps", [1, 6, 40])
def test_averaging_over_steps_keeps_statistics_unbiased(steps: int) -> None:
    """The averaged state of a short run reads data that never changed as that data."""
    norm = new().double()
    average = AveragedState(norm)
    x = rows(9, False, seed=3).double()
    lay(norm.layout, (9,), (1,))
    for step in range(steps):
        norm(x)
        average.update(norm, averaging_weight(0.99, step + 1))
    norm.load_state_dict(average.state)
    torch.testing.assert_close(norm.statistics(1), (x.mean(0), x.var(0)))


@both_kinds
def test_evaluation_reads_each_domain_with_its_own_statistics(images: bool) -> None:
    norm = new()
    parts = [rows(8, images, seed) for seed in range(3)]
    lay(norm.layout, (8, 8, 8))
    norm(torch.cat(parts))
    before = copy.deepcopy(norm.state_dict())
    norm.eval()
    lay(norm.layout, (3, 5), (2, 0))
    x = torch.cat([rows(3, images, 7), rows(5, images, 8)])
    output = norm(x)
    shape = [1, -1, 1, 1] if images else [1, -1]
    for some, domain in ((slice(0, 3), 2), (slice(3, 8), 0)):
        mean = parts[domain].mean(axes(images)).view(shape)
        var = parts[domain].var(axes(images)).view(shape)
        expected = (x[some] - mean) / (var + norm.eps).sqrt() * norm.weight.view(shape) + norm.bias.view(shape)
        torch.testing.assert_close(output[some], expected, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(before[key], value) for key, value in norm.state_dict().items())


def test_a_domain_never_seen_borrows_the_average_of_those_seen() -> None:
    norm = new(domains=4)
    one, two = rows(8, False, 1), rows(6, False, 2)
    lay(norm.layout, (8, 6), (0, 2))
    norm(torch.cat([one, two]))
    for unseen in (1, 3):
        mean, var = norm.statistics(unseen)
        torch.testing.assert_close(mean, (one.mean(0) + two.mean(0)) / 2)
        torch.testing.assert_close(var, (one.var(0) + two.var(0)) / 2)


def test_before_anything_is_seen_input_passes_unchanged() -> None:
    norm = DomainBatchNorm(CHANNELS, 2, Layout(), eps=1e-12).eval()
    lay(norm.layout, (5,), (1,))
    x = rows(5, False)
    torch.testing.assert_close(norm(x), x)


def test_before_anything_is_seen_pretrained_statistics_are_used() -> None:
    old = nn.BatchNorm1d(CHANNELS, momentum=None)
    for seed in range(3):
        old(rows(8, False, seed))
    nn.init.normal_(old.weight, generator=torch.Generator().manual_seed(0))
    layout = Layout()
    norm = convert_norms(copy.deepcopy(old), 3, layout).eval()
    lay(layout, (4, 4), (0, 2))
    x = rows(8, False, 9)
    torch.testing.assert_close(norm(x), old.eval()(x))
    norm.train()
    lay(layout, (8,), (0,))
    norm(x)
    torch.testing.assert_close(norm.statistics(2)[0], x.mean(0))  # from now on, not what was pretrained


@both_kinds
def test_one_sample_is_read_with_running_statistics_and_leaves_them(images: bool) -> None:
    norm = new()
    x = rows(8, images, 1)
    lay(norm.layout, (8,), (0,))
    norm(x)
    before = copy.deepcopy(norm.state_dict())
    lonely = rows(1, images, 4)
    lay(norm.layout, (1,), (0,))
    output = norm(lonely)
    assert all(torch.equal(before[key], value) for key, value in norm.state_dict().items())
    norm.eval()
    assert torch.equal(output, norm(lonely))


@both_kinds
@pytest.mark.parametrize("training", [True, False])
def test_an_empty_chunk_changes_nothing(images: bool, training: bool) -> None:
    norm, other = new().train(training), new().train(training)
    x = rows(6, images).requires_grad_()
    lay(norm.layout, (4, 0, 2))
    lay(other.layout, (4, 2), (0, 2))
    output = norm(x)
    assert torch.equal(output, other(x))
    assert norm.count.tolist() == ([1, 0, 1] if training else [0, 0, 0])
    output.sum().backward()
    assert torch.isfinite(x.grad).all()
    lay(norm.layout, (0,), (1,))
    assert norm(x[:0]).shape == x[:0].shape


def test_resnet_is_converted_whole() -> None:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    old = resnet18(weights=None)
    for module in old.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    layout = Layout()
    body = convert_norms(copy.deepcopy(old), 3, layout)
    new_norms = {name: m for name, m in body.named_modules() if isinstance(m, DomainBatchNorm)}
    old_norms = {name: m for name, m in old.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert new_norms.keys() == old_norms.keys()
    assert len(new_norms) == 20
    assert not any(isinstance(m, nn.BatchNorm2d) for m in body.modules())
    for name, norm in new_norms.items():
        assert norm.layout is layout
        assert torch.equal(norm.weight, old_norms[name].weight)
        assert torch.equal(norm.bias, old_norms[name].bias)
        assert torch.equal(norm.initial_mean, old_norms[name].running_mean)
        assert torch.equal(norm.initial_var, old_norms[name].running_var)
        assert norm.running_mean.shape == (3, old_norms[name].num_features)
        assert norm.count.tolist() == [0, 0, 0]
    lay(layout, (1, 1), (0, 2))
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(body.eval()(x), old.eval()(x), rtol=1e-4, atol=1e-4)


def test_half_precision_inside_autocast() -> None:
    norm = new()
    x = rows(10, True)
    lay(norm.layout, (6, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = norm(x.bfloat16())
    exact = new()
    lay(exact.layout, (6, 4))
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), exact(x), rtol=0.05, atol=0.05)
    assert norm.running_mean.dtype == torch.float32
    torch.testing.assert_close(norm.running_mean, exact.running_mean, rtol=0.02, atol=0.02)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert norm.eval()(x.bfloat16()).dtype == torch.bfloat16
