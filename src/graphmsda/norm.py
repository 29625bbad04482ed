"""Batch normalisation that keeps the domains of one batch apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmsda.parallel import all_sum, world_size

NOWHERE = -1  # domain of a chunk that is normalised by its own statistics and leaves no trace in running ones
EVERYWHERE = -2  # domain of a chunk that is read with the mean of all domains' running statistics


@dataclass
class Layout:
    """Which rows of the batch now in the network belong to which domain; shared by all norms of a backbone.

    Attributes:
        sizes: Rows of each chunk on this process.
        domains: Domain of each chunk, or `NOWHERE`.
        totals: Rows of each chunk over all processes.
        certain: Whether dropout leaves everything in.
    """

    sizes: tuple[int, ...] = ()
    domains: tuple[int, ...] = ()
    totals: tuple[int, ...] = ()
    certain: bool = False

    @property
    def even(self) -> bool:
        """Whether the chunks are equally large, of two samples or more, and of domains that follow each other.

        Chunks of no domain may come last.
        """
        follow = tuple(range(self.kept.start, self.kept.stop))
        rest = (NOWHERE,) * (len(self.domains) - len(follow))
        return self.domains == follow + rest and len(set(self.sizes)) == 1 and self.sizes[0] > 1

    @property
    def kept(self) -> slice:
        """The domains whose running statistics change, where the chunks are `even`."""
        first = self.domains[0] if self.domains else 0
        return slice(first, first + len(self.domains) - self.domains.count(NOWHERE))


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
        """Return mean and variance, each ``(C,)``, with which a sample of this domain, or of `EVERYWHERE`, is read."""
        seen = self.count > 0
        correction = torch.where(seen, self.mass, 1)
        share = seen.to(self.running_mean.dtype) / seen.sum().clamp(min=1)
        mean, var = self.running_mean / correction[:, None], self.running_var / correction[:, None]
        any_mean = torch.where(seen.any(), share @ mean, self.initial_mean)
        any_var = torch.where(seen.any(), share @ var, self.initial_var)
        if domain == EVERYWHERE:
            return any_mean, any_var
        return torch.where(seen[domain], mean[domain], any_mean), torch.where(seen[domain], var[domain], any_var)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise ``(N, C)`` or ``(N, C, H, W)``, whose rows are laid out as `layout` says."""
        layout = self.layout
        if self.training and world_size() > 1:
            return self._forward_parallel(x)
        if self.training and torch.compiler.is_compiling() and layout.even:
            return self.forward_even(x)  # a compiler fuses its sums and products; without one it is the slower form
        chunks = torch.split(x, list(layout.sizes))
        parts = [self._chunk(c, d) for c, d in zip(chunks, layout.domains, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def forward_even(self, x: Tensor) -> Tensor:
        """Same for neighbouring domains with equally many samples, as operations on all domains at once."""
        sizes = self.layout.sizes
        chunks = x.view(len(sizes), sizes[0], *x.shape[1:])
        y: Tensor = _Normalise.apply(chunks, *self._moments(chunks), self.weight, self.bias)
        return y.flatten(0, 1)

    @torch.no_grad()
    def _moments(self, chunks: Tensor) -> tuple[Tensor, Tensor]:
        """Take in the batch statistics of equally large chunks of neighbouring domains.

        Return mean and the inverse of the standard deviation. Shapes: (D, B, C, ...) -> (D, C) each.
        """
        values = chunks if chunks.dtype == torch.float64 else chunks.float()
        if chunks.ndim == 3:
            var, mean = torch.var_mean(values, 1, correction=0)
        else:  # within each sample first, then over samples: compilers make slow code of one long sum
            within, means = torch.var_mean(values, list(range(3, chunks.ndim)), correction=0)
            mean = means.mean(1)
            var = (within + (means - mean[:, None]).square()).mean(1)
        size = chunks[0, :, 0].numel()
        now = self.layout.kept
        kept = now.stop - now.start
        self.running_mean[now].lerp_(mean[:kept], self.momentum)
        self.running_var[now].lerp_(var[:kept] * (size / (size - 1)), self.momentum)
        self._counted(now)
        return mean, torch.rsqrt(var + self.eps)

    def _chunk(self, x: Tensor, domain: int) -> Tensor:
        if not self.training or len(x) < 2:
            return F.batch_norm(x, *self.statistics(domain), self.weight, self.bias, eps=self.eps)
        if domain == NOWHERE:
            return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
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
    def _counted(self, domain: int | slice) -> None:
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
            if domain == NOWHERE:
                continue
            with torch.no_grad():
                count = total * pixels
                self.running_mean[domain].lerp_(mean[i], self.momentum)
                self.running_var[domain].lerp_(var[i] * count / (count - 1), self.momentum)
                self._counted(domain)
        return torch.cat(parts).to(x.dtype)


class _Normalise(torch.autograd.Function):
    r"""Batch normalisation of each domain, given its batch mean and the inverse of its standard deviation.

    .. math::
        y &= \hat x \, w + b, \quad \hat x = (x - \mu_m) s_m \\
        \frac{\partial L}{\partial x} &= w s_m \Big( g - \frac{1}{n} \sum g - \hat x \frac{1}{n} \sum g \hat x \Big)

    with sums over the n values of a channel in a domain. The gradient takes into account that :math:`\mu` and :math:`s`
    are functions of x, so that one pass over x and g gives all sums; autograd would take four.

    Shapes: x (D, B, C, ...), mean and inverse (D, C), weight and bias (C,) -> (D, B, C, ...).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, mean, inverse, weight)
        scale, start = _along(inverse * weight, x), _along(bias.expand_as(mean), x)
        y = (x - _along(mean, x)) * scale + start
        # PyTorch 2.11, compiling, loses the gradient of a function that ends in a conversion to the type it has.
        return y if y.dtype == x.dtype else y.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, inverse, weight = ctx.saved_tensors
        size = x[0, :, 0].numel()
        wide = grad.to(mean.dtype)
        ready = (x - _along(mean, x)) * _along(inverse, x)
        total, along = _by_channel(wide), _by_channel(wide * ready)
        slope = (wide - _along(total / size, x) - ready * _along(along / size, x)) * _along(inverse * weight, x)
        return slope.to(x.dtype), None, None, along.sum(0), total.sum(0)


def _by_channel(values: Tensor) -> Tensor:
    """Sum ``(D, B, C, ...)`` to ``(D, C)``: within samples first, since compilers make slow code of one long sum."""
    return (values.sum(list(range(3, values.ndim))) if values.ndim > 3 else values).sum(1)


def _along(values: Tensor, x: Tensor) -> Tensor:
    """View a number for each domain and channel, ``(D, C)``, so that it meets ``(D, B, C, ...)``."""
    return values.view(len(values), 1, -1, *(1,) * (x.ndim - 3))


class LaidOutDropout(nn.Dropout):
    """Dropout that does nothing where the layout says `certain`: how a network teaches."""

    def __init__(self, p: float, layout: Layout) -> None:
        super().__init__(p)
        self.layout = layout

    def forward(self, x: Tensor) -> Tensor:
        """Drop, or not."""
        return x if self.layout.certain else super().forward(x)


def convert_norms(module: nn.Module, domains: int, layout: Layout) -> nn.Module:
    """Replace every ``BatchNorm1d``/``BatchNorm2d`` below `module` by a `DomainBatchNorm` with its affine parameters.

    Running statistics of a pretrained norm become what is used before any domain has been seen. Dropout becomes one
    that hears the layout, too.
    """
    if type(module) is nn.Dropout:
        return LaidOutDropout(module.p, layout)
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
