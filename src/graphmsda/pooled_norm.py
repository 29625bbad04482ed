"""Batch normalisation per domain, ReLU and max-pooling in one: the costliest lines of small networks and ResNet stems.

Each of the three alone reads and writes its whole input; together, as GPU kernels, they read it once and write a
quarter of it. A convolution of pictures that comes first is done in the same go: statistics are taken and weights'
gradients summed up while its result and the gradient of that are in registers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmsda.norm import DomainBatchNorm, pooled_moments
from graphmsda.parallel import world_size
from graphmsda.patch_conv import PatchConv2d, patch_factors, run_length
from graphmsda.triton_support import TRITON

LARGEST = 2**31  # numbers of one image, within which kernels count in 32 bits


class PooledNorm(DomainBatchNorm):
    """`DomainBatchNorm`, then ReLU, then ``MaxPool2d(3, stride=2, padding=1)``, with the first one's state.

    Attributes:
        before: The convolution of pictures that comes first, if any. It stays a module of the network, and in a tuple
            it is none of this one.
    """

    before: tuple[PatchConv2d, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and pool ``(N, C, H, W) -> (N, C, (H + 1) // 2, (W + 1) // 2)``, laid out as `layout` says.

        Where it `convolves`, x is still what the convolution before it was given.
        """
        if self.before and x.shape[1] == self.before[0].in_channels:
            return self._of_pictures(x)
        kernels = _kernels() if self._fusible(x) else None
        if kernels is None:
            return F.max_pool2d(F.relu(super().forward(x)), 3, 2, 1)
        layout = self.layout
        mean, inverse = self._moments(x.view(len(layout.sizes), layout.sizes[0], *x.shape[1:]))
        pooled: Tensor = kernels.pooled_norm(x, mean, inverse, self.weight, self.bias)[0]
        return pooled

    def convolves(self, x: Tensor) -> bool:
        """Whether there are kernels that convolve pictures, normalise and pool in one."""
        if not (self._at_once() and all(layer.takes_patches(x) for layer in self.before)):
            return False
        (layer,), kernels = self.before, _kernels("patch_pool")
        size, dtype = layer.kernel_size[0], torch.get_autocast_dtype("cuda")
        run = run_length(size, layer.in_channels)
        return kernels is not None and bool(kernels.takes(size, run, layer.out_channels, dtype, *x.shape[2:]))

    def _of_pictures(self, x: Tensor) -> Tensor:
        """Convolve, normalise and pool pictures: ``(N, 3, H, W) -> (N, C, H / 2, W / 2)``."""
        dtype = torch.get_autocast_dtype("cuda")
        count, _, height, width = x.shape
        pixels, rows, *_ = patch_factors(x.to(dtype), self.before[0].weight.to(dtype))
        y, means, within = _kernels("patch_conv").convolve_measured(pixels, rows.detach(), height, width)
        domains, each = len(self.layout.sizes), self.layout.sizes[0]
        shape = (count, -1, len(rows))
        means, within = pooled_moments(means.view(shape), within.view(shape))  # of each picture
        whole = pooled_moments(means.view(domains, each, -1), within.view(domains, each, -1))
        mean, inverse = self._taken_in(*whole, each * height * width)
        y = y.view(count, height, width, -1).permute(0, 3, 1, 2)
        given = pixels, rows, y, mean, inverse, self.weight, self.bias
        pooled: Tensor = _kernels("patch_pool").pooled_patches(*given)[0]
        return pooled

    def _at_once(self) -> bool:
        """Whether all domains can be normalised at once, in float32."""
        return self.training and self.weight.dtype == torch.float32 and self.layout.even and world_size() == 1

    def _fusible(self, x: Tensor) -> bool:
        return (
            self._at_once()
            and x.is_cuda
            and x.ndim == 4
            and x.dtype in (torch.bfloat16, torch.float32)
            and x.is_contiguous(memory_format=torch.channels_last)
            and 0 < x.shape[1:].numel() < LARGEST
        )


def pool_norms(module: nn.Module) -> nn.Module:
    """Merge every `DomainBatchNorm` below `module` with a ReLU and a 3x3 max-pooling of stride 2 that follow it.

    Found are those in an ``nn.Sequential`` and in the stem of torchvision's ResNets. Names of parameters and buffers
    stay as they are, since what is merged leaves an ``nn.Identity`` behind. A `PatchConv2d` before one may leave
    its work to it.
    """
    for child in module.children():
        pool_norms(child)
    if type(module).forward is nn.Sequential.forward:
        names = list(module._modules)
        for three in zip(names, names[1:], names[2:], strict=False):
            _merge(module, *three)
        for first, norm in pairwise(module.children()):
            if not (isinstance(first, PatchConv2d) and isinstance(norm, PooledNorm)):
                continue
            if first.in_channels != first.out_channels:  # by which the norm tells a picture from its result
                first.after, norm.before = (norm,), (first,)
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


def _kernels(name: str = "pooled_norm") -> Any:
    """Return a module of kernels for GPUs, or None where Triton does not work."""
    if not TRITON:
        return None
    try:
        from graphmsda import patch_conv_triton, patch_pool_triton, pooled_norm_triton
    except ImportError:
        return None
    found = {"pooled_norm": pooled_norm_triton, "patch_conv": patch_conv_triton, "patch_pool": patch_pool_triton}
    return found[name] if pooled_norm_triton.USABLE else None
