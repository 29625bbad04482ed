"""Pictures that stand for prototypes: of each domain's training images, the one nearest to each of its prototypes."""

from __future__ import annotations

from io import BytesIO

import torch
from PIL import Image
from torch import Tensor

from graphmsda.figures.runs import embed_samples, shown_domains
from graphmsda.graphs.prototypes import squared_distances
from graphmsda.run import Run
from graphmsda.serve.answers import prototypes_of

MOST = 2000  # images of a domain that are looked at, spread over the classes: a few seconds even on a CPU


def find_examples(run: Run) -> dict[int, bytes]:
    """Return a PNG file for each prototype, by its place (domain x classes + class).

    They are chosen by distance alone, among up to `MOST` images of the prototype's domain.
    """
    nodes, seen = prototypes_of(run)
    names = run.domains[: len(nodes)]
    found: dict[int, bytes] = {}
    for number, part in enumerate(shown_domains(run, names, classes=range(len(run.classes)), count=MOST)):
        distances = squared_distances(embed_samples(run, part.x, part.number), nodes[number].cpu())
        nearest = distances.argmin(0).tolist()
        for label in torch.nonzero(seen[number]).flatten().tolist():
            found[number * len(run.classes) + label] = to_png(part.x[nearest[label]])
    return found


def to_png(pixels: Tensor) -> bytes:
    """Return a picture ``(3, H, W)`` as a PNG file."""
    file = BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(file, "PNG")
    return file.getvalue()
