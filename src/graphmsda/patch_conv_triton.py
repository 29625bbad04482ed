r"""A convolution of a picture's few channels as GPU kernels: its output, and the gradient of its weight.

A row of a kernel's window, k pixels of P numbers, lies consecutively in a picture whose channels come last. So tiles of
patches, pixels x (row of the window), are read as they are needed and multiplied right away:

.. math:: y_{po} = \sum_{i} \sum_{t < kP} x_{p,i,t} \, w_{oit} \qquad
          \frac{\partial L}{\partial w_{oit}} = \sum_p g_{po} \, x_{p,i,t}

with pixel p, output channel o, row i of the window, number t in that row, and the gradient g of y. Neighbours share
most of their patches, which therefore come from a cache: main memory sees y and g once and the picture about once.

Nothing is added atomically: the same input gives the same bits.
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

from graphmsda.graphs import gather_triton

# Whether Triton can build kernels here that multiply bfloat16, which takes compute capability 8.
USABLE = gather_triton.USABLE and all(
    torch.cuda.get_device_capability(gpu) >= (8, 0) for gpu in range(torch.cuda.device_count())
)

# Sizes are fixed, since trying several would delay the start of every run. Four warps are what one of Hopper's matrix
# instructions takes; it multiplies 64 rows, hence at least as many pixels (forward) and output channels (backward).
WARPS = 4
WIDEST = 64  # output channels of a tile
PIXELS = 128  # of a tile of the output: 64 sums a thread, while five programs still fit on a processor
# The backward pass reads tiles ahead while it multiplies. Shorter ones, more of them ahead, keep memory busier.
PIXELS_BACK = 64
STAGES = 3  # tiles in shared memory at a time
STAGES_LARGE = 2  # with kernels above 5 x 5, whose tiles would not fit into small GPUs' shared memory otherwise
# Of the backward pass: two on each of an H200's 132 processors, as many as the tiles they read ahead leave room for.
# Each writes sums of its own. Nothing is asked of the GPU, so that sums have the same order on all of them.
PROGRAMS = 264
LEAST = 16  # numbers to a side of what matrix instructions multiply


@triton.jit
def _patches(
    picture, image, pixel, i, t, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, KERNEL: tl.constexpr, EACH: tl.constexpr
):
    """Load numbers t of rows i of the windows around some pixels of an image: (pixels, numbers)."""
    LINE: tl.constexpr = (WIDTH + KERNEL - 1) * EACH
    first = (pixel // WIDTH) * LINE + (pixel % WIDTH) * EACH
    # What follows a row in memory belongs to other windows; were it infinite, even weights of 0 would let it through.
    inside = (pixel < HEIGHT * WIDTH)[:, None] & ((t < KERNEL * EACH) & (i < KERNEL))[None, :]
    picture += tl.cast(image, tl.int64) * ((HEIGHT + KERNEL - 1) * LINE)
    return tl.load(picture + (first[:, None] + (i * LINE + t)[None, :]), mask=inside, other=0.0)


@triton.jit
def _multiply(
    picture, weight, out,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, KERNEL: tl.constexpr, EACH: tl.constexpr,
    ROW: tl.constexpr, PIXELS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(HEIGHT * WIDTH, PIXELS)
    image = tl.program_id(0) // tiles
    pixel = (tl.program_id(0) % tiles) * PIXELS + tl.arange(0, PIXELS)
    o = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    t = tl.arange(0, ROW)
    weight += o[None, :] * (KERNEL * ROW) + t[:, None]
    total = tl.zeros((PIXELS, WIDE), tl.float32)
    for i in range(KERNEL):
        patches = _patches(picture, image, pixel, i, t, HEIGHT, WIDTH, KERNEL, EACH)
        w = tl.load(weight + i * ROW, mask=(o < OUTPUTS)[None, :], other=0.0)
        total = tl.dot(patches, w, total)
    out += tl.cast(image, tl.int64) * (HEIGHT * WIDTH * OUTPUTS)
    inside = (pixel < HEIGHT * WIDTH)[:, None] & (o < OUTPUTS)[None, :]
    tl.store(out + (pixel[:, None] * OUTPUTS + o[None, :]), total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["images", "part"])
def _sum_over_pixels(
    grad, picture, out, images, part,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, KERNEL: tl.constexpr, EACH: tl.constexpr,
    ROW: tl.constexpr, PIXELS: tl.constexpr, WIDE: tl.constexpr, FIRST: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    # Each product takes several rows of the window side by side, so that a tile of the gradient, the larger factor, is
    # fetched from shared memory once or twice, not for each row. Only powers of two can be side by side.
    tiles = tl.cdiv(HEIGHT * WIDTH, PIXELS)
    o = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    one = tl.arange(0, FIRST * ROW)
    total = tl.zeros((WIDE, FIRST * ROW), tl.float32)
    if REST:
        two = tl.arange(0, REST * ROW)
        more = tl.zeros((WIDE, REST * ROW), tl.float32)
    first = tl.program_id(0) * part
    for tile in range(first, tl.minimum(first + part, images * tiles)):
        image = tile // tiles
        pixel = (tile % tiles) * PIXELS + tl.arange(0, PIXELS)
        inside = (pixel < HEIGHT * WIDTH)[:, None] & (o < OUTPUTS)[None, :]
        start = grad + tl.cast(image, tl.int64) * (HEIGHT * WIDTH * OUTPUTS)
        g = tl.trans(tl.load(start + (pixel[:, None] * OUTPUTS + o[None, :]), mask=inside, other=0.0))
        patches = _patches(picture, image, pixel, one // ROW, one % ROW, HEIGHT, WIDTH, KERNEL, EACH)
        total = tl.dot(g, patches, total)
        if REST:
            patches = _patches(picture, image, pixel, FIRST + two // ROW, two % ROW, HEIGHT, WIDTH, KERNEL, EACH)
            more = tl.dot(g, patches, more)
    exists = (o < OUTPUTS)[:, None]
    out += (tl.program_id(0).to(tl.int64) * OUTPUTS + o[:, None]) * ((FIRST + REST) * ROW)
    tl.store(out + one[None, :], total, mask=exists)
    if REST:
        tl.store(out + FIRST * ROW + two[None, :], more, mask=exists)


def row_length(kernel: int, each: int) -> int:
    """Return to what length rows of a window, `kernel` pixels of `each` numbers, are to be filled up with zeros."""
    return int(max(LEAST, triton.next_power_of_2(kernel * each)))


def _sizes(picture: Tensor, outputs: int, kernel: int) -> tuple[int, int, dict[str, Any]]:
    """Return the pixels of an output image, blocks of output channels, and what kernels are compiled for."""
    height, width = (side - kernel + 1 for side in picture.shape[1:3])
    each = picture.shape[3]
    wide = min(WIDEST, max(LEAST, triton.next_power_of_2(outputs)))
    sizes = {"HEIGHT": height, "WIDTH": width, "OUTPUTS": outputs, "KERNEL": kernel, "EACH": each}
    sizes |= {"ROW": row_length(kernel, each), "WIDE": wide}
    # Fusing products and sums changes nothing here; to leave it open would make some versions of Triton warn.
    options = {"num_warps": WARPS, "num_stages": STAGES if kernel <= 5 else STAGES_LARGE, "enable_fp_fusion": True}
    return height * width, triton.cdiv(outputs, wide), sizes | options


def _empty(picture: Tensor, weight: Tensor) -> Tensor:
    outputs, kernel, _ = weight.shape
    sides = (side - kernel + 1 for side in picture.shape[1:3])
    shape = (len(picture), outputs, *sides)
    return torch.empty(shape, dtype=picture.dtype, device=picture.device, memory_format=torch.channels_last)


def _empty_gradient(grad: Tensor, picture: Tensor, kernel: int) -> Tensor:
    shape = (grad.shape[1], kernel, row_length(kernel, picture.shape[3]))
    return picture.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("graphmsda::patch_conv", mutates_args=())
def patch_conv(picture: Tensor, weight: Tensor) -> Tensor:
    """Convolve a picture, already padded on all sides, with stride 1.

    Shapes: picture (N, H + k - 1, W + k - 1, P), weight (outputs, k, `row_length` (k, P)) -> (N, outputs, H, W),
    channels last.

    The weight holds rows of k x P numbers, filled up with zeros. Gradients flow to the weight alone.
    """
    out = _empty(picture, weight)
    pixels, blocks, sizes = _sizes(picture, *weight.shape[:2])
    grid = len(picture) * triton.cdiv(pixels, PIXELS), blocks
    with torch.cuda.device_of(picture):  # Triton launches on the current GPU
        _multiply[grid](picture.contiguous(), weight.contiguous(), out, **sizes, PIXELS=PIXELS)
    return out


@torch.library.custom_op("graphmsda::patch_conv_weight_grad", mutates_args=())
def patch_conv_weight_grad(grad: Tensor, picture: Tensor, kernel: int) -> Tensor:
    """Return the gradient of the weight of `patch_conv`, in float32, from that of its output."""
    grad = grad.to(picture.dtype).contiguous(memory_format=torch.channels_last)
    pixels, blocks, sizes = _sizes(picture, grad.shape[1], kernel)
    tiles = len(picture) * triton.cdiv(pixels, PIXELS_BACK)
    part = triton.cdiv(tiles, PROGRAMS)
    first = min(4, triton.next_power_of_2(kernel))
    rest = triton.next_power_of_2(kernel - first) if kernel > first else 0
    shape = (triton.cdiv(tiles, part), grad.shape[1], first + rest, sizes["ROW"])
    sums = picture.new_empty(shape, dtype=torch.float32)
    with torch.cuda.device_of(picture):
        _sum_over_pixels[len(sums), blocks](
            grad, picture.contiguous(), sums, len(picture), part, **sizes, PIXELS=PIXELS_BACK, FIRST=first, REST=rest
        )
    return sums[:, :, :kernel].sum(0)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    picture, weight = inputs
    ctx.save_for_backward(picture)
    ctx.kernel, ctx.dtype = weight.shape[1], weight.dtype


def _backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
    return None, patch_conv_weight_grad(grad, *ctx.saved_tensors, ctx.kernel).to(ctx.dtype)


patch_conv.register_fake(_empty)
patch_conv.register_autograd(_backward, setup_context=_save)
patch_conv_weight_grad.register_fake(_empty_gradient)
