"""How the graph's own part of a step grows with classes, sources, samples and dimensions.

The network is taken out: embeddings are given, and what is timed is the loss and its gradient. On a GPU that is
replayed from a captured graph, so that times are the device's and not those of launching kernels; where a series does
not grow all the same, its kernels are too small to fill the device, and the exponent is near 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch, Labelled
from graphmsda.graphs.constraints import global_alignment
from graphmsda.methods import Method, build_method
from steps import CUDA, DEVICE, MIXED, Options, Work, captured, free, peak_memory, shortest

BASE = {"classes": 31, "sources": 4, "batch": 16, "features": 256}
SERIES: dict[str, Sequence[int]] = {
    "classes": (10, 31, 65, 345, 1000),
    "sources": (1, 2, 5, 10, 20),
    "batch": (8, 16, 32, 64, 128),
    "features": (128, 256, 512, 1024, 2048),
}
# Eq. 13 by itself, as the paper sums it over all pairs of pairs of domains; the last one is far beyond any benchmark.
ALIGNMENT_BASE = {"classes": 31, "sources": 4}
LARGEST_ALIGNMENT = {"classes": 345, "sources": 20}
DOMAINNET = {"classes": 345, "sources": 5, "features": 2048}


class Scale(nn.Module):
    """A network that costs nothing: the samples themselves, with a gradient."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        """``(N, d) -> (N, d)``."""
        return x * self.scale


def graph_alone(method: str, classes: int, domains: int, features: int, **parameters: Any) -> Method:
    """Return a method of which nothing but the graph is left, in the precision that is the default of the device."""
    backbone = Backbone(Scale(features), features, domains, (0.5,), (0.5,))
    backbone.mixed = torch.bfloat16 if MIXED else None
    return build_method(method, backbone, classes, domains, parameters)


def graph_step(method: str, classes: int, sources: int, batch: int, features: int) -> Callable[[], None]:
    """Return a function that computes loss and gradient of a method on given embeddings, every prototype seen."""
    generator = torch.Generator().manual_seed(0)
    built = graph_alone(method, classes, sources + 1, features).to(DEVICE)
    built.get_buffer("seen").fill_(True)
    dict(built.state_dict())["prototypes"].normal_(generator=torch.Generator(DEVICE).manual_seed(0))

    def part() -> Labelled:
        x = torch.randn(batch, features, generator=generator)
        return Labelled(x.to(DEVICE), torch.randint(0, classes, (batch,), generator=generator).to(DEVICE))

    given = Batch(
        tuple(part() for _ in range(sources)),
        part().x,
        torch.tensor(0.5, device=DEVICE),
        torch.tensor(1, device=DEVICE),
    )
    parameters = list(built.parameters())

    def step() -> None:
        (phase,) = built.phases(given)
        torch.autograd.grad(torch.stack(list(phase.terms.values())).sum(), parameters, allow_unused=True)

    return step


def alignment_step(classes: int, sources: int) -> Callable[[], None]:
    """Return a function that computes eq. 13 and its gradient on a given adjacency matrix."""
    domains = sources + 1
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(domains * classes, 16, generator=generator).to(DEVICE)
    graph = torch.exp(-torch.cdist(points, points).square() / 32).requires_grad_()
    seen = torch.ones(domains, classes, dtype=torch.bool, device=DEVICE)
    return lambda: torch.autograd.grad(global_alignment(graph, domains, seen=seen), graph)  # type: ignore[return-value]


def exponent(values: Sequence[float], found: Sequence[float | None]) -> float | None:
    """Return the slope of the straight line nearest to the last three points on logarithmic axes.

    >>> exponent([1, 2, 4, 8], [9, 4, 16, 64])
    2.0
    """
    x = [math.log(value) for value in values[-3:]]
    y = [math.log(value) for value in found[-3:] if value]
    if len(y) < 3:
        return None
    x_mean, y_mean = sum(x) / 3, sum(y) / 3
    slope = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True)) / sum((a - x_mean) ** 2 for a in x)
    return round(slope, 3)


def measured(step: Work, options: Options) -> tuple[float, int | None]:
    """Return seconds and bytes of a step."""
    memory = peak_memory(step)
    if not CUDA:
        step()
    found = shortest(captured(step), options), memory
    del step
    free()
    return found


def series(
    what: str, name: str, values: Sequence[int], base: dict[str, int], make: Callable[..., Work], options: Options
) -> dict[str, Any]:
    """Change one number, leave the others, and fit how time and memory follow."""
    found = [measured(make(**{**base, name: value}), options) for value in values]
    times, memory = [seconds for seconds, _ in found], [size for _, size in found]
    others = ", ".join(f"{value} {other}" for other, value in base.items() if other != name)
    return {
        "what": f"growth of {what} with {name} ({others})",
        "of": what,
        "axis": name,
        "values": list(values),
        "seconds": times,
        "bytes": memory,
        "exponent": exponent(values, times),
        "exponent of memory": exponent(values, memory),
    }


def measure_growth(options: Options) -> Iterator[dict[str, Any]]:
    """Each series changes one number and leaves the others at `BASE`."""
    options = replace(options, seconds=options.seconds / 5)  # many points, each the least of a few times
    for method in ("crf", "mrf"):
        for name, values in SERIES.items():
            yield series(method, name, values, BASE, lambda m=method, **shape: graph_step(m, **shape), options)
    for name in ALIGNMENT_BASE:
        yield series("eq. 13", name, SERIES[name], ALIGNMENT_BASE, alignment_step, options)
    cases: list[tuple[str, Callable[[], Work]]] = [
        (f"{method}'s graph at DomainNet's size, {batch} samples of each domain", _domainnet(method, batch))
        for method in ("crf", "mrf")
        for batch in ((16, 64) if CUDA else (16,))
    ]
    if CUDA:
        cases.append(("eq. 13 with 20 sources of 345 classes", lambda: alignment_step(**LARGEST_ALIGNMENT)))
    for what, make in cases:
        seconds, memory = measured(make(), options)
        yield {"what": what, "seconds": seconds, "bytes": memory}


def _domainnet(method: str, batch: int) -> Callable[[], Work]:
    return lambda: graph_step(method, batch=batch, **DOMAINNET)
