"""Evidence made of random numbers, with and without a model behind it."""

from __future__ import annotations

import torch
from torch import Tensor

from graphmsda.domains import Domain, Task
from graphmsda.selection import Evidence, Mixed, Seen


def chance(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seen(
    name: str,
    count: int,
    *,
    classes: int = 4,
    domains: int = 3,
    size: int = 5,
    seed: int = 0,
    labelled: bool = True,
    sharp: float = 3.0,
    skill: float = 2.0,
    shift: float = 0.0,
) -> Seen:
    """Return predictions that lean to the labels by `skill`; the embeddings of a domain lie `shift` away."""
    draws = chance(seed)
    labels = torch.randint(classes, (count,), generator=draws)
    scores = torch.randn(count, classes, generator=draws) + skill * torch.nn.functional.one_hot(labels, classes)
    posteriors = (2 * torch.randn(count, domains, classes, generator=draws)).double().softmax(2)
    embeddings = torch.randn(count, size, generator=draws) + shift
    said = (sharp * scores).double().log_softmax(1)
    return Seen(name, said, embeddings, posteriors, labels if labelled else None)


def evidence(seed: int = 0, *, count: int = 23, sources: int = 3, **options: float) -> Evidence:
    parts = tuple(seen(f"s{m}", count + m, seed=10 * seed + m, domains=sources, **options) for m in range(sources))  # type: ignore[arg-type]
    target = seen("t", count + 5, seed=10 * seed + 9, domains=sources, labelled=False, shift=0.5)
    draws = chance(seed)
    first, second, predicted = (torch.randint(4, (30,), generator=draws) for _ in range(3))
    return Evidence(parts, target, True, Mixed(first, second, predicted))


def blobs(seed: int = 0, *, count: int = 60, gap: float = 2.5) -> tuple[Task, Tensor]:
    """Return a task of three sources and a target of feature vectors in three classes, and the target's labels."""
    draws = chance(seed)
    centres = gap * torch.randn(3, 6, generator=draws)
    domains = []
    for number in range(4):
        y = torch.randint(3, (count,), generator=draws)
        x = centres[y] + torch.randn(count, 6, generator=draws) + 0.4 * number
        domains.append(Domain("abct"[number], x, y))
    return Task(tuple(domains[:3]), domains[3].unlabelled(), ("x", "y", "z")), domains[3].y
