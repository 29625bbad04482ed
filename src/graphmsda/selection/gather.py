"""One pass of a finished model over its data, with all that scores and estimates need of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphmsda.data.named import NamedTask
from graphmsda.domains import Samples, Task
from graphmsda.graphs.prototypes import distance_scale, squared_distances
from graphmsda.methods import Method
from graphmsda.run import Run
from graphmsda.selection.data import RunData, draw, find_data
from graphmsda.selection.evidence import Evidence, Mixed, Seen
from graphmsda.streaming import chunk_size, embed

MOST = 4000  # samples of the target: the error of a share of them is below 1 %
MOST_SOURCE = 2000  # of each source, and no more than half as many as of the target
MOST_SHIFTED = 200  # of each source, for each of the domains as which they are read
MOST_MIXED = 2000  # mixtures of two target samples of one class, and as many of two classes
SHARE = 0.55  # of the first sample in a mixture, as in the paper
TAU = 0.2  # temperature of posteriors by class means, as of MRF's prototypes


def gather(
    run: Run | str | Path,
    task: Task | NamedTask | RunData | None = None,
    *,
    most: int = MOST,
    shifted: bool = True,
    mixed: bool = True,
    device: str = "auto",
    **reading: Any,
) -> Evidence:
    """Return what a model says of its sources and its target.

    Args:
        run: A run, or its folder.
        task: Its data; by default they are read again from where the run had them.
        most: Number of target samples to look at; fewer of each source.
        shifted: Whether to read held-out parts of sources also with the batch statistics of other domains, for
            `estimate`.
        mixed: Whether to predict mixtures of target samples too, for the score ``mixval``.
        device: Where to compute, when a folder is given.
        **reading: ``data_root``, ``variant``, ``cache``, where the data lie elsewhere now.
    """
    if not isinstance(run, Run):
        run = Run.load(run, device=device)
    data = task if isinstance(task, RunData) else find_data(run, task, **reading)
    read = reader(run)
    number = {name: place for place, name in enumerate(run.domains)}
    last = len(run.domains) - 1
    few = min(most // 2, MOST_SOURCE)
    sources, moved, numbers = [], [], []
    # A run of one of the sources alone is judged on that one; a run of all as one domain reads all of them as domain 0.
    for part in [part for part in data.sources if part.name in number] or data.sources:
        rows = draw(part.x, few)
        own = number.get(part.name, 0)
        numbers.append(own)
        sources.append(read(part.name, part.x[rows], own, part.y[rows]))
        if shifted and data.held_out:
            rows = rows[draw(rows, MOST_SHIFTED)]
            x, y = part.x[rows], part.y[rows]
            moved.append(tuple(read(part.name, x, other, y) for other in range(last + 1) if other != own))
    rows = draw(data.target, most)
    x = data.target[rows]
    target = read(run.domains[-1], x, last, None)
    mixtures = mix(x, target.predicted, lambda x: read("", x, last, None).predicted) if mixed else None
    return Evidence(tuple(sources), target, data.held_out, mixtures, tuple(moved), tuple(numbers))


def read_test(run: Run, data: RunData) -> Seen | None:
    """Return what a model says of the target's labelled test part, if there is one: no score may look at it."""
    if data.test is None:
        return None
    return reader(run)(data.test.name, data.test.x, len(run.domains) - 1, data.test.y)


def reader(run: Run) -> Callable[[str, Samples, int, Tensor | None], Seen]:
    """Return a function of a name, samples, the domain as which they are read, and their labels."""
    method = run.method
    with torch.inference_mode():
        predictor = method.predictor()
        judge = domain_judge(method)

    @torch.inference_mode()
    def read(name: str, x: Samples, domain: int, labels: Tensor | None) -> Seen:
        size = chunk_size(x.shape[1:], run.device)
        found: list[list[Tensor]] = [[], [], []]
        for begin in range(0, len(x), size):
            embedding = embed(method, x[begin : begin + size].to(run.device), domain)
            for part, value in zip(found, (predictor(embedding)[0], embedding, judge(embedding)), strict=True):
                part.append(value.float().cpu())
        said, embeddings, posteriors = (torch.cat(part).clone() for part in found)
        return Seen(name, said.double().log_softmax(1), embeddings, posteriors.double(), labels)

    return read


def domain_judge(method: Method) -> Callable[[Tensor], Tensor]:
    r"""Return a function from embeddings ``(B, d)`` to what each domain's prototypes alone say of the class.

    .. math:: p(y = k \mid q, m) = \frac{e^{-E_{q,mk}}}{\sum_{k'} e^{-E_{q,mk'}}}

    with the energies of MRF (eq. 17) where the method has them. Any other method has the class means of its sources,
    with squared distances in units of `distance_scale` and MRF's temperature. A domain without prototypes says nothing:
    all classes are alike.

    Shapes: (B, d) -> (B, D, K).
    """
    means, seen = method.source_means, method.source_means_seen
    temperature = TAU * distance_scale(means, seen, reading="relative")

    def by_means(embedding: Tensor) -> Tensor:
        distances = squared_distances(embedding, means.flatten(0, 1)) / temperature
        return -distances.view(len(embedding), *seen.shape).masked_fill(~seen, torch.inf)

    joint: Callable[[Tensor], Tensor] = getattr(method, "log_joint", by_means)

    def judge(embedding: Tensor) -> Tensor:
        scores = joint(embedding)
        unknown = (scores == -torch.inf).all(2, keepdim=True)
        return scores.masked_fill(unknown, 0).softmax(2)

    return judge


def mix(x: Tensor, predicted: Tensor, predict: Callable[[Tensor], Tensor]) -> Mixed:
    """Mix each of some samples with one of the same and one of another predicted class, and predict the mixtures.

    Args:
        x: Samples, ``(N, ...)``.
        predicted: The class predicted of each, ``(N,)``.
        predict: Returns the classes predicted of samples.
    """
    chance = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x), generator=chance)
    sorted_by_class = order[predicted[order].argsort(stable=True)]
    within = torch.stack((sorted_by_class, sorted_by_class.roll(1)), 1)  # neighbours in this order share their class
    across = torch.stack((order, order.roll(1)), 1)
    alike = predicted[within[:, 0]] == predicted[within[:, 1]]
    apart = predicted[across[:, 0]] != predicted[across[:, 1]]
    drawn = [_some(pairs, chance) for pairs in (within[alike & (within[:, 0] != within[:, 1])], across[apart])]
    pairs = torch.cat(drawn)
    if len(pairs) == 0:
        return Mixed(*(torch.empty(0, dtype=torch.int64) for _ in range(3)))
    mixtures = []
    for chunk in torch.split(pairs, 512):
        blend = SHARE * x[chunk[:, 0]].float() + (1 - SHARE) * x[chunk[:, 1]].float()
        mixtures.append(predict(blend.to(x.dtype) if x.dtype.is_floating_point else blend.round().to(x.dtype)))
    return Mixed(predicted[pairs[:, 0]], predicted[pairs[:, 1]], torch.cat(mixtures))


def _some(pairs: Tensor, chance: torch.Generator) -> Tensor:
    return pairs[torch.randperm(len(pairs), generator=chance)[:MOST_MIXED]]
