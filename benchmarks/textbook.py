"""A neutral yardstick: one training step of each method as a textbook would write it, in plain PyTorch.

Each domain passes the network alone, in float32 with PyTorch's defaults; losses are the printed equations, with as many
terms as the engine's methods have at their defaults; a `DataLoader` in this process builds each batch; Adam is the
default of PyTorch. The transcription is a kind one: images lie in memory, are normalised on the device, and no loop
runs over classes or queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from graphmsda import Task
from graphmsda.backbones import three_conv_two_fc

Terms = dict[str, Tensor]


def risk(logits: Sequence[Tensor], labels: Sequence[Tensor]) -> Tensor:
    """Eq. 8."""
    return torch.stack([F.cross_entropy(some, y) for some, y in zip(logits, labels, strict=True)]).mean()


def entropy(logits: Tensor) -> Tensor:
    """Eq. 9, of each sample."""
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Distances between all rows, of any number of batches."""
    return (a.square().sum(-1)[..., :, None] + b.square().sum(-1)[..., None, :] - 2 * a @ b.mT).clamp(min=0)


def spread(prototypes: Tensor) -> Tensor:
    """Mean squared distance between prototypes, the unit of the kernel's bandwidth and of the temperature."""
    nodes = prototypes.detach().flatten(0, 1)
    return squared_distances(nodes, nodes).sum() / (len(nodes) * (len(nodes) - 1))


def normalised(adjacency: Tensor) -> Tensor:
    """A graph convolution's weights: edges over the root of both ends' degrees."""
    root = adjacency.sum(2).rsqrt()
    return root[:, :, None] * adjacency * root[:, None, :]


class SourceOnly(nn.Module):
    """Cross-entropy on all sources."""

    needs_target = False

    def __init__(self, classes: int, domains: int, features: int) -> None:
        super().__init__()
        self.head = nn.Linear(features, classes)

    def losses(self, embeddings: Sequence[Tensor], labels: Sequence[Tensor]) -> Terms:
        """Return the loss terms of a batch: embeddings of each domain, labels of the sources."""
        return {"source": risk([self.head(z) for z in embeddings], labels)}


class CRF(nn.Module):
    """Sec. 3: a graph of n + 1 nodes for each query, two graph convolutions and a linear classifier.

    The classifier reads the embedding without shaping it (``graph_teaches`` of the package's is false).
    """

    needs_target = True
    prototypes: Tensor

    def __init__(self, classes: int, domains: int, features: int, dropout: float = 0.5, sigma: float = 0.3) -> None:
        super().__init__()
        hidden = min(features, 512)
        self.one, self.two = nn.Linear(features, hidden), nn.Linear(hidden, features)
        self.head, self.dropout, self.sigma = nn.Linear(features, classes), nn.Dropout(dropout), sigma
        self.register_buffer("prototypes", torch.randn(domains, classes, features))
        self.edge_prototypes = nn.Parameter(torch.randn(domains, classes, features))

    def graph(self, queries: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        """Eqs. 4-6: class scores of all nodes, the query the last, as constants of the embedding, and the adjacency."""
        nodes = torch.cat([prototypes.flatten(0, 1).expand(len(queries), -1, -1), queries[:, None]], dim=1)
        adjacency = torch.exp(-squared_distances(nodes, nodes) / (2 * self.sigma**2 * spread(prototypes)))
        weights, nodes = normalised(adjacency.detach()), nodes.detach()
        hidden = self.dropout(F.relu(weights @ F.linear(nodes, self.one.weight) + self.one.bias))
        hidden = F.relu(weights @ F.linear(hidden, self.two.weight) + self.two.bias)
        return self.head(hidden), adjacency

    def losses(self, embeddings: Sequence[Tensor], labels: Sequence[Tensor]) -> Terms:
        """Eq. 15, with eqs. 8 and 9 of the queries' edges, too."""
        domains, classes, _ = self.prototypes.shape
        with torch.no_grad():
            guess = self.graph(embeddings[-1], self.prototypes)[0][:, -1]
            trusted = (entropy(guess) < 0.5).float()
        members = [F.one_hot(y, classes).float() for y in (*labels, guess.argmax(1))]
        members[-1] = members[-1] * trusted[:, None]
        means = torch.stack(
            [m.T @ z / m.sum(0).clamp(min=1)[:, None] for m, z in zip(members, embeddings, strict=True)]
        )
        present = torch.stack([m.sum(0) > 0 for m in members])[..., None]
        prototypes = torch.where(present, 0.4 * self.prototypes + 0.6 * means, self.prototypes)  # eqs. 1-3
        self.prototypes = prototypes.detach()

        logits, adjacency = self.graph(torch.cat(list(embeddings)), prototypes)
        sizes = [len(z) for z in embeddings]
        *known, target = torch.split(logits[:, -1], sizes)
        unit = 2 * self.sigma**2 * spread(self.edge_prototypes)
        energies = squared_distances(torch.cat(list(embeddings)), self.edge_prototypes.flatten(0, 1)) / unit
        votes = (-energies).unflatten(1, (domains, classes)).logsumexp(1)
        *known_edges, target_edges = torch.split(votes, sizes)
        of_prototypes = logits[:, :-1].flatten(0, 1)
        own = torch.arange(classes, device=logits.device).repeat(len(logits) * domains)
        blocks = adjacency[0, :-1, :-1].view(domains, classes, domains, classes).transpose(1, 2).reshape(domains**2, -1)
        away = [(z - m @ c).square().sum(1) * m.sum(1) for z, m, c in zip(embeddings, members, prototypes, strict=True)]
        return {
            "source": risk(known, labels),
            "entropy": entropy(target).mean() / classes,
            "edges": risk(known_edges, labels) + entropy(target_edges).mean() / classes,
            "prototype": F.cross_entropy(of_prototypes, own),  # eq. 7
            "global": 0.3 * (blocks[:, None] - blocks).norm(dim=2).mean(),  # eq. 13
            "local": 0.01 / spread(prototypes) * torch.cat(away).mean(),  # eq. 14
        }


class MRF(nn.Module):
    """Sec. 4: energies of the query's edges, posteriors, and the positive network against negative ones."""

    needs_target = True

    def __init__(self, classes: int, domains: int, features: int, tau: float = 0.2, wrong_edges: int = 6) -> None:
        super().__init__()
        self.tau, self.wrong_edges = tau, wrong_edges
        self.prototypes = nn.Parameter(torch.randn(domains, classes, features))

    def energies(self, queries: Tensor) -> Tensor:
        """Eq. 17 of each query's edge to each prototype: (B, D, K)."""
        found = squared_distances(queries, self.prototypes.flatten(0, 1)) / (self.tau * spread(self.prototypes))
        return found.unflatten(1, self.prototypes.shape[:2])

    def losses(self, embeddings: Sequence[Tensor], labels: Sequence[Tensor]) -> Terms:
        """Eq. 23."""
        domains, classes, _ = self.prototypes.shape
        sizes = [len(z) for z in embeddings]
        energies = self.energies(torch.cat(list(embeddings)))
        posterior = (-energies).flatten(1).log_softmax(1).view_as(energies).logsumexp(1)  # eqs. 18-20
        *known, target = torch.split(posterior, sizes)
        guess, trusted = target.detach().argmax(1), (entropy(target.detach()) < 0.5).float()
        label = torch.cat([*labels, guess])
        domain = torch.arange(domains, device=label.device).repeat_interleave(torch.tensor(sizes, device=label.device))
        weight = torch.cat([trusted.new_ones(len(label) - len(guess)), trusted])

        nodes = self.prototypes.flatten(0, 1)
        unit = self.tau * spread(self.prototypes)
        first = torch.randint(len(nodes), (len(label), self.wrong_edges), device=label.device)
        step = torch.randint(1, classes, first.shape, device=label.device)
        second = torch.randint(domains, first.shape, device=label.device) * classes + (first + step) % classes
        wrong = (nodes[first] - nodes[second]).square().sum(2) / unit
        own = energies[torch.arange(len(label), device=label.device), domain]
        positive = own.gather(1, label[:, None])
        networks = torch.cat([own, positive + wrong], dim=1)
        likelihood = (weight * (torch.logsumexp(-networks, 1) + positive[:, 0])).mean()  # eq. 22, as a log-ratio
        pairs = torch.triu_indices(domains, domains, 1, device=label.device)
        clique = (self.prototypes[pairs[0]] - self.prototypes[pairs[1]]).square().sum(2).mean() / unit
        return {
            "source": risk(known, labels),
            "entropy": entropy(target).mean() / classes,
            "likelihood": 0.3 * likelihood,
            "clique": 0.3 * clique,
        }


METHODS: dict[str, Callable[[int, int, int], Any]] = {"source-only": SourceOnly, "crf": CRF, "mrf": MRF}


def textbook_step(method: str, task: Task, batch: int, device: torch.device, *, loading: bool) -> Callable[[], None]:
    """Return a function that takes one step with 3conv-2fc; without `loading`, always on the first batch."""
    network, features = three_conv_two_fc(task.target.x.shape[1:], 0.5)
    model = METHODS[method](len(task.classes), len(task.domains), features)
    both = nn.ModuleList([network, model]).to(device)
    optimiser = torch.optim.Adam(both.parameters(), 2e-4, weight_decay=5e-4)
    target = [TensorDataset(task.target.x[:], torch.zeros(len(task.target.x)))] if model.needs_target else []
    sets = [*(TensorDataset(source.x[:], source.y) for source in task.sources), *target]
    loaders = [endless(DataLoader(some, batch, shuffle=True, drop_last=True)) for some in sets]

    def load() -> list[tuple[Tensor, Tensor]]:
        return [(x.to(device), y.to(device)) for x, y in (next(loader) for loader in loaders)]

    first = load()

    def step() -> None:
        parts = load() if loading else first
        embeddings = [network((x.float() / 255 - 0.5) / 0.5) for x, _ in parts]
        loss = sum(model.losses(embeddings, [y for _, y in parts[: len(task.sources)]]).values())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield batches, epoch after epoch."""
    while True:
        yield from loader
