"""What a run says of pictures, in words: class, confidence, leaning domain and nearest prototypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from graphmsda.data.images import Unreadable, decode, image_size
from graphmsda.errors import UserError
from graphmsda.export.graph import domain_names, probabilities
from graphmsda.graphs.prototypes import distance_scale, squared_distances
from graphmsda.methods.mrf import MRF
from graphmsda.run import Run
from graphmsda.streaming import embed

NEAREST = 3  # prototypes told of each picture


class Speaker:
    """A run that answers about pictures.

    It reads them as `Run.predict` does: the same decoding, embedding and predictor. Domains are those of
    `graphmsda.export`: the posterior of eq. 18 where the method has one, else the sources by their distance.

    Attributes:
        nodes: Prototypes of all domains, or the sources' class means of a method without, ``(D, K, d)``.
        seen: Which of them have met a sample, ``(D, K)``.
    """

    def __init__(self, run: Run) -> None:
        shape = run.about["shape"]
        if run.image_size is None:
            kind = f"feature vectors of length {shape[0]}" if len(shape) == 1 else "images that are not square"
            raise UserError(f"{run.path}: this model reads {kind}, which cannot be served; give a run on images")
        self.run, self.size = run, run.image_size
        self.domains = domain_names(run)
        with torch.inference_mode():
            self._read = _reading(run)
            self.nodes, self.seen = prototypes_of(run)
            self._scale = distance_scale(self.nodes, self.seen, reading="relative")

    def decode(self, data: bytes, most_pixels: float) -> Tensor:
        """Return a picture's pixels, uint8 ``(1, 3, size, size)``.

        Raises:
            Unreadable: It is damaged, too large or no picture.
        """
        measures = image_size(BytesIO(data))
        if measures is not None and measures[0] * measures[1] > most_pixels:
            raise Unreadable(f"{measures[0]} x {measures[1]} pixels, more than {most_pixels / 1e6:g} million")
        return torch.from_numpy(decode(BytesIO(data), self.size))[None]

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities of classes and domains, the nearest source, and distance and place of prototypes."""
        embedding = embed(self.run.method, x.to(self.run.device))
        classes, domains, source = self._read(embedding)
        distances = squared_distances(embedding, self.nodes.flatten(0, 1)) / self._scale
        distances = distances.masked_fill(~self.seen.flatten(), torch.inf)
        near, places = distances.topk(min(NEAREST, distances.shape[1]), dim=1, largest=False)
        return tuple(tensor.cpu() for tensor in (classes.float(), domains.float(), source, near, places))

    def tell(self, found: tuple[Tensor, ...], top: int, examples: Mapping[int, bytes]) -> list[dict[str, Any]]:
        """Return a prediction for each row of what `__call__` has found."""
        classes, domains, source, near, places = found
        best, order = (part.tolist() for part in classes.topk(min(top, classes.shape[1]), dim=1))
        return [
            {
                "label": self.run.classes[order[row][0]],
                "confidence": best[row][0],
                "classes": _named(self.run.classes, order[row], best[row]),
                "nearest_source": self.run.domains[source[row]],
                "domains": _named(self.domains, range(len(self.domains)), domains[row].tolist()),
                "prototypes": [
                    self._prototype(place, distance, examples)
                    for place, distance in zip(places[row].tolist(), near[row].tolist(), strict=True)
                    if distance < float("inf")
                ],
            }
            for row in range(len(classes))
        ]

    def _prototype(self, place: int, distance: float, examples: Mapping[int, bytes]) -> dict[str, Any]:
        domain, label = divmod(place, len(self.run.classes))
        example = f"examples/{place}" if place in examples else None
        name = self.run.domains[domain]
        return {"label": self.run.classes[label], "domain": name, "distance": distance, "example": example}


def _reading(run: Run) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """Return a function from embeddings to probabilities of classes and of domains, and to the nearest source."""
    if not isinstance(run.method, MRF):
        read = probabilities(run.method)

        def read_scores(embedding: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            classes, sources = read(embedding)
            return classes, sources, sources.argmax(1)

        return read_scores
    predictor = run.method.predictor()

    def read_posterior(embedding: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_classes, log_sources = predictor(embedding)
        sources = log_sources.exp()
        target = (1 - sources.sum(1, keepdim=True)).clamp(min=0)
        # The largest logarithm: of a sample deep in the target's own region, all sources' probabilities may round to 0.
        return log_classes.exp(), torch.cat([sources, target], 1), log_sources.argmax(1)

    return read_posterior


def prototypes_of(run: Run) -> tuple[Tensor, Tensor]:
    """Return a method's prototypes ``(D, K, d)``, or the sources' class means, and which of them stand for samples."""
    nodes, seen = getattr(run.method, "prototypes", None), getattr(run.method, "seen", None)
    if isinstance(nodes, Tensor) and isinstance(seen, Tensor) and nodes.shape[:2] == seen.shape:
        return nodes.detach(), seen
    return run.method.source_means, run.method.source_means_seen


def _named(names: Any, places: Any, values: list[float]) -> list[dict[str, Any]]:
    return [{"name": names[place], "probability": value} for place, value in zip(places, values, strict=True)]
