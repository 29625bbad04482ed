"""The convolution of pictures by GPU kernels: patches are put together in registers and never lie in memory.

For each row of the kernel, the numbers under it are a run of neighbouring numbers in a picture with its channels last.
Runs of many pixels are a matrix, and its product with that row's weights one of a few that add up to the convolution.
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

from graphmsda.triton_support import usable

USABLE = usable()  # asked once, on import
RUN = 16  # numbers of a run: the shortest sum of a tensor core's product
SIZES = (3, 5)  # of kernels, in rows
PIXELS, WARPS = 64, 4  # of a program
PROGRAMS = 528  # that share out the sums of the weights' gradient: four on each of an H200's 132 processors


@triton.jit
def _begin(pixel, image, down, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, EACH: tl.constexpr):
    """Where the first run of a pixel's patch begins."""
    place = pixel % (HEIGHT * WIDTH)
    return (pixel // (HEIGHT * WIDTH)).to(tl.int64) * image + (place // WIDTH * down + place % WIDTH * EACH)


@triton.jit
def _convolve(
    pixels, rows, out, count, image, down,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, EACH: tl.constexpr, SIZE: tl.constexpr, RUN: tl.constexpr,
    OUT: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    inside = (pixel < count)[:, None]
    number, channel = tl.arange(0, RUN), tl.arange(0, OUT)
    run = _begin(pixel, image, down, HEIGHT, WIDTH, EACH)[:, None] + number[None, :]
    weight = channel[None, :] * (SIZE * RUN) + number[:, None]
    total = tl.zeros((PIXELS, OUT), tl.float32)
    for row in tl.static_range(SIZE):
        patch = tl.load(pixels + (run + row * down), mask=inside, other=0.0)
        total = tl.dot(patch, tl.load(rows + (weight + row * RUN)), total)
    place = pixel.to(tl.int64)[:, None] * OUT + channel[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sum_over_pixels(
    pixels, grad, out, count, part, image, down,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, EACH: tl.constexpr, SIZE: tl.constexpr, RUN: tl.constexpr,
    OUT: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    number, channel = tl.arange(0, RUN), tl.arange(0, OUT)
    # Sums of each row of the kernel have names of their own: there are no lists of tiles.
    row0 = tl.zeros((OUT, RUN), tl.float32)
    row1 = tl.zeros((OUT, RUN), tl.float32)
    row2 = tl.zeros((OUT, RUN), tl.float32)
    row3 = tl.zeros((OUT, RUN), tl.float32)
    row4 = tl.zeros((OUT, RUN), tl.float32)
    first = tl.program_id(0) * part
    for start in range(first, tl.minimum(first + part, count), PIXELS):
        pixel = start + tl.arange(0, PIXELS)
        inside = (pixel < count)[:, None]
        place = pixel.to(tl.int64)[:, None] * OUT + channel[None, :]
        slope = tl.trans(tl.load(grad + place, mask=inside, other=0.0))
        run = pixels + (_begin(pixel, image, down, HEIGHT, WIDTH, EACH)[:, None] + number[None, :])
        row0 = tl.dot(slope, tl.load(run, mask=inside, other=0.0), row0)
        row1 = tl.dot(slope, tl.load(run + down, mask=inside, other=0.0), row1)
        row2 = tl.dot(slope, tl.load(run + 2 * down, mask=inside, other=0.0), row2)
        if SIZE == 5:
            row3 = tl.dot(slope, tl.load(run + 3 * down, mask=inside, other=0.0), row3)
            row4 = tl.dot(slope, tl.load(run + 4 * down, mask=inside, other=0.0), row4)
    out += (tl.program_id(0) * OUT + channel[:, None]) * (SIZE * RUN) + number[None, :]
    tl.store(out, row0)
    tl.store(out + RUN, row1)
    tl.store(out + 2 * RUN, row2)
    if SIZE == 5:
        tl.store(out + 3 * RUN, row3)
        tl.store(out + 4 * RUN, row4)


def takes(size: int, run: int, outputs: int, dtype: torch.dtype) -> bool:
    """Whether there are kernels for so many rows, such runs, so many outputs and this type."""
    fits = outputs in (16, 32, 64, 128) and dtype in (torch.bfloat16, torch.float16)
    return USABLE and size in SIZES and run == RUN and fits


def _sizes(pixels: Tensor, height: int, width: int, size: int, outputs: int) -> dict[str, Any]:
    options = {"HEIGHT": height, "WIDTH": width, "EACH": pixels.stride(2), "SIZE": size, "RUN": RUN, "OUT": outputs}
    return {**options, "PIXELS": PIXELS, "num_warps": WARPS}


def _empty(pixels: Tensor, rows: Tensor, height: int, width: int) -> Tensor:
    return pixels.new_empty(len(pixels) * height * width, len(rows))


def _part(count: int) -> int:
    return int(triton.cdiv(triton.cdiv(count, PROGRAMS), PIXELS) * PIXELS)


def _empty_sums(pixels: Tensor, grad: Tensor, height: int, width: int, size: int) -> Tensor:
    count, outputs = grad.shape
    return grad.new_empty(triton.cdiv(count, _part(count)), outputs, size * RUN, dtype=torch.float32)


@torch.library.custom_op("graphmsda::convolve", mutates_args=())
def convolve(pixels: Tensor, rows: Tensor, height: int, width: int) -> Tensor:
    """Return for each of `height` x `width` pixels the products of its patch with rows of weights.

    Shapes: pixels (N, more than height, more than width, C), contiguous; rows (outputs, size * RUN) -> (N * height *
    width, outputs). A patch is the runs that begin in a pixel and in the `size` - 1 below it. Gradients flow to rows.
    """
    out, rows = _empty(pixels, rows, height, width), rows.contiguous()
    image, down, *_ = pixels.stride()
    options = _sizes(pixels, height, width, rows.shape[1] // RUN, len(rows))
    with torch.cuda.device_of(pixels):  # Triton launches on the current GPU
        _convolve[(triton.cdiv(len(out), PIXELS),)](pixels, rows, out, len(out), image, down, **options)
    return out


@torch.library.custom_op("graphmsda::convolve_sums", mutates_args=())
def convolve_sums(pixels: Tensor, grad: Tensor, height: int, width: int, size: int) -> Tensor:
    """Return parts of the gradient of rows: (parts, outputs, size * RUN)."""
    out, grad = _empty_sums(pixels, grad, height, width, size), grad.contiguous()
    image, down, *_ = pixels.stride()
    options = _sizes(pixels, height, width, size, grad.shape[1])
    with torch.cuda.device_of(pixels):
        _sum_over_pixels[(len(out),)](pixels, grad, out, len(grad), _part(len(grad)), image, down, **options)
    return out


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    pixels, rows, ctx.height, ctx.width = inputs
    ctx.size, ctx.dtype = rows.shape[1] // RUN, rows.dtype
    ctx.save_for_backward(pixels)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (pixels,) = ctx.saved_tensors
    return None, convolve_sums(pixels, grad, ctx.height, ctx.width, ctx.size).sum(0).to(ctx.dtype), None, None


convolve.register_fake(_empty)
convolve.register_autograd(_backward, setup_context=_save)
convolve_sums.register_fake(_empty_sums)
