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
GROUP = 8  # numbers of a run that are copied together: 16 bytes, one store
BLOCK, WARPS = 256, 4  # groups of a program: two to each thread, and all loads before stores


@triton.jit
def _copy(
    pixels, patches, groups, image, down,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, EACH: tl.constexpr, SIZE: tl.constexpr, RUN: tl.constexpr,
    BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    # Where a group lies is found once for all of its numbers.
    group = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    patch, part = group // (SIZE * RUN // GROUP), group % (SIZE * RUN // GROUP)
    pixel = patch % (HEIGHT * WIDTH)
    row, column = pixel // WIDTH + part // (RUN // GROUP), pixel % WIDTH
    begin = (patch // (HEIGHT * WIDTH)).to(tl.int64) * image
    begin += row * down + column * EACH + part % (RUN // GROUP) * GROUP
    number = tl.arange(0, GROUP)[None, :]
    inside = (group < groups)[:, None]
    numbers = tl.load(pixels + (begin[:, None] + number), mask=inside, other=0.0)
    tl.store(patches + (group.to(tl.int64)[:, None] * GROUP + number), numbers, mask=inside)


def _empty(pixels: Tensor, height: int, width: int, size: int, run: int) -> Tensor:
    return pixels.new_empty(len(pixels) * height * width, size * run)


@torch.library.custom_op("graphmsda::patches", mutates_args=())
def write_patches(pixels: Tensor, height: int, width: int, size: int, run: int) -> Tensor:
    """Return for each of `height` x `width` pixels the `size` runs of `run` numbers that begin in it and below it.

    Shapes: pixels (N, more than height, more than width, C), contiguous -> (N * height * width, size * run), where
    `run` is a multiple of `GROUP`.
    """
    patches = _empty(pixels, height, width, size, run)
    image, down, each, _ = pixels.stride()
    with torch.cuda.device_of(pixels):  # Triton launches on the current GPU
        groups = patches.numel() // GROUP
        _copy[(triton.cdiv(groups, BLOCK),)](
            pixels, patches, groups, image, down, height, width, each, size, run, BLOCK, GROUP, num_warps=WARPS
        )
    return patches


write_patches.register_fake(_empty)
