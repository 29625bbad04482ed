r"""Batch normalisation, ReLU and max-pooling (3x3, stride 2, padding 1) as GPU kernels, forward and backward.

The forward pass reads x once and writes the pooled values and, in a byte each, which of a window's 9 places won. The
backward pass needs no more than that, x and the gradient :math:`g` of the pooled values: with :math:`\hat x` as in
`graphmsda.norm`, the sums over a domain of what reaches batch normalisation are sums over *windows*,

.. math:: S_1 = \sum_{\text{windows}} g, \quad S_2 = \sum_{\text{windows}} g \, \hat x_{\text{winner}}

and :math:`\partial L / \partial x` follows in a second pass, where each pixel looks up the windows that it won.

With stride 2, window i covers rows 2i - 1, 2i and 2i + 1. So row 2i lies in window i alone, row 2i + 1 in windows i and
i + 1, and a block of 2x2 pixels in 2x2 windows: the block's own and its neighbours to the right and below.

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

from graphmsda.graphs.gather_triton import USABLE as USABLE  # whether Triton can build kernels here

# A program holds TILE windows x channels, 8 to each of its threads: 16 bytes of bfloat16, the most that one
# instruction loads, while codes (8 bytes then) and values stay with the same threads. Tiles are wide enough in
# channels for whole 128-byte lines; the rest of them is neighbouring windows, which share pixels. With more than 4
# warps a processor has too few registers for two programs of the last pass. Sizes are fixed, since trying several
# would delay the start of every run.
TILE = 1024
WARPS = 4
WIDEST = 64  # channels of a tile
PART = 256  # windows that one program sums up in the backward pass: 640 images of 16 x 16 windows fill an H200 once
NONE = tl.constexpr(9)  # code of a window without a winner: nothing in it was above 0

COUNTS = ["images", "height", "width"]  # not to be compiled for anew when they change; channels are to be aligned


@triton.jit
def _windows(first, c, height, width, channels, WINDOWS: tl.constexpr):
    """Return rows and columns of the windows from `first` on, whether they and c exist, and where they are pooled."""
    rows, columns = (height + 1) // 2, (width + 1) // 2
    window = first + tl.arange(0, WINDOWS)
    inside = (window < rows * columns)[:, None] & (c < channels)[None, :]
    return (window // columns)[:, None], (window % columns)[:, None], inside, window[:, None] * channels + c[None, :]


@triton.jit
def _places(x, i, j, c, inside, height, width, channels):
    """Load the 9 places of windows, row by row; one outside the image is read as its neighbour in the window."""
    top, middle, bottom = tl.maximum(2 * i - 1, 0) * width, 2 * i * width, tl.minimum(2 * i + 1, height - 1) * width
    left, centre, right = tl.maximum(2 * j - 1, 0), 2 * j, tl.minimum(2 * j + 1, width - 1)
    c = c[None, :]
    return (
        tl.load(x + ((top + left) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((top + centre) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((top + right) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((middle + left) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((middle + centre) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((middle + right) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((bottom + left) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((bottom + centre) * channels + c), mask=inside, other=0.0),
        tl.load(x + ((bottom + right) * channels + c), mask=inside, other=0.0),
    )


@triton.jit
def _key(x, centre, scale, start, rank, BITS: tl.constexpr):
    """Return normalised values, rounded as when stored, and ranks in one integer each.

    Positive numbers are ordered as their bits are, negative ones have negative keys, and the key of what is not a
    number is the largest. Half the instructions of comparing and choosing values and places separately.
    """
    value = ((x.to(tl.float32) - centre) * scale + start).to(x.dtype)
    if BITS == 16:
        key = value.to(tl.int16, bitcast=True).to(tl.int32) << 16
    else:
        key = value.to(tl.int32, bitcast=True).to(tl.int64) << 32
    return key + rank


@triton.jit(do_not_specialize=COUNTS)
def _pool(
    x, mean, inverse, weight, bias, pooled, codes, images, height, width, channels,
    WINDOWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    BITS: tl.constexpr = x.dtype.element_ty.primitive_bitwidth
    windows = ((height + 1) // 2) * ((width + 1) // 2)
    tiles = tl.cdiv(windows, WINDOWS)
    image = tl.program_id(0) // tiles
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    i, j, inside, tile = _windows((tl.program_id(0) % tiles) * WINDOWS, c, height, width, channels, WINDOWS)
    x += tl.cast(image, tl.int64) * height * width * channels
    x0, x1, x2, x3, x4, x5, x6, x7, x8 = _places(x, i, j, c, inside, height, width, channels)
    c_in = c < channels
    row = (image // images) * channels + c
    m = tl.load(mean + row, mask=c_in, other=0.0)[None, :]
    s = (tl.load(inverse + row, mask=c_in, other=0.0) * tl.load(weight + c, mask=c_in, other=0.0))[None, :]
    b = tl.load(bias + c, mask=c_in, other=0.0)[None, :]
    # Of equal values the first wins, and a place outside the image loses to the neighbour that it was read as.
    top, left, bottom, right = i > 0, j > 0, 2 * i + 1 < height, 2 * j + 1 < width
    best = tl.maximum(_key(x4, m, s, b, 5, BITS), 0)
    best = tl.maximum(best, _key(x0, m, s, b, tl.where(top & left, 9, 0), BITS))
    best = tl.maximum(best, _key(x1, m, s, b, tl.where(top, 8, 0), BITS))
    best = tl.maximum(best, _key(x2, m, s, b, tl.where(top & right, 7, 0), BITS))
    best = tl.maximum(best, _key(x3, m, s, b, tl.where(left, 6, 0), BITS))
    best = tl.maximum(best, _key(x5, m, s, b, tl.where(right, 4, 0), BITS))
    best = tl.maximum(best, _key(x6, m, s, b, tl.where(bottom & left, 3, 0), BITS))
    best = tl.maximum(best, _key(x7, m, s, b, tl.where(bottom, 2, 0), BITS))
    best = tl.maximum(best, _key(x8, m, s, b, tl.where(bottom & right, 1, 0), BITS))
    bits = (best >> BITS).to(tl.int16 if BITS == 16 else tl.int32)
    code = tl.where(bits > 0, 9 - (best & 15).to(tl.int32), NONE)
    tile += tl.cast(image, tl.int64) * windows * channels
    tl.store(pooled + tile, bits.to(x.dtype.element_ty, bitcast=True), mask=inside)
    tl.store(codes + tile, code.to(tl.int8), mask=inside)


@triton.jit(do_not_specialize=COUNTS)
def _sum_over_windows(
    grad, codes, x, mean, inverse, total, along, images, height, width, channels,
    PART: tl.constexpr, WINDOWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    windows = ((height + 1) // 2) * ((width + 1) // 2)
    parts = tl.cdiv(windows, PART)
    image = tl.program_id(0) // parts
    first = (tl.program_id(0) % parts) * PART
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    c_in = c < channels
    row = (image // images) * channels + c
    m = tl.load(mean + row, mask=c_in, other=0.0)[None, :]
    x += tl.cast(image, tl.int64) * height * width * channels
    before = tl.cast(image, tl.int64) * windows * channels
    plain = tl.zeros((WINDOWS, CHANNELS), tl.float32)
    weighted = tl.zeros((WINDOWS, CHANNELS), tl.float32)
    for start in range(first, tl.minimum(first + PART, windows), WINDOWS):
        i, j, inside, tile = _windows(start, c, height, width, channels, WINDOWS)
        code = tl.load(codes + before + tile, mask=inside, other=NONE)
        g = tl.load(grad + before + tile, mask=inside, other=0.0)
        # Each channel's own place alone would touch nearly all the same lines, two bytes at a time.
        x0, x1, x2, x3, x4, x5, x6, x7, x8 = _places(x, i, j, c, inside, height, width, channels)
        code = code.to(tl.int32)
        winner = tl.where(code == 1, x1.to(tl.float32), x0.to(tl.float32))
        winner = tl.where(code == 2, x2.to(tl.float32), winner)
        winner = tl.where(code == 3, x3.to(tl.float32), winner)
        winner = tl.where(code == 4, x4.to(tl.float32), winner)
        winner = tl.where(code == 5, x5.to(tl.float32), winner)
        winner = tl.where(code == 6, x6.to(tl.float32), winner)
        winner = tl.where(code == 7, x7.to(tl.float32), winner)
        winner = tl.where(code == 8, x8.to(tl.float32), winner)
        slope = tl.where(code == NONE, 0.0, g.to(tl.float32))
        plain += slope
        weighted += slope * (winner - m)
    out = tl.program_id(0).to(tl.int64) * channels + c
    tl.store(total + out, tl.sum(plain, 0), mask=c_in)
    tl.store(along + out, tl.sum(weighted, 0) * tl.load(inverse + row, mask=c_in, other=0.0), mask=c_in)


@triton.jit(do_not_specialize=COUNTS)
def _spread(
    grad, codes, x, mean, inverse, weight, total, along, out, images, height, width, channels,
    WINDOWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    rows, columns = (height + 1) // 2, (width + 1) // 2
    tiles = tl.cdiv(rows * columns, WINDOWS)
    image = tl.program_id(0) // tiles
    c = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    i, j, inside, tile = _windows((tl.program_id(0) % tiles) * WINDOWS, c, height, width, channels, WINDOWS)

    # A block of 2x2 pixels, and the windows around its first pixel, right of that, below it and across from it.
    # All loads come before anything that waits for them.
    pixel = tl.cast(image, tl.int64) * height * width * channels + ((2 * i * width + 2 * j) * channels + c[None, :])
    line = width * channels
    right_in, below_in = inside & (2 * j + 1 < width), inside & (2 * i + 1 < height)
    x_own = tl.load(x + pixel, mask=inside, other=0.0)
    x_right = tl.load(x + pixel + channels, mask=right_in, other=0.0)
    x_below = tl.load(x + pixel + line, mask=below_in, other=0.0)
    x_across = tl.load(x + pixel + line + channels, mask=right_in & below_in, other=0.0)
    tile += tl.cast(image, tl.int64) * rows * columns * channels
    below = tile + columns * channels
    more, lower = inside & (j + 1 < columns), inside & (i + 1 < rows)
    code_own = tl.load(codes + tile, mask=inside, other=NONE)
    code_right = tl.load(codes + tile + channels, mask=more, other=NONE)
    code_below = tl.load(codes + below, mask=lower, other=NONE)
    code_across = tl.load(codes + below + channels, mask=more & lower, other=NONE)
    g_own = tl.load(grad + tile, mask=inside, other=0.0)
    g_right = tl.load(grad + tile + channels, mask=more, other=0.0)
    g_below = tl.load(grad + below, mask=lower, other=0.0)
    g_across = tl.load(grad + below + channels, mask=more & lower, other=0.0)

    exists = c < channels
    row = (image // images) * channels + c
    each = 1.0 / (tl.cast(images, tl.float32) * height * width)
    s = tl.load(inverse + row, mask=exists, other=0.0)
    m = tl.load(mean + row, mask=exists, other=0.0)[None, :]
    scale = s * tl.load(weight + c, mask=exists, other=0.0)
    level = (tl.load(total + row, mask=exists, other=0.0) * each * scale)[None, :]
    tilt = (tl.load(along + row, mask=exists, other=0.0) * each * s * scale)[None, :]
    scale = scale[None, :]

    g_own, g_right = g_own.to(tl.float32), g_right.to(tl.float32)
    g_below, g_across = g_below.to(tl.float32), g_across.to(tl.float32)
    slope = tl.where(code_own == 4, g_own, 0.0)
    slope = slope * scale - ((x_own.to(tl.float32) - m) * tilt + level)
    tl.store(out + pixel, slope.to(out.dtype.element_ty), mask=inside)
    slope = tl.where(code_own == 5, g_own, 0.0) + tl.where(code_right == 3, g_right, 0.0)
    slope = slope * scale - ((x_right.to(tl.float32) - m) * tilt + level)
    tl.store(out + pixel + channels, slope.to(out.dtype.element_ty), mask=right_in)
    slope = tl.where(code_own == 7, g_own, 0.0) + tl.where(code_below == 1, g_below, 0.0)
    slope = slope * scale - ((x_below.to(tl.float32) - m) * tilt + level)
    tl.store(out + pixel + line, slope.to(out.dtype.element_ty), mask=below_in)
    slope = tl.where(code_own == 8, g_own, 0.0) + tl.where(code_right == 6, g_right, 0.0)
    slope += tl.where(code_below == 2, g_below, 0.0) + tl.where(code_across == 0, g_across, 0.0)
    slope = slope * scale - ((x_across.to(tl.float32) - m) * tilt + level)
    tl.store(out + pixel + line + channels, slope.to(out.dtype.element_ty), mask=right_in & below_in)


def _sizes(x: Tensor, mean: Tensor) -> tuple[tuple[int, ...], int, int, dict[str, Any]]:
    """Return what kernels are told of sizes, windows in an image, blocks of channels, and the size of a program."""
    _, channels, height, width = x.shape
    wide = min(WIDEST, triton.next_power_of_2(channels))
    # Products and sums are to be fused into one instruction, which is not the default of every version of Triton.
    options = {"WINDOWS": TILE // wide, "CHANNELS": wide, "num_warps": WARPS, "enable_fp_fusion": True}
    windows = ((height + 1) // 2) * ((width + 1) // 2)
    return (len(x) // len(mean), height, width, channels), windows, triton.cdiv(channels, wide), options


def _room(like: Tensor, dtype: torch.dtype, *sides: int) -> Tensor:
    shape = (*like.shape[:2], *sides)
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


def _empty_pooled(x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    sides = [(side + 1) // 2 for side in x.shape[2:]]
    return _room(x, x.dtype, *sides), _room(x, torch.int8, *sides)


def _empty_gradients(grad: Tensor, codes: Tensor, x: Tensor, mean: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return _room(x, x.dtype, *x.shape[2:]), mean.new_empty(2, x.shape[1])


@torch.library.custom_op("graphmsda::pooled_norm", mutates_args=())
def pooled_norm(x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Normalise each domain, apply ReLU and max-pool; return this and which of its 9 places won each window.

    Shapes: x (D * B, C, H, W), mean and inverse (D, C), weight and bias (C,) -> twice (D * B, C, (H + 1) // 2,
    (W + 1) // 2), channels last: the first as x, the second int8, 9 for windows where nothing is above 0.

    x is bfloat16 or float32, the rest float32. Gradients flow to x, weight and bias, and take into account that mean
    and inverse, the inverse of the standard deviation, are functions of x.
    """
    pooled, codes = _empty_pooled(x)
    x = x.contiguous(memory_format=torch.channels_last)
    vectors = (tensor.contiguous() for tensor in (mean, inverse, weight, bias))
    counts, windows, blocks, options = _sizes(x, mean)
    with torch.cuda.device_of(x):  # Triton launches on the current GPU
        grid = len(x) * triton.cdiv(windows, options["WINDOWS"]), blocks
        _pool[grid](x, *vectors, pooled, codes, *counts, **options)
    return pooled, codes


@torch.library.custom_op("graphmsda::pooled_norm_backward", mutates_args=())
def pooled_norm_backward(
    grad: Tensor, codes: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and those of bias and weight below each other (2, C)."""
    slope, _ = _empty_gradients(grad, codes, x, mean)
    images = [tensor.contiguous(memory_format=torch.channels_last) for tensor in (grad, codes, x)]
    mean, inverse, weight = mean.contiguous(), inverse.contiguous(), weight.contiguous()
    counts, windows, blocks, options = _sizes(x, mean)
    part = max(PART, options["WINDOWS"])
    programs = len(x) * triton.cdiv(windows, part)
    sums = mean.new_empty(2, programs, x.shape[1])
    with torch.cuda.device_of(x):
        _sum_over_windows[programs, blocks](*images, mean, inverse, *sums, *counts, PART=part, **options)
        sums = sums.view(2, len(mean), -1, x.shape[1]).sum(2)
        grid = len(x) * triton.cdiv(windows, options["WINDOWS"]), blocks
        _spread[grid](*images, mean, inverse, weight, *sums, slope, *counts, **options)
    return slope, sums.sum(1)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], *inputs[:4])


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    slope, (bias, weight) = pooled_norm_backward(grad, *ctx.saved_tensors)
    return slope, None, None, weight, bias


pooled_norm.register_fake(_empty_pooled)
pooled_norm.register_autograd(_backward, setup_context=_save)
pooled_norm_backward.register_fake(_empty_gradients)
