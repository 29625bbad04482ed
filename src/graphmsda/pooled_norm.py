"""Batch normalisation per domain, ReLU and max-pooling in one: the costliest lines of small networks and ResNet stems.

Each of the three alone reads and writes its whole input; together, as GPU kernels, they read it once and write a
quarter of it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmsda.norm import DomainBatchNorm
from graphmsda.parallel import world_size
from graphmsda.triton_support import TRITON

LARGEST = 2**31  # numbers of one image, within which kernels count in 32 bits


class PooledNorm(DomainBatchNorm):
    """`DomainBatchNorm`, then ReLU, then ``MaxPool2d(3, stride=2, padding=1)``, with the first one's state."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and pool ``(N, C, H, W) -> (N, C, (H + 1) // 2, (W + 1) // 2)``, laid out as `layout` says."""
        kernels = _kernels() if self._fusible(x) else None
        if kernels is None:
            return F.max_pool2d(F.relu(super().forward(x)), 3, 2, 1)
        layout = self.layout
        mean, inverse = self._moments(x.view(len(layout.sizes), layout.sizes[0], *x.shape[1:]))
        pooled: Tensor = kernels.pooled_norm(x, mean, inverse, self.weight, self.bias)[0]
        return pooled

    def _fusible(self, x: Tensor) -> bool:
        return (
            self.training
            and x.is_cuda
            and x.ndim == 4
            and x.dtype in (torch.bfloat16, torch.float32)
            and self.weight.dtype == torch.float32
            and self.layout.even
            and world_size() == 1
            and x.is_contiguous(memory_format=torch.channels_last)
            and 0 < x.shape[1:].numel() < LARGEST
        )


def pool_norms(module: nn.Module) -> nn.Module:
    """Merge every `DomainBatchNorm` below `module` with a ReLU and a 3x3 max-pooling of stride 2 that follow it.

    Found are those in an ``nn.Sequential`` and in the stem of torchvision's ResNets. Names of parameters and buffers
    stay as they are, since what is merged leaves an ``nn.Identity`` behind.
    """
    for child in module.children():
        pool_norms(child)
    if type(module).forward is nn.Sequential.forward:
        names = list(module._modules)
        for three in zip(names, names[1:], names[2:], strict=False):
            _merge(module, *three)
    elif (type(module).__module__, type(module).__name__) == ("torchvision.models.resnet", "ResNet"):
        _merge(module, "bn1", "relu", "maxpool")
    return module


def _merge(parent: nn.Module, norm: str, relu: str, pool: str) -> None:
    old, between, last = (getattr(parent, name) for name in (norm, relu, pool))
    if not (isinstance(old, DomainBatchNorm) and isinstance(between, nn.ReLU) and _halves(last)):
        return
    new = PooledNorm(len(old.weight), len(old.count), old.layout, eps=old.eps, momentum=old.momentum)
    new.weight, new.bias = old.weight, old.bias
    for name, buffer in old.named_buffers():
        setattr(new, name, buffer)
    setattr(parent, norm, new.train(old.training))
    setattr(parent, relu, nn.Identity())
    setattr(parent, pool, nn.Identity())


def _halves(module: nn.Module) -> bool:
    """Whether a module is the pooling that `PooledNorm` includes."""
    if not isinstance(module, nn.MaxPool2d) or module.ceil_mode or module.return_indices:
        return False
    found = (module.kernel_size, module.stride, module.padding, module.dilation)
    return all(value in (side, (side, side)) for value, side in zip(found, (3, 2, 1, 1), strict=True))


def _kernels() -> Any:
    """Return the module of kernels for GPUs, or None where Triton does not work."""
    if not TRITON:
        return None
    try:
        from graphmsda import pooled_norm_triton
    except ImportError:
        return None
    return pooled_norm_triton if pooled_norm_triton.USABLE else None
