"""Convolutions of pictures: with their few channels, a library's kernels take longer than the bytes they move."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TRITON = find_spec("triton") is not None  # looked for, not imported: that takes long, and only GPUs need it
LARGEST = 2**31  # numbers of one image, within which kernels count in 32 bits
LARGEST_KERNEL = 7  # pixels: beyond, sums of a weight's gradient do not fit into registers
EACH = 4  # numbers kept of a pixel, the last ones 0: eight bytes, which a GPU reads at once and ahead of their use


class PatchConv2d(nn.Conv2d):
    """A convolution of a picture's few channels, in mixed precision on a GPU as products with patches read on the way.

    Tensor cores want channels in multiples of eight, and with three a library's convolution leaves most of them idle.
    Like any ``nn.Conv2d`` otherwise, and for strides, even kernels and all else that the GPU kernels do not know.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``(N, C, H, W) -> (N, outputs, H, W)``."""
        kernels = _kernels() if self._fusible(x) else None
        if kernels is None:
            return super().forward(x)
        kernel = self.kernel_size[0]
        edge, missing = kernel // 2, EACH - x.shape[1]
        picture = F.pad(x.bfloat16().permute(0, 2, 3, 1), (0, missing, edge, edge, edge, edge)).contiguous()
        rows = F.pad(self.weight.permute(0, 2, 3, 1), (0, missing)).flatten(2)
        weight = F.pad(rows, (0, kernels.row_length(kernel, EACH) - kernel * EACH)).bfloat16()
        convolved: Tensor = kernels.patch_conv(picture, weight)
        return convolved

    def _fusible(self, x: Tensor) -> bool:
        kernel = self.kernel_size[0]
        return (
            x.is_cuda
            and torch.is_autocast_enabled("cuda")
            and torch.get_autocast_dtype("cuda") == torch.bfloat16
            and x.ndim == 4
            and x.dtype in (torch.bfloat16, torch.float32)
            and self.weight.dtype == torch.float32
            and not (x.requires_grad and torch.is_grad_enabled())
            and self.kernel_size == (kernel, kernel)
            and kernel % 2 == 1
            and kernel <= LARGEST_KERNEL
            and self.stride == (1, 1)
            and self.dilation == (1, 1)
            and self.padding == (kernel // 2, kernel // 2)
            and self.padding_mode == "zeros"
            and self.groups == 1
            and self.bias is None
            and x.shape[1] == self.in_channels <= EACH
            and x.numel() > 0
            and x.shape[2:].numel() * max(EACH * kernel**2, self.out_channels) < LARGEST
        )


def _kernels() -> Any:
    """Return the module of kernels for GPUs, or None where Triton does not work."""
    if not TRITON:
        return None
    try:
        from graphmsda import patch_conv_triton
    except ImportError:
        return None
    return patch_conv_triton if patch_conv_triton.USABLE else None
