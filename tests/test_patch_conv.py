"""A convolution by patches is the convolution that PyTorch has."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from graphmsda import patch_conv
from graphmsda.patch_conv import PatchConv2d, patch_product

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.mark.parametrize(
    ("count", "channels", "height", "width", "size"),
    [(4, 3, 32, 32, 5), (3, 3, 7, 9, 5), (2, 1, 5, 4, 3), (1, 4, 6, 3, 7), (2, 3, 4, 4, 1), (64, 3, 2, 2, 3)],
)
def test_patches_give_the_convolution_and_its_gradient(
    count: int, channels: int, height: int, width: int, size: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, channels, height, width, generator=generator, dtype=torch.float64)
    weight = torch.randn(6, channels, size, size, generator=generator, dtype=torch.float64, requires_grad=True)
    grad = torch.randn(count, 6, height, width, generator=generator, dtype=torch.float64)
    wanted = F.conv2d(x, weight, padding=size // 2)
    found = patch_product(x, weight)
    torch.testing.assert_close(found, wanted)
    assert found.is_contiguous(memory_format=torch.channels_last)
    slopes = [torch.autograd.grad(y, weight, grad)[0] for y in (found, wanted)]
    torch.testing.assert_close(*slopes)


def test_a_picture_in_any_layout() -> None:
    x = torch.randn(4, 3, 6, 8, dtype=torch.float64)
    weight = torch.randn(5, 3, 5, 5, dtype=torch.float64)
    last = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(patch_product(last, weight), F.conv2d(x, weight, padding=2))


def test_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    weight = torch.randn(5, 3, 5, 5, dtype=torch.float64, requires_grad=True)
    slopes = []
    for pieces in (1, 8, 64, 7):  # the last does not divide the number of patches
        monkeypatch.setattr(patch_conv, "PIECES", pieces)
        slopes += torch.autograd.grad(patch_product(x, weight).square().sum(), weight)
    for slope in slopes[1:]:
        torch.testing.assert_close(slope, slopes[0])


def test_on_a_cpu_it_is_an_ordinary_convolution() -> None:
    torch.manual_seed(0)
    ours = PatchConv2d(3, 4, 5, padding=2, bias=False)
    plain = nn.Conv2d(3, 4, 5, padding=2, bias=False)
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 9, 9, requires_grad=True)
    assert torch.equal(ours(x), plain(x))


@pytest.mark.usefixtures("triton_interpreter")
def test_the_kernel_in_the_interpreter() -> None:
    given = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-W", "ignore", __file__], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def check_in_the_interpreter() -> None:
    from graphmsda import patch_conv_triton as kernels

    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randint(-4, 5, shape, generator=generator) / 4

    kernels.PIXELS, kernels.PROGRAMS = 16, 3
    for count, height, width, channels, size in ((2, 5, 7, 3, 5), (3, 8, 4, 3, 3), (1, 1, 3, 3, 5)):
        pixels = draw(count, height + size - 1, width + size + 2, channels)
        rows, grad = draw(16, size * kernels.RUN).requires_grad_(), draw(count * height * width, 16)
        image, down, right, _ = pixels.stride()
        patches = pixels.as_strided((count, height, width, size, kernels.RUN), (image, down, right, down, 1))
        wanted = patches.reshape(-1, size * kernels.RUN) @ rows.T
        found = kernels.convolve(pixels, rows, height, width)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*(torch.autograd.grad(y, rows, grad)[0] for y in (found, wanted)))
        torch.library.opcheck(
            kernels.convolve,
            (pixels, rows, height, width),
            test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
        )
        checks = {"test_utils": ("test_schema", "test_faketensor")}
        torch.library.opcheck(kernels.convolve_sums, (pixels, grad, height, width, size), **checks)


@gpu
@pytest.mark.parametrize("low", [False, True], ids=["weights", "copies"])
def test_compiled_in_mixed_precision(low: bool) -> None:
    torch.manual_seed(0)
    ours = PatchConv2d(3, 64, 5, padding=2, bias=False).cuda()
    if low:
        ours.bfloat16()
    x = torch.rand(640, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    grad = torch.randn(640, 64, 32, 32, device="cuda").to(torch.bfloat16)

    @torch.compile(fullgraph=True)
    def convolve() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return ours(x)

    found = convolve()
    (slope,) = torch.autograd.grad(found, ours.weight, grad)
    exact = ours.weight.detach().double().requires_grad_()
    wanted = F.conv2d(x.double(), exact, padding=2)
    (wanted_slope,) = torch.autograd.grad(wanted, exact, grad.double())
    assert found.dtype == torch.bfloat16
    assert slope.dtype == ours.weight.dtype
    assert float((found.double() - wanted).norm() / wanted.norm()) < 0.01
    assert float((slope.double() - wanted_slope).norm() / wanted_slope.norm()) < 0.01


if __name__ == "__main__":
    check_in_the_interpreter()
