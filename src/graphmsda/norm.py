"""Batch normalisation that keeps the domains of one batch apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmsda.parallel import all_sum, world_size


@dataclass
class Layout:
    """Which rows of the batch now in the network belong to which domain; shared by all norms of a backbone.

    Attributes:
        sizes: Rows of each chunk on this process.
        domains: Domain of each chunk.
        totals: Rows of each chunk over all processes.
    """

    sizes: tuple[int, ...] = ()
    domains: tuple[int, ...] = ()
    totals: tuple[int, ...] = ()


class DomainBatchNorm(nn.Module):
    """Drop-in for ``BatchNorm1d`` and ``BatchNorm2d``: statistics per domain, affine parameters shared.

    In training each domain's chunk is normalised by its own batch statistics, exactly as if it were forwarded alone,
    and updates that domain's running statistics. A chunk of one sample, whose variance means nothing, is read with its
    domain's running statistics. Otherwise (in evaluation) each chunk is read with its domain's running statistics. A
    domain that was never seen borrows the average over those that were: this is how a model that never met the target
    reads it.

    Running statistics start at zero and are corrected for that when read, as in Adam, so that the first batch counts
    in full.
    """

    count: Tensor
    mass: Tensor
    running_mean: Tensor
    running_var: Tensor
    initial_mean: Tensor
    initial_var: Tensor

    def __init__(
        self, channels: int, domains: int, layout: Layout, *, eps: float = 1e-5, momentum: float = 0.1
    ) -> None:
        super().__init__()
        self.layout = layout
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(domains, channels))
        self.register_buffer("running_var", torch.zeros(domains, channels))
        self.register_buffer("mass", torch.zeros(domains))
        self.register_buffer("count", torch.zeros(domains, dtype=torch.int64))
        self.register_buffer("initial_mean", torch.zeros(channels))
        self.register_buffer("initial_var", torch.ones(channels))

    def statistics(self, domain: int) -> tuple[Tensor, Tensor]:
        """Return mean and variance, each ``(C,)``, with which a sample of this domain is read."""
        seen = self.count > 0
        correction = torch.where(seen, self.mass, 1)
        share = seen.to(self.running_mean.dtype) / seen.sum().clamp(min=1)
        mean, var = self.running_mean / correction[:, None], self.running_var / correction[:, None]
        any_mean = torch.where(seen.any(), share @ mean, self.initial_mean)
        any_var = torch.where(seen.any(), share @ var, self.initial_var)
        return torch.where(seen[domain], mean[domain], any_mean), torch.where(seen[domain], var[domain], any_var)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``(N, C)`` or ``(N, C, H, W)``, whose rows are laid out as `layout` says."""
        layout = self.layout
        if self.training and world_size() > 1:
            return self._forward_parallel(x)
        chunks = torch.split(x, list(layout.sizes))
        return torch.cat([self._chunk(c, d) for c, d in zip(chunks, layout.domains, strict=True)])

    def _chunk(self, x: Tensor, domain: int) -> Tensor:
        if not self.training or len(x) < 2:
            return F.batch_norm(x, *self.statistics(domain), self.weight, self.bias, eps=self.eps)
        self._counted(domain)
        return F.batch_norm(
            x,
            self.running_mean[domain],
            self.running_var[domain],
            self.weight,
            self.bias,
            training=True,
            momentum=self.momentum,
            eps=self.eps,
        )

    @torch.no_grad()
    def _counted(self, domain: int) -> None:
        """Note one more batch; `mass`, the total weight of all so far, is averaged along with what it corrects."""
        self.count[domain] += 1
        self.mass[domain] += self.momentum * (1 - self.mass[domain])

    def _forward_parallel(self, x: Tensor) -> Tensor:
        """Same, with each domain's statistics taken over all processes: two sums for all domains together."""
        layout = self.layout
        wide = x if x.dtype == torch.float64 else x.float()
        axes = [0, *range(2, x.ndim)]
        shape = [1, -1] + [1] * (x.ndim - 2)
        chunks = torch.split(wide, list(layout.sizes))
        pixels = x.shape[2:].numel()
        totals = torch.tensor(layout.totals, device=x.device, dtype=wide.dtype)[:, None] * pixels
        mean = all_sum(torch.stack([c.sum(axes) for c in chunks])) / totals.clamp(min=1)
        centred = [c - m.view(shape) for c, m in zip(chunks, mean, strict=True)]
        var = all_sum(torch.stack([c.square().sum(axes) for c in centred])) / totals.clamp(min=1)
        parts = []
        for i, (domain, total) in enumerate(zip(layout.domains, layout.totals, strict=True)):
            if total < 2:
                parts.append(F.batch_norm(chunks[i], *self.statistics(domain), self.weight, self.bias, eps=self.eps))
                continue
            scale = torch.rsqrt(var[i] + self.eps) * self.weight
            parts.append(centred[i] * scale.view(shape) + self.bias.view(shape))
            with torch.no_grad():
                count = total * pixels
                self.running_mean[domain].lerp_(mean[i], self.momentum)
                self.running_var[domain].lerp_(var[i] * count / (count - 1), self.momentum)
                self._counted(domain)
        return torch.cat(parts).to(x.dtype)


def convert_norms(module: nn.Module, domains: int, layout: Layout) -> nn.Module:
    """Replace every ``BatchNorm1d``/``BatchNorm2d`` below `module` by a `DomainBatchNorm` with its affine parameters.

    Running statistics of a pretrained norm become what is used before any domain has been seen.
    """
    if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
        norm = DomainBatchNorm(
            module.num_features,
            domains,
            layout,
            eps=module.eps,
            momentum=0.1 if module.momentum is None else module.momentum,
        )
        with torch.no_grad():
            norm.weight.copy_(module.weight)
            norm.bias.copy_(module.bias)
            if module.running_mean is not None and module.running_var is not None:
                norm.initial_mean.copy_(module.running_mean)
                norm.initial_var.copy_(module.running_var)
        return norm
    for name, child in module.named_children():
        setattr(module, name, convert_norms(child, domains, layout))
    return module
