"""A trained model as one plain network: a batch of samples in, probabilities of classes and domains out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.branches import Branches
from graphmsda.errors import UserError
from graphmsda.graphs import markov, relation
from graphmsda.graphs.gather import gather
from graphmsda.graphs.prototypes import distance_scale
from graphmsda.methods.base import Method
from graphmsda.methods.dctn import DCTN
from graphmsda.methods.mrf import MRF
from graphmsda.norm import DomainBatchNorm
from graphmsda.pooled_norm import PooledNorm
from graphmsda.run import Run

TAU = 0.2  # of methods without a posterior over domains of their own: MRF's default

Reading = Callable[[Tensor], tuple[Tensor, Tensor]]
"""From samples or embeddings to probabilities of classes (N, K) and of domains (N, M or M + 1)."""


class Graph(nn.Module):
    """What a run says of samples that it reads as the target's, with nothing left to be chosen.

    The normalisation of pixels, the target's batch statistics, prototypes and the graph over them are inside. A row of
    the result depends on its own sample alone, so batches may have any size.
    """

    pixel_mean: Tensor
    pixel_std: Tensor

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.images = len(run.about["shape"]) == 3
        with torch.no_grad():
            backbone = target_backbone(run)
            # Not called mean and std: the exporter to ONNX takes a buffer and an operation of one name for the same.
            self.register_buffer("pixel_mean", backbone.mean.clone())
            self.register_buffer("pixel_std", backbone.std.clone())
            self.body = plain_network(backbone.body, run.method.read_with())
            self._read = probabilities(without_parameters(run.method))
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Read uint8 images ``(N, 3, H, W)`` or float32 features ``(N, F)``; return ``(N, K)`` and ``(N, domains)``."""
        if self.images:
            x = (x.to(self.pixel_mean.dtype) / 255 - self.pixel_mean) / self.pixel_std
        return self._read(self.body(x))


def domain_names(run: Run) -> tuple[str, ...]:
    """Return the domains that `probabilities` speaks of: those of a method's posterior, or the sources."""
    return run.domains if isinstance(run.method, MRF) else run.domains[:-1]


def probabilities(method: Method) -> Reading:
    r"""Return a function from embeddings ``(N, d)`` to probabilities of classes ``(N, K)`` and of domains.

    MRF has a posterior over all domains, eq. 18 summed over classes. DCTN weighs the sources of its vote. Every other
    method only scores how close a sample lies to each source, by minus the squared distance to its nearest class mean,
    and the probabilities of the sources are

    .. math:: p(y_d = m \mid q) \propto \exp \Big( - \frac{\min_k \lVert z_q - \mu^m_k \rVert^2}{\tau \bar d} \Big)

    with the mean squared distance :math:`\bar d` between the sources' class means and MRF's default :math:`\tau`. The
    most probable source is always the one that `Run.predict` calls nearest.
    """
    predictor = method.predictor()
    if isinstance(method, MRF):
        temperature, prototypes, seen = method.temperature(), method.prototypes.detach(), method.seen

        def read(embedding: Tensor) -> tuple[Tensor, Tensor]:
            joint = markov.log_joint(markov.energies(embedding, prototypes, temperature=temperature), seen)
            return markov.label_posterior(joint).exp(), markov.domain_posterior(joint).exp()

        return read
    temperature = TAU * distance_scale(method.source_means, method.source_means_seen, reading="relative")

    def read_scores(embedding: Tensor) -> tuple[Tensor, Tensor]:
        log_probabilities, scores = predictor(embedding)
        if isinstance(method, DCTN):
            return log_probabilities.exp(), scores / scores.sum(1, keepdim=True)
        return log_probabilities.exp(), torch.softmax(scores / temperature, 1)

    return read_scores


def without_parameters(method: Method) -> Method:
    """Return a copy of a method whose parameters are buffers.

    What reads embeddings is not a part of the network that is exported. PyTorch 2.6 takes tensors from elsewhere for
    constants, as they are here, but looks in vain for parameters.
    """
    fixed = copy.deepcopy(method)
    for module in fixed.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, parameter.detach())
    return fixed


def target_backbone(run: Run) -> Backbone:
    """Return the backbone that a method reads the target with: some have one for the sources and one for the target."""
    called: list[Backbone] = []

    def note(module: Backbone, *_: object) -> None:
        called.append(module)

    hooks = [part.register_forward_hook(note) for part in run.method.modules() if isinstance(part, Backbone)]
    try:
        run.method.embed(random_samples(run, 2))
    finally:
        for hook in hooks:
            hook.remove()
    if len(called) != 1:
        raise UserError(
            f"{run.path}: method {run.about['method']} reads a sample with {len(called)} backbones; only methods that "
            "read it with one can be exported"
        )
    return called[0]


def random_samples(run: Run, count: int, seed: int = 0) -> Tensor:
    """Return noise in the shape and type of a run's samples."""
    chance = torch.Generator().manual_seed(seed)
    shape = (count, *run.about["shape"])
    if len(shape) == 4:
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=chance)
    return torch.randn(shape, generator=chance)


def plain_network(body: nn.Module, domain: int) -> nn.Module:
    """Return a copy of a backbone's network in ordinary layers, with the batch statistics of one domain.

    Names of weights stay as they are: those of a ResNet are torchvision's.
    """
    if isinstance(body, Branches):
        return _Branches([plain_network(branch.body, domain) for branch in body.targets])  # type: ignore[arg-type]
    return _plain(copy.deepcopy(body), domain).to(memory_format=torch.contiguous_format)


def _plain(module: nn.Module, domain: int) -> nn.Module:
    if isinstance(module, DomainBatchNorm):
        norm = _PooledNorm(module, domain) if isinstance(module, PooledNorm) else _Norm(module, domain)
        return norm.eval()
    if isinstance(module, nn.AdaptiveMaxPool2d) and isinstance(module.output_size, int):
        return _Pool(module.output_size)
    for name, child in module.named_children():
        setattr(module, name, _plain(child, domain))
    return module


class _Norm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation of vectors and pictures alike by one domain's statistics."""

    def __init__(self, norm: DomainBatchNorm, domain: int) -> None:
        super().__init__(len(norm.weight), eps=norm.eps)
        self.running_mean, self.running_var = (each.clone() for each in norm.statistics(domain))
        self.weight, self.bias = norm.weight, norm.bias

    def _check_input_dim(self, x: Tensor) -> None:
        """Accept any."""


class _PooledNorm(_Norm):
    """The same with the ReLU and the pooling that `PooledNorm` includes."""

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(super().forward(x)), 3, 2, 1)


class _Pool(nn.Module):
    """Adaptive maximum pooling in operations that exporters know; that of PyTorch 2.11 does not know the pooling."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        for dimension in (2, 3):
            length = x.shape[dimension]
            parts = [(length * i // self.size, -(-length * (i + 1) // self.size)) for i in range(self.size)]
            x = torch.stack([x.narrow(dimension, a, b - a).amax(dimension) for a, b in parts], dimension)
        return x


class _Branches(nn.Module):
    """The target's networks of a method that has one for each source, their embeddings side by side."""

    def __init__(self, bodies: list[nn.Module]) -> None:
        super().__init__()
        self.targets = nn.ModuleList(bodies)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([body(x) for body in self.targets], 1)


@contextmanager
def traceable() -> Iterator[None]:
    """Take message passing in plain operations meanwhile, which an exporter can trace for any batch size.

    Whatever calls it leaves the choice of how many queries to take at a time to `gather`, which decides by the device's
    memory and loops; the loop would be traced for one batch size. No other thread may predict with CRF meanwhile.
    """
    usual = gather

    def at_once(*given: Any) -> Tensor:
        return usual(*given[:7], 0)  # type: ignore[call-arg]

    setattr(relation, "gather", at_once)  # noqa: B010 - a name that it only uses itself
    try:
        yield
    finally:
        setattr(relation, "gather", usual)  # noqa: B010
