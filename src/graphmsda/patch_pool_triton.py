r"""A convolution of pictures with the normalisation, ReLU and max-pooling that follow, as operations for GPUs.

What the convolution gives is the largest tensor of a small network. Statistics are taken where it is made
(`graphmsda.patch_conv_triton.convolve_measured`), and here its gradient, which nobody needs but the convolution's
weights, is put together in registers, block by block of 2x2 pixels, and summed up at once:

.. math:: \frac{\partial L}{\partial w} = \sum_{\text{pixels}} \frac{\partial L}{\partial x_{\text{pixel}}} \,
          \text{patch}_{\text{pixel}}^T
"""

# Triton has no types, and a kernel's arguments get theirs when it is launched.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphmsda import patch_conv_triton as patches
from graphmsda.pooled_norm_kernels import _around, _coefficients, _slopes, _windows
from graphmsda.pooled_norm_triton import _empty_pooled, pooled_norm, pooled_norm_sums

WINDOWS, WARPS = 16, 4  # of a program at a time, each with its 2x2 pixels


@triton.jit
def _add(row0, row1, row2, row3, row4, upper, lower, run, down, SIZE: tl.constexpr):
    """Add the products of gradients and patches to the sums of each row of the kernel.

    Pixels come in pairs, one below the other, so that a run of numbers is loaded once for both.
    """
    upper, lower = tl.trans(upper.to(run.dtype.element_ty)), tl.trans(lower.to(run.dtype.element_ty))
    run1, run2, run3 = tl.load(run + down), tl.load(run + 2 * down), tl.load(run + 3 * down)
    row0 = tl.dot(lower, run1, tl.dot(upper, tl.load(run), row0))
    row1 = tl.dot(lower, run2, tl.dot(upper, run1, row1))
    row2 = tl.dot(lower, run3, tl.dot(upper, run2, row2))
    if SIZE == 5:
        run4 = tl.load(run + 4 * down)
        row3 = tl.dot(lower, run4, tl.dot(upper, run3, row3))
        row4 = tl.dot(lower, tl.load(run + 5 * down), tl.dot(upper, run4, row4))
    return row0, row1, row2, row3, row4


@triton.jit(do_not_specialize=["images"])
def _sum_over_blocks(
    pixels, grad, codes, x, mean, inverse, weight, total, along, out, images, part, image, down,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, EACH: tl.constexpr, SIZE: tl.constexpr, RUN: tl.constexpr,
    OUT: tl.constexpr, WINDOWS: tl.constexpr,
):  # fmt: skip
    windows: tl.constexpr = (HEIGHT // 2) * (WIDTH // 2)
    domain = tl.program_id(1)
    number, c = tl.arange(0, RUN), tl.arange(0, OUT)
    each = 1.0 / (tl.cast(images, tl.float32) * (HEIGHT * WIDTH))
    m, scale, level, tilt = _coefficients(mean, inverse, weight, total, along, domain, c, OUT, each)
    row0 = tl.zeros((OUT, RUN), tl.float32)
    row1 = tl.zeros((OUT, RUN), tl.float32)
    row2 = tl.zeros((OUT, RUN), tl.float32)
    row3 = tl.zeros((OUT, RUN), tl.float32)
    row4 = tl.zeros((OUT, RUN), tl.float32)
    first = tl.program_id(0) * part
    for start in range(first, tl.minimum(first + part, images * windows), WINDOWS):
        picture = (domain * images + start // windows).to(tl.int64)
        i, j, inside, tile = _windows(start % windows, c, HEIGHT, WIDTH, OUT, WINDOWS)
        pixel = picture * (HEIGHT * WIDTH * OUT) + ((2 * i * WIDTH + 2 * j) * OUT + c[None, :])
        tile += picture * (windows * OUT)
        x0, x1, x2, x3, k0, k1, k2, k3, g0, g1, g2, g3 = _around(
            grad, codes, x, pixel, tile, i, j, inside, HEIGHT, WIDTH, OUT
        )
        own, right, below, across = _slopes(
            x0, x1, x2, x3, k0, k1, k2, k3, g0, g1, g2, g3, m, scale, level, tilt
        )  # fmt: skip
        run = pixels + (picture * image + (2 * i * down + 2 * j * EACH + number[None, :]))
        row0, row1, row2, row3, row4 = _add(row0, row1, row2, row3, row4, own, below, run, down, SIZE)
        row0, row1, row2, row3, row4 = _add(row0, row1, row2, row3, row4, right, across, run + EACH, down, SIZE)
    out += ((domain * tl.num_programs(0) + tl.program_id(0)) * OUT + c[:, None]) * (SIZE * RUN) + number[None, :]
    tl.store(out, row0)
    tl.store(out + RUN, row1)
    tl.store(out + 2 * RUN, row2)
    if SIZE == 5:
        tl.store(out + 3 * RUN, row3)
        tl.store(out + 4 * RUN, row4)


def takes(size: int, run: int, outputs: int, dtype: torch.dtype, height: int, width: int) -> bool:
    """Whether there are kernels for this, as `patch_conv_triton.takes` says, and pictures of this size."""
    whole = height % 2 == width % 2 == 0 and height * width % patches.PIXELS == height * width // 4 % WINDOWS == 0
    return whole and dtype == torch.bfloat16 and patches.takes(size, run, outputs, dtype)


def _part(count: int, domains: int) -> int:
    return int(triton.cdiv(triton.cdiv(count, triton.cdiv(patches.PROGRAMS, domains)), WINDOWS) * WINDOWS)


def _empty_sums(grad: Tensor, mean: Tensor, size: int) -> Tensor:
    count = len(grad) // len(mean) * grad.shape[2:].numel()
    parts = len(mean) * triton.cdiv(count, _part(count, len(mean)))
    return mean.new_empty(parts, grad.shape[1], size * patches.RUN)


@torch.library.custom_op("graphmsda::pooled_patches", mutates_args=())
def pooled_patches(
    pixels: Tensor, rows: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `pooled_norm` does of x, which `convolve_measured` has made of pixels and rows.

    Gradients flow to rows, weight and bias, and take into account that x, mean and inverse are functions of rows.

    Shapes: pixels and rows as for `convolve`; x (N, outputs, H, W), channels last; the rest as for `pooled_norm`.
    """
    found: tuple[Tensor, Tensor, Tensor] = pooled_norm(x, mean, inverse, weight, bias)
    return found


@torch.library.custom_op("graphmsda::pooled_patches_sums", mutates_args=())
def pooled_patches_sums(
    pixels: Tensor, grad: Tensor, codes: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor, sums: Tensor,
    size: int,
) -> Tensor:  # fmt: skip
    """Return parts of the gradient of rows, given `pooled_norm_sums` for each domain and channel (2, D, C)."""
    out = _empty_sums(grad, mean, size)
    images = [tensor.contiguous(memory_format=torch.channels_last) for tensor in (grad, codes, x)]
    vectors = [tensor.contiguous() for tensor in (mean, inverse, weight)]
    each = len(x) // len(mean)
    image, down, right, _ = pixels.stride()
    _, outputs, height, width = x.shape
    options = {"HEIGHT": height, "WIDTH": width, "EACH": right, "SIZE": size, "RUN": patches.RUN, "OUT": outputs}
    options |= {"WINDOWS": WINDOWS, "num_warps": WARPS, "enable_fp_fusion": True}
    part = _part(each * grad.shape[2:].numel(), len(mean))
    with torch.cuda.device_of(pixels):
        _sum_over_blocks[len(out) // len(mean), len(mean)](
            pixels, *images, *vectors, *sums.contiguous(), out, each, part, image, down, **options
        )
    return out


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    pixels, rows, *rest, _ = inputs
    ctx.size, ctx.dtype = rows.shape[1] // patches.RUN, rows.dtype
    ctx.save_for_backward(pixels, *output[1:], *rest)


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    pixels, codes, winners, x, mean, inverse, weight = ctx.saved_tensors
    sums = pooled_norm_sums(grad, codes, winners, mean, inverse).sum(2)
    bias_slope, weight_slope = sums.sum(1)
    parts = pooled_patches_sums(pixels, grad, codes, x, mean, inverse, weight, sums, ctx.size)
    return None, parts.sum(0).to(ctx.dtype), None, None, None, weight_slope, bias_slope


def _fake(pixels: Tensor, rows: Tensor, x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_pooled(x)


def _fake_sums(pixels: Tensor, grad: Tensor, codes: Tensor, x: Tensor, mean: Tensor, *rest: Any) -> Tensor:
    return _empty_sums(grad, mean, rest[-1])


pooled_patches.register_fake(_fake)
pooled_patches.register_autograd(_backward, setup_context=_save)
pooled_patches_sums.register_fake(_fake_sums)
