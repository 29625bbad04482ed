"""A convolution of pictures, norm, ReLU and pooling in one: GPU kernels against PyTorch's operations.

Run as a script, with TRITON_INTERPRET=1, this file checks the kernels on a CPU, in Triton's interpreter.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmsda.backbones import three_conv_two_fc
from graphmsda.engine import accelerate
from graphmsda.norm import Layout, convert_norms
from graphmsda.patch_conv import PatchConv2d, patch_factors
from graphmsda.pooled_norm import PooledNorm, pool_norms

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
EPS = 1e-3


def plain(x: Tensor, kernel: Tensor, weight: Tensor, bias: Tensor, domains: int) -> Tensor:
    """The four operations one by one, each domain with statistics of its own."""
    y = F.conv2d(x, kernel, padding=kernel.shape[-1] // 2)
    parts = [F.batch_norm(part, None, None, weight, bias, training=True, eps=EPS) for part in y.chunk(domains)]
    return F.max_pool2d(F.relu(torch.cat(parts)), 3, 2, 1)


@pytest.mark.usefixtures("triton_interpreter")
def test_the_kernels_in_the_interpreter() -> None:
    given = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-W", "ignore", __file__], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check_in_the_interpreter() -> None:
    from graphmsda import patch_conv_triton, patch_pool_triton

    torch.manual_seed(0)
    patch_conv_triton.PIXELS, patch_conv_triton.PROGRAMS = 16, 4
    for domains, each, side, size in ((2, 3, 8, 5), (1, 2, 16, 3), (3, 1, 8, 5)):
        channels = 3 if size == 5 else 4  # runs of 15 numbers, or of 12
        x = torch.randn(domains * each, channels, side, 2 * side)
        kernel = torch.randn(16, channels, size, size, requires_grad=True)
        weight, bias = torch.randn(16, requires_grad=True), torch.randn(16, requires_grad=True)
        pixels, rows, _, run = patch_factors(x, kernel)
        assert run == patch_conv_triton.RUN
        y, means, within = patch_conv_triton.convolve_measured(pixels, rows.detach(), side, 2 * side)
        torch.testing.assert_close(y, patch_conv_triton.convolve(pixels, rows, side, 2 * side).detach())
        var, mean = torch.var_mean(y.view(-1, 16, 16), 1, correction=0)
        torch.testing.assert_close((means, within), (mean, var))
        chunks = y.view(domains, -1, 16)
        var, mean = torch.var_mean(chunks, 1, correction=0)
        laid_out = y.view(len(x), side, 2 * side, 16).permute(0, 3, 1, 2)
        given = pixels, rows, laid_out, mean, torch.rsqrt(var + EPS), weight, bias
        found = patch_pool_triton.pooled_patches(*given)[0]
        wanted = plain(x, kernel, weight, bias, domains)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        grad = torch.randn_like(wanted)
        slopes = [torch.autograd.grad(output, (kernel, weight, bias), grad) for output in (found, wanted)]
        torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-3)
        checks = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(patch_pool_triton.pooled_patches, given, test_utils=checks)
        torch.library.opcheck(
            patch_conv_triton.convolve_measured, (pixels, rows.detach(), side, 2 * side), test_utils=checks[::2]
        )


def check_compiled_in_the_interpreter() -> None:
    """A network's first layers, compiled, against exact arithmetic; running statistics among them.

    In float32, since the interpreter's products of bfloat16 are those of their bits.
    """
    from graphmsda import patch_conv_triton, patch_pool_triton

    patch_conv_triton.PIXELS = 16
    patch_pool_triton.takes = lambda *_: True
    torch.set_autocast_dtype("cuda", torch.float32)
    ours, exact, x, grad = layers_and_inputs(16, "cpu")
    ours[0].takes_patches = lambda x: True
    assert ours[0](x) is x
    found = torch.compile(ours, backend="aot_eager", fullgraph=True)(x)
    assert_close_to_exact(ours, found, exact, x, grad, 1e-5)
    y = F.conv2d(x, ours[0].weight.detach(), padding=2).view(5, -1, 64, 16, 16)
    torch.testing.assert_close(ours[1].running_mean, 0.1 * y.mean((1, 3, 4)))
    torch.testing.assert_close(ours[1].running_var, 0.1 * y.transpose(1, 2).flatten(2).var(2))
    # The convolution's weights are reached through the norm: whoever swaps them, as the engine does, must be heard.
    other = torch.randn_like(ours[0].weight, requires_grad=True)

    def swapped(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(ours, weights, (x,))

    found = accelerate.compiled(swapped, "aot_eager")({"0.weight": other}, x)
    kernel = other.detach().double().requires_grad_()
    wanted = plain(x.double(), kernel, exact[1], exact[2], 5)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-3)
    slopes = [torch.autograd.grad(z, w, grad.to(z.dtype))[0] for z, w in ((found, other), (wanted, kernel))]
    assert float((slopes[0].double() - slopes[1]).norm() / slopes[1].norm()) < 1e-4


def layers_and_inputs(side: int, device: str, each: int = 2) -> tuple[nn.Sequential, list[Tensor], Tensor, Tensor]:
    """Return the layers in question, their weights in float64, pictures of five domains and a gradient."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        PatchConv2d(3, 64, 5, padding=2, bias=False), nn.BatchNorm2d(64, eps=EPS), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    )
    nn.init.normal_(layers[1].weight)
    nn.init.normal_(layers[1].bias)
    layout = Layout((each,) * 5, tuple(range(5)), (each,) * 5)
    ours = pool_norms(convert_norms(layers, 5, layout)).to(device, memory_format=torch.channels_last)
    exact = [parameter.detach().double().requires_grad_() for parameter in ours.parameters()]
    x = torch.rand(5 * each, 3, side, side, device=device).contiguous(memory_format=torch.channels_last)
    return ours, exact, x, torch.randn(5 * each, 64, side // 2, side // 2, device=device)


def assert_close_to_exact(
    ours: nn.Module, found: Tensor, exact: list[Tensor], x: Tensor, grad: Tensor, tolerance: float
) -> None:
    """Compare output and gradients with those of float64."""
    wanted = plain(x.double(), *exact, 5)
    slopes = torch.autograd.grad(found, list(ours.parameters()), grad.to(found.dtype))
    assert float((found.double() - wanted).norm() / wanted.norm()) < tolerance
    for slope, right in zip(slopes, torch.autograd.grad(wanted, exact, grad.double()), strict=True):
        assert float((slope.double() - right).norm() / right.norm()) < 5 * tolerance


def network() -> nn.Module:
    torch.manual_seed(0)
    return three_conv_two_fc((3, 16, 16), 0.0)[0]


def test_layers_know_each_other_and_names_stay() -> None:
    layout = Layout((4, 4), (0, 1), (4, 4))
    apart = convert_norms(network(), 2, layout)
    names = list(apart.state_dict())
    together = pool_norms(copy.deepcopy(apart))
    for module in together.modules():
        if hasattr(module, "layout"):
            module.layout = layout  # which is what a copy does not share
    assert isinstance(together[0], PatchConv2d)
    assert isinstance(together[1], PooledNorm)
    assert (together[0].after, together[1].before) == ((together[1],), (together[0],))
    assert together[5].before == ()  # its convolution is none of pictures
    assert list(together.state_dict()) == names
    assert len(list(together.modules())) == len(list(apart.modules()))
    x = torch.randn(8, 3, 16, 16)
    torch.testing.assert_close(together(x), apart(x), rtol=0, atol=0)
    twin = copy.deepcopy(together)
    assert (twin[0].after, twin[1].before) == ((twin[1],), (twin[0],))
    assert twin[0] is not together[0]


@gpu
@pytest.mark.parametrize("side", [32, 16, 18])
def test_compiled_in_mixed_precision(side: int) -> None:
    from graphmsda import patch_pool_triton

    ours, exact, x, grad = layers_and_inputs(side, "cuda", each=128)

    @torch.compile(fullgraph=True)
    def pooled() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return ours(x)

    assert patch_pool_triton.takes(5, 16, 64, torch.bfloat16, side, side) == (side != 18)
    assert_close_to_exact(ours, pooled(), exact, x, grad, 0.01)


if __name__ == "__main__":
    check_in_the_interpreter()
    check_compiled_in_the_interpreter()
