"""cuDNN's choice of kernels for the gradients of convolutions, made while a compiler works and the GPU is idle.

In a long run cuDNN tries all of its kernels, which takes it two seconds where the step itself is compiled in five. It
keeps its choices by shape and by thread; gradients are taken in the one thread that autograd has for a device.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
import torch.nn.functional as F
from torch import nn

from graphmsda.backbones import Backbone


@contextmanager
def trials_beside(backbone: Backbone, shape: Sequence[int]) -> Iterator[None]:
    """Have kernels chosen for samples ``(N, ...)`` of this shape in a thread of its own; wait for it at the end.

    Where there is no GPU there is nothing to choose. What goes wrong there goes wrong again, and is told, when the same
    is done in earnest.
    """
    if not backbone.mean.is_cuda:
        yield
        return

    def work() -> None:
        with suppress(Exception):
            try_gradients(backbone, shape)

    thread = threading.Thread(target=work, name="graphmsda-trials")
    thread.start()
    try:
        yield
    finally:
        thread.join()


def try_gradients(backbone: Backbone, shape: Sequence[int]) -> None:
    """Take the gradients of each convolution of a network once, of numbers that mean nothing."""
    device, dtype = backbone.mean.device, backbone.mixed or backbone.mean.dtype
    for layer, (_, *inside) in convolutions(backbone, shape):
        x = torch.empty((shape[0], *inside), device=device, dtype=dtype, memory_format=torch.channels_last)
        weight = layer.weight.detach().to(device, dtype, memory_format=torch.channels_last)
        x.requires_grad_()
        weight.requires_grad_()
        y = F.conv2d(x, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
        torch.autograd.grad(y, (x, weight), torch.empty_like(y))


def convolutions(backbone: Backbone, shape: Sequence[int]) -> list[tuple[nn.Conv2d, torch.Size]]:
    """Return the convolutions that a library computes, each with the shape of its input for one sample."""
    network = copy.deepcopy(backbone).cpu().eval()  # a step may be at work with the one that was given
    network.mixed = None
    found: list[tuple[nn.Conv2d, torch.Size]] = []
    for layer in network.modules():
        if type(layer) is nn.Conv2d:
            layer.register_forward_pre_hook(lambda layer, given: found.append((layer, given[0].shape)))
    with torch.no_grad():
        network(torch.zeros(1, *shape[1:]), [1], [0])
    return found
