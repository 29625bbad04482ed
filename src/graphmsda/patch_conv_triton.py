"""The patches of pictures, written by a GPU kernel of their own.

A compiler puts this copy, the largest of a step, into one kernel with much smaller ones, which nearly doubles its time.
"""

# Triton has no types, and a kernel's arguments get theirs when it is launched.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# mypy: disable-error-code="import-untyped, import-not-found"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from graphmsda.triton_support import usable

USABLE = usable()  # asked once, on import
BLOCK, WARPS = 2048, 4  # 16 numbers to each thread: two stores of 16 bytes, and all loads before them


@triton.jit
def _copy(
    pixels, patches, total, image, down,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, EACH: tl.constexpr, SIZE: tl.constexpr, RUN: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    patch, number = place // (SIZE * RUN), (place % (SIZE * RUN)).to(tl.int32)
    pixel = (patch % (HEIGHT * WIDTH)).to(tl.int32)
    row, column = pixel // WIDTH + number // RUN, pixel % WIDTH
    begin = (patch // (HEIGHT * WIDTH)) * image + (row * down + column * EACH + number % RUN)
    tl.store(patches + place, tl.load(pixels + begin, mask=inside, other=0.0), mask=inside)


def _empty(pixels: Tensor, height: int, width: int, size: int, run: int) -> Tensor:
    return pixels.new_empty(len(pixels) * height * width, size * run)


@torch.library.custom_op("graphmsda::patches", mutates_args=())
def write_patches(pixels: Tensor, height: int, width: int, size: int, run: int) -> Tensor:
    """Return for each of `height` x `width` pixels the `size` runs of `run` numbers that begin in it and below it.

    Shapes: pixels (N, more than height, more than width, C), contiguous -> (N * height * width, size * run).
    """
    patches = _empty(pixels, height, width, size, run)
    image, down, each, _ = pixels.stride()
    with torch.cuda.device_of(pixels):  # Triton launches on the current GPU
        _copy[(triton.cdiv(patches.numel(), BLOCK),)](
            pixels, patches, patches.numel(), image, down, height, width, each, size, run, BLOCK, num_warps=WARPS
        )
    return patches


write_patches.register_fake(_empty)
