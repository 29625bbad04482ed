"""A network of its own for each source, and for the target one that follows each of them.

To the rest of graphmsda it is one backbone. Its embedding has a part for each source: a sample of that source has only
this part, the others are zero; a sample of the target has them all, part m by the network that follows source m's.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.norm import Layout


class Branch(nn.Module):
    """One network, with batch statistics of its own."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        # Together, so that the copied norms look at the copied layout.
        self.body, self.layout = copy.deepcopy((backbone.body, backbone.layout))

    def read(self, x: Tensor, domain: int, total: int, certain: bool) -> Tensor:
        """Embed samples of one domain, `total` of them over all processes: ``(B, ...) -> (B, d)``."""
        self.layout.sizes, self.layout.domains = (len(x),), (domain,)
        self.layout.totals, self.layout.certain = (total,), certain
        embedding: Tensor = self.body(x)
        return embedding


class Branches(nn.Module):
    """The networks of all sources and those of the target, each chunk of a batch sent where it belongs."""

    def __init__(self, backbone: Backbone, sources: int, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.width = backbone.features
        self.sources = nn.ModuleList(Branch(backbone) for _ in range(sources))
        self.targets = nn.ModuleList(Branch(backbone) for _ in range(sources))
        self.together = False  # whether the first source's network reads all sources, each with its own statistics

    def forward(self, x: Tensor) -> Tensor:
        """Embed rows that lie as the layout says: ``(N, ...) -> (N, M d)``."""
        layout = self.layout
        chunks = zip(torch.split(x, list(layout.sizes)), layout.domains, layout.totals, strict=True)
        return torch.cat([self._read(part, domain, total) for part, domain, total in chunks])

    def _read(self, x: Tensor, domain: int, total: int) -> Tensor:
        certain = self.layout.certain
        if 0 <= domain < len(self.sources):
            network = self.sources[0 if self.together else domain]
            embedding = network.read(x, domain, total, certain)  # type: ignore[operator]
            after = len(self.sources) - 1 - domain
            return nn.functional.pad(embedding, (domain * self.width, after * self.width))
        return torch.cat([branch.read(x, domain, total, certain) for branch in self.targets], 1)  # type: ignore[operator]


class BranchedBackbone(Backbone):
    """A backbone made of copies of another, two for each source; ``features`` is the size of all parts together."""

    def __init__(self, backbone: Backbone, domains: int) -> None:
        nn.Module.__init__(self)  # the copies have been converted already
        self.width, self.features = backbone.features, (domains - 1) * backbone.features
        self.layout = Layout()
        self.body: Branches = Branches(backbone, domains - 1, self.layout)
        self.register_buffer("mean", backbone.mean.clone())
        self.register_buffer("std", backbone.std.clone())
        self.mixed, self.notes = backbone.mixed, backbone.notes

    def parts(self, embedding: Tensor) -> list[Tensor]:
        """Return an embedding's part for each source: ``(B, M d) -> M x (B, d)``."""
        return list(torch.split(embedding, self.width, dim=1))

    @torch.no_grad()
    def part(self) -> None:
        """Give all sources' networks the weights and statistics of the first one, which has read for them all."""
        first, *others = self.body.sources
        for other in others:
            other.load_state_dict(first.state_dict())

    @torch.no_grad()
    def follow(self) -> None:
        """Give the target's networks the weights and statistics of the sources'."""
        for target, source in zip(self.body.targets, self.body.sources, strict=True):
            target.load_state_dict(source.state_dict())
