"""Batch normalisation, ReLU and max-pooling as operations that PyTorch knows: their launches and their gradients."""

# Triton has no types, and a kernel's arguments get theirs when it is launched.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from graphmsda.pooled_norm_kernels import _pool, _spread, _sum_over_windows
from graphmsda.triton_support import usable

USABLE = usable()  # asked once, on import

# A program holds so many windows x channels and has so many warps. Eight numbers to a thread are 16 bytes of bfloat16,
# the most that one instruction loads; fewer leave registers for more programs at a time. Tiles are wide enough in
# channels for whole 128-byte lines; the rest of them is neighbouring windows, which share pixels. Sizes are fixed:
# trying several would delay the start of every run.
POOL = (1024, 4)
SUMS = (1024, 8)
SPREAD = (512, 4)
WIDEST = 64  # channels of a tile
PART = 256  # windows that one program sums up in the backward pass: 640 images of 16 x 16 windows fill an H200 once


def _sizes(x: Tensor, mean: Tensor, program: tuple[int, int]) -> tuple[tuple[int, ...], int, int, dict[str, Any]]:
    """Return what kernels are told of sizes, windows in an image, blocks of channels, and the size of a program."""
    _, channels, height, width = x.shape
    wide = min(WIDEST, triton.next_power_of_2(channels))
    # Products and sums are to be fused into one instruction, which is not the default of every version of Triton.
    tile, warps = program
    options = {"WINDOWS": tile // wide, "CHANNELS": wide, "num_warps": warps, "enable_fp_fusion": True}
    windows = ((height + 1) // 2) * ((width + 1) // 2)
    return (len(x) // len(mean), height, width, channels), windows, triton.cdiv(channels, wide), options


def _room(like: Tensor, dtype: torch.dtype, *sides: int) -> Tensor:
    shape = (*like.shape[:2], *sides)
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


def _empty_pooled(x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    sides = [(side + 1) // 2 for side in x.shape[2:]]
    return _room(x, x.dtype, *sides), _room(x, torch.int8, *sides), _room(x, x.dtype, *sides)


def _empty_sums(grad: Tensor, codes: Tensor, winners: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    windows, (_, _, _, options) = grad.shape[2:].numel(), _sizes(grad, mean, SUMS)
    return mean.new_empty(2, len(mean), len(grad) // len(mean) * triton.cdiv(windows, _part(options)), grad.shape[1])


def _empty_spread(grad: Tensor, codes: Tensor, x: Tensor, *_: Tensor) -> Tensor:
    return _room(x, x.dtype, *x.shape[2:])


def _part(options: dict[str, Any]) -> int:
    return max(PART, int(options["WINDOWS"]))


@torch.library.custom_op("graphmsda::pooled_norm", mutates_args=())
def pooled_norm(
    x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise each domain, apply ReLU and max-pool; return this, which of its 9 places won each window, and its x.

    Shapes: x (D * B, C, H, W), mean and inverse (D, C), weight and bias (C,) -> thrice (D * B, C, (H + 1) // 2,
    (W + 1) // 2), channels last: the first and the last as x, the second int8, 9 for windows where nothing is above 0.

    x is bfloat16 or float32, the rest float32. Gradients flow to x, weight and bias, and take into account that mean
    and inverse, the inverse of the standard deviation, are functions of x (so where x is not a number, they are not
    either). Of equal values of x the first wins; of values that are equal only when rounded, or by a weight of 0, the
    one with the larger x, or where the weight is negative the smaller.
    """
    pooled, codes, winners = _empty_pooled(x)
    x = x.contiguous(memory_format=torch.channels_last)
    vectors = (tensor.contiguous() for tensor in (mean, inverse, weight, bias))
    counts, windows, blocks, options = _sizes(x, mean, POOL)
    with torch.cuda.device_of(x):  # Triton launches on the current GPU
        grid = len(x) * triton.cdiv(windows, options["WINDOWS"]), blocks
        _pool[grid](x, *vectors, pooled, codes, winners, *counts, **options)
    return pooled, codes, winners


@torch.library.custom_op("graphmsda::pooled_norm_sums", mutates_args=())
def pooled_norm_sums(grad: Tensor, codes: Tensor, winners: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    """Return parts of the sums of gradients, and of gradients times normalised x, over windows: (2, D, parts, C)."""
    sums = _empty_sums(grad, codes, winners, mean, inverse)
    images = [tensor.contiguous(memory_format=torch.channels_last) for tensor in (grad, codes, winners)]
    (each, *_, channels), _, blocks, options = _sizes(grad, mean, SUMS)
    windows = grad.shape[2:].numel()
    with torch.cuda.device_of(grad):
        _sum_over_windows[sums.shape[1] * sums.shape[2], blocks](
            *images, mean.contiguous(), inverse.contiguous(), *sums, each, windows, channels,
            PART=_part(options), **options,
        )  # fmt: skip
    return sums


@torch.library.custom_op("graphmsda::pooled_norm_spread", mutates_args=())
def pooled_norm_spread(
    grad: Tensor, codes: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor, sums: Tensor
) -> Tensor:
    """Return the gradient of x, given both sums for each domain and channel (2, D, C)."""
    slope = _empty_spread(grad, codes, x)
    images = [tensor.contiguous(memory_format=torch.channels_last) for tensor in (grad, codes, x)]
    vectors = [tensor.contiguous() for tensor in (mean, inverse, weight)]
    counts, windows, blocks, options = _sizes(x, mean, SPREAD)
    with torch.cuda.device_of(x):
        grid = len(x) * triton.cdiv(windows, options["WINDOWS"]), blocks
        _spread[grid](*images, *vectors, *sums.contiguous(), slope, *counts, **options)
    return slope


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output[1:], *inputs[:4])


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    codes, winners, x, mean, inverse, weight = ctx.saved_tensors
    sums = pooled_norm_sums(grad, codes, winners, mean, inverse).sum(2)
    bias_slope, weight_slope = sums.sum(1)
    return pooled_norm_spread(grad, codes, x, mean, inverse, weight, sums), None, None, weight_slope, bias_slope


pooled_norm.register_fake(_empty_pooled)
pooled_norm.register_autograd(_backward, setup_context=_save)
pooled_norm_sums.register_fake(_empty_sums)
pooled_norm_spread.register_fake(_empty_spread)
