"""Maximum mean discrepancy between two samples: of one layer (DAN), of layers jointly (JAN) and of fused ones (RTN).

All of them are unbiased: a sample is never compared with itself. Two batches of one distribution are then 0 apart on
average, and a single pair of batches may well lie below 0. Batches may differ in size; of fewer than two samples there
is no such estimate, and the discrepancy is 0 and passes no gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from graphmsda.graphs.prototypes import full_precision, squared_distances, wide


def mmd(source: Tensor, target: Tensor, *, kernels: int = 5, factor: float = 2.0) -> Tensor:
    r"""Multi-kernel maximum mean discrepancy (DAN).

    Long et al., "Learning Transferable Features with Deep Adaptation Networks" (ICML 2015), eqs. 1 and 2, with
    the unbiased quadratic estimate of Gretton et al., "A Kernel Two-Sample Test" (JMLR 2012), eq. 3:

    .. math:: d_k^2 = \frac{1}{n(n-1)} \sum_{i \neq j} k(s_i, s_j) + \frac{1}{m(m-1)} \sum_{i \neq j} k(t_i, t_j)
              - \frac{2}{nm} \sum_{i,j} k(s_i, t_j)

    with the kernel k of `gaussian_kernels` on the squared distances of both batches together.

    Shapes: source (n, d), target (m, d) -> 0-dim.

    Args:
        source: Samples of the one distribution.
        target: Samples of the other one.
        kernels: Number of Gaussian kernels.
        factor: What a kernel's bandwidth is of the one before it.
    """
    return joint_mmd([source], [target], kernels=[kernels], factor=factor)


def joint_mmd(
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    *,
    kernels: Sequence[int],
    bandwidths: Sequence[float] | None = None,
    factor: float = 2.0,
) -> Tensor:
    r"""Joint maximum mean discrepancy (JAN).

    Long et al., "Deep Transfer Learning with Joint Adaptation Networks" (ICML 2017), Sec. 3.1: `mmd`
    with the product of the layers' kernels, which compares the layers' joint distributions.

    .. math:: k(x, x') = \prod_{l \in \mathcal L} k^l(z^l, z'^l)

    Shapes: for each layer, sources (n, d_l) and targets (m, d_l) -> 0-dim.

    Args:
        sources: The layers of the one batch, row i of each being of sample i.
        targets: The layers of the other batch.
        kernels: Number of Gaussian kernels of each layer.
        bandwidths: Bandwidth of each layer in units of its squared distances; 0 is their mean (default: all 0).
        factor: What a kernel's bandwidth is of the one before it.
    """
    settings = zip(sources, targets, kernels, bandwidths or [0.0] * len(sources), strict=True)
    found = []
    for source, target, count, bandwidth in settings:
        both = torch.cat([source, target])
        found.append(gaussian_kernels(squared_distances(both, both), count=count, factor=factor, bandwidth=bandwidth))
    return unbiased_mmd(reduce(torch.mul, found), len(sources[0]))


def tensor_mmd(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
    r"""Tensor maximum mean discrepancy (RTN).

    Long et al., "Unsupervised Domain Adaptation with Residual Transfer Networks" (NIPS 2016), eq. 2: `mmd`
    with one Gaussian kernel on the tensor products :math:`z = \otimes_{l \in \mathcal L} z^l` of each sample's layers.

    Shapes: for each layer, sources (n, d_l) and targets (m, d_l) -> 0-dim.
    """
    distances = fused_distances([torch.cat(pair) for pair in zip(sources, targets, strict=True)])
    return unbiased_mmd(gaussian_kernels(distances, count=1), len(sources[0]))


def fused_distances(layers: Sequence[Tensor]) -> Tensor:
    r"""Squared distances between the tensor products of samples' layers, none of which is ever formed.

    .. math:: \lVert z_i - z_j \rVert^2 = g_{ii} + g_{jj} - 2 g_{ij}, \quad
              g_{ij} = \prod_{l \in \mathcal L} \langle z^l_i, z^l_j \rangle

    Rounding below zero is cut off in the value only, and the diagonal is exactly zero.

    Shapes: for each layer (n, d_l) -> (n, n).

    >>> fused_distances([torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[3.0], [1.0]])])
    tensor([[ 0., 34.],
            [34.,  0.]])
    """
    layers = wide(*layers)
    gram = torch.ones_like(layers[0][:, :1])
    with full_precision(gram.device):
        for layer in layers:
            gram = gram * (layer @ layer.T)
    length = gram.diagonal()
    distances = length[:, None] + length - 2 * gram
    distances = distances + (distances.clamp(min=0) - distances).detach()
    return distances.masked_fill(torch.eye(len(gram), dtype=torch.bool, device=gram.device), 0)


def gaussian_kernels(distances: Tensor, *, count: int = 5, factor: float = 2.0, bandwidth: float = 0.0) -> Tensor:
    r"""Mean of several Gaussian kernels of squared distances, their bandwidths a factor f apart.

    .. math:: k(x, x') = \frac{1}{U} \sum_{u=0}^{U-1} \exp \left( - \frac{\lVert x - x' \rVert^2}
              {\gamma f^{u - \lfloor U/2 \rfloor}} \right)

    By default :math:`\gamma` is the mean squared distance between distinct samples, a constant to autograd, so that
    the kernels live on the samples' own scale, whatever that is; it is 1 where all samples coincide.

    Shapes: distances (n, n) with a zero diagonal -> (n, n).

    Args:
        distances: Squared distances.
        count: Number U of kernels.
        factor: What a kernel's bandwidth is of the one before it.
        bandwidth: The bandwidth in the middle; 0 is the mean squared distance.

    >>> gaussian_kernels(torch.tensor([[0.0, 3.0], [3.0, 0.0]]), count=1)
    tensor([[1.0000, 0.3679],
            [0.3679, 1.0000]])
    """
    if bandwidth:
        gamma = distances.new_tensor(bandwidth)
    else:
        n = len(distances)
        gamma = distances.detach().sum() / max(1, n * (n - 1))
        gamma = torch.where(gamma > torch.finfo(gamma.dtype).tiny ** 0.5, gamma, 1)
    kernel = torch.zeros_like(distances)
    for u in range(count):
        kernel = kernel + torch.exp(-distances / (gamma * factor ** (u - count // 2)))
    return kernel / count


def unbiased_mmd(kernel: Tensor, size: int) -> Tensor:
    """The unbiased estimate, written out in `mmd`, from the kernel of all samples, the first `size` of the one batch.

    Shapes: kernel (n + m, n + m) -> 0-dim.
    """
    one, other, across = kernel[:size, :size], kernel[size:, size:], kernel[:size, size:]
    if min(len(one), len(other)) < 2:
        return kernel.new_zeros(())
    return _mean_of_pairs(one) + _mean_of_pairs(other) - 2 * across.mean()


def _mean_of_pairs(kernel: Tensor) -> Tensor:
    """Mean over pairs of distinct samples."""
    n = len(kernel)
    return (kernel.sum() - kernel.diagonal().sum()) / (n * (n - 1))
