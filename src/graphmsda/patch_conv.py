"""Convolutions of pictures as matrix products: with their few channels, a library's kernels leave most units idle."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmsda.triton_support import TRITON

ALIGNED = 8  # numbers of 16 bits that a GPU reads at once
PIECES = 64  # into which the long sum of a weight's gradient is cut: one product would run on few processors


class PatchConv2d(nn.Conv2d):
    """A convolution of a picture's few channels, compiled in mixed precision on a GPU as products with its patches.

    Tensor cores want channels in multiples of eight; with three, a library's convolution and its gradient take twice
    as long as making all patches and multiplying them. Otherwise, and with strides and even kernels, an ``nn.Conv2d``.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W) -> (N, outputs, H, W)``."""
        size = self.kernel_size[0]
        plain = self.kernel_size == (size, size) and self.stride == (1, 1) and self.dilation == (1, 1)
        same = size % 2 == 1 and self.padding == (size // 2, size // 2) and self.bias is None and self.groups == 1
        mixed = x.is_cuda and torch.compiler.is_compiling() and torch.is_autocast_enabled("cuda")
        if not (plain and same and mixed) or (x.requires_grad and torch.is_grad_enabled()):
            return super().forward(x)
        dtype = torch.get_autocast_dtype("cuda")
        return patch_product(x.to(dtype), self.weight.to(dtype))


def patch_product(x: Tensor, weight: Tensor) -> Tensor:
    """Convolve with stride 1, padded to the same size; no gradient reaches x.

    The numbers under one row of the kernel lie next to each other with the channels last. A patch is as many such runs
    as the kernel has rows, each read on into the next pixel up to an aligned length, where weights are 0.

    Shapes: x (N, C, H, W), weight (outputs, C, k, k), k odd -> (N, outputs, H, W), channels last.
    """
    count, channels, height, width = x.shape
    size = weight.shape[-1]
    run = size * channels
    more = -run % ALIGNED
    edge = size // 2
    beyond = -(-more // channels)  # pixels that the last run of a row reads on into
    pixels = F.pad(x.permute(0, 2, 3, 1), (0, 0, edge, edge + beyond, edge, edge)).contiguous()
    rows = F.pad(weight.permute(0, 2, 3, 1).flatten(2), (0, more)).flatten(1)
    kernels = _kernels() if x.is_cuda else None
    y: Tensor
    if kernels is not None and kernels.takes(size, run + more, len(weight), x.dtype):
        y = kernels.convolve(pixels, rows, height, width)
    else:
        image, down, right, _ = pixels.stride()
        patches = pixels.as_strided((count, height, width, size, run + more), (image, down, right, down, 1))
        y = _Product.apply(patches.reshape(-1, size * (run + more)), rows)
    return y.view(count, height, width, -1).permute(0, 3, 1, 2)


def _kernels() -> Any:
    """Return the module of kernels for GPUs, or None where Triton does not work."""
    if not TRITON:
        return None
    try:
        from graphmsda import patch_conv_triton
    except ImportError:
        return None
    return patch_conv_triton if patch_conv_triton.USABLE else None


class _Product(torch.autograd.Function):
    """``patches @ rows.T``, whose gradient by the rows is a sum over all patches, taken in pieces."""

    @staticmethod
    def forward(ctx: Any, patches: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(patches)
        return patches @ rows.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (patches,) = ctx.saved_tensors
        pieces = PIECES if len(grad) % PIECES == 0 else 1
        slopes = grad.reshape(pieces, -1, grad.shape[1]).transpose(1, 2)
        sums = torch.bmm(slopes, patches.view(pieces, -1, patches.shape[1]))
        wide = sums if sums.dtype == torch.float64 else sums.float()
        return None, wide.sum(0).to(grad.dtype)
