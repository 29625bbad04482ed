"""A finished run: load it, predict with it, evaluate it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphmsda.backbones import build_backbone
from graphmsda.domains import EvalSet
from graphmsda.engine import folder
from graphmsda.errors import UserError
from graphmsda.files import read_tensors
from graphmsda.methods import Method, build_method
from graphmsda.predictions import Evaluation as Evaluation
from graphmsda.predictions import Predictions as Predictions
from graphmsda.predictions import count_pairs, summarise
from graphmsda.streaming import Answers, answer, chunk_size, embed, split_rows

if TYPE_CHECKING:
    import numpy as np

    from graphmsda.data.images import Decoded
    from graphmsda.data.listing import Listing
    from graphmsda.methods.base import Predictor

    Inputs = str | Path | Sequence[str | Path] | np.ndarray[Any, Any] | Tensor


def find_device(name: str) -> torch.device:
    """Return the device that ``auto``, ``cpu`` or ``cuda`` stands for on this machine."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: PyTorch finds no CUDA device on this machine; use --device cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


class Run:
    """A trained model with what is known about it."""

    def __init__(self, path: Path, method: Method, about: dict[str, Any], device: torch.device) -> None:
        self.path, self.method, self.about, self.device = path, method, about, device
        self.classes: tuple[str, ...] = tuple(about["classes"])
        self.domains: tuple[str, ...] = tuple(about["domains"])
        shape = about["shape"]
        self.image_size: int | None = shape[-1] if len(shape) == 3 and shape[1] == shape[2] else None

    @classmethod
    def load(cls, path: str | Path, device: str = "auto") -> Run:
        """Load a finished run from its directory; no code in it is executed."""
        path = Path(path)
        config = folder.read_config(path)
        if not (path / folder.MODEL_ABOUT).is_file() or not (path / folder.MODEL).is_file():
            raise UserError(
                f"{path}: this run has not finished training; run the same `graphmsda fit` again to resume it"
            )
        place = find_device(device)
        about = folder.read_about(path / folder.MODEL_ABOUT)
        state, _ = read_tensors(path / folder.MODEL)
        domains = len(about["domains"])
        with torch.device("meta"):  # shapes only: every number comes from the file
            backbone = build_backbone(about["backbone"], about["shape"], domains, dropout=about["dropout"])
            method = build_method(about["method"], backbone, len(about["classes"]), domains, about["parameters"])
        try:
            method.load_state_dict(state, assign=True)
        except RuntimeError as error:
            raise UserError(
                f"{path / folder.MODEL} does not hold the weights that {folder.MODEL_ABOUT} describes; "
                "copy both files from the same run"
            ) from error
        method.to(place).eval()
        method.backbone.body.to(memory_format=torch.channels_last)  # the file does not keep it
        return cls(path, method, about | {"data": config["data"], "settings": config["settings"]}, place)

    def history(self) -> list[dict[str, Any]]:
        """Return the rows of ``metrics.jsonl``."""
        return folder.read_metrics(self.path / folder.METRICS)

    def predict(self, data: Inputs, *, format: str | None = None, root: Path | None = None) -> Predictions:
        """Predict whatever can be listed, by path, or an array of images ``(N, H, W, C)`` or features.

        Args:
            data: One or several folders, archives, lists, tables, array files or images, or an array or tensor.
            format: What lies at the paths, where these do not tell.
            root: Folder to which the paths of list files relate.
        """
        items: list[str] = []
        labels: list[str | None] = []
        nearest: list[str | None] = []
        errors: list[str | None] = []
        notes: dict[str, None] = {}
        listings = self._listings(data, format, root)
        probabilities = torch.empty(sum(map(len, listings)), len(self.classes))
        for part in chain.from_iterable(map(self._stream_listing, listings)):
            # Put in their places as they come: a GPU is at work meanwhile, at the end it would not be.
            probabilities.numpy()[len(items) : len(items) + len(part.items)] = part.probabilities
            items += part.items
            labels += part.labels
            nearest += part.nearest_source
            errors += part.errors
            notes |= dict.fromkeys(part.notes)
        return Predictions(items, labels, probabilities, nearest, errors, self.classes, tuple(notes))

    def stream(self, data: Inputs, *, format: str | None = None, root: Path | None = None) -> Iterator[Predictions]:
        """Predict the same, a chunk at a time: memory does not grow with the number of samples."""
        for listing in self._listings(data, format, root):
            yield from self._stream_listing(listing)

    def evaluate(
        self,
        data: str | Path | EvalSet,
        *,
        domain: str | None = None,
        format: str | None = None,
        root: Path | None = None,
    ) -> Evaluation:
        """Compare predictions with labels.

        Args:
            data: Labelled data by path (where it has a test part, that), or an `EvalSet`.
            domain: The source whose batch statistics read the samples, where they are its own; default: the target's.
            format: What lies at the path, where that does not tell.
            root: Folder to which the paths of a list file relate.
        """
        from graphmsda.data.classes import evaluation_indices
        from graphmsda.data.formats import open_listing

        number = self._domain_number(domain)
        confusion = torch.zeros(len(self.classes), len(self.classes), dtype=torch.int64)
        if isinstance(data, EvalSet):
            if data.y.shape != (len(data.x),) or int(data.y.min()) < 0 or int(data.y.max()) >= len(self.classes):
                raise UserError(
                    f"{data.name}: labels do not fit its {len(data.x)} samples; "
                    f"give one class index from 0 to {len(self.classes) - 1} for each"
                )
            self._check_shape(data.name, data.x.shape[1:])
            for part in self._answers(lambda rows: _all_kept(data.x[rows.start : rows.stop]), len(data.x), number):
                truth = data.y[part.rows.start : part.rows.stop].cpu()
                confusion += count_pairs(truth, part.best, len(self.classes))
            return summarise(confusion, self.classes, {})
        listing = open_listing(data, labelled=True, part="test", format=format, root=root, alone=True)
        notes = list(listing.notes)
        self._check_kind(listing, notes)
        truth = torch.tensor(evaluation_indices(listing.labels or (), self.classes, listing.origin, notes))
        names = listing.item_names
        unreadable: dict[str, str] = {}
        for part in self._answers(self._reader(listing), len(listing), number):
            confusion += count_pairs(truth[part.rows.start + _places(part)], part.best, len(self.classes))
            unreadable |= {names[part.rows[place]]: reason for place, reason in part.failures}
        if confusion.sum() == 0:
            raise UserError(f"{listing.origin}: none of {len(listing)} samples could be read; nothing to evaluate")
        return summarise(confusion, self.classes, unreadable, notes)

    def embed(self, x: Tensor) -> Tensor:
        """Embed samples as the model reads the target: ``(N, 3, H, W)`` uint8 or ``(N, F)`` -> ``(N, d)``."""
        with torch.inference_mode():
            chunks = torch.split(x, chunk_size(x.shape[1:], self.device))
            return torch.cat([embed(self.method, part.to(self.device)).cpu() for part in chunks])

    def _listings(self, data: Any, format: str | None, root: Path | None) -> list[Listing]:
        from graphmsda.data.formats import open_listing
        from graphmsda.data.readers.arrays import listing_of_arrays

        if isinstance(data, str | Path):
            data = [data]
        if not isinstance(data, list | tuple):
            return [listing_of_arrays(data, None, name="array")]
        listings = [open_listing(path, labelled=False, format=format, root=root, alone=True) for path in data]
        for listing in listings:  # before anything is predicted: half an answer helps nobody
            self._check_kind(listing, [])
        return listings

    def _domain_number(self, name: str | None) -> int:
        if name is not None and name not in self.domains:
            raise UserError(f"this run has no domain {name!r}; it has {', '.join(self.domains)}")
        return -1 if name is None else self.domains.index(name)

    def _check_kind(self, listing: Listing, notes: list[str]) -> None:
        """Refuse, before anything is decoded, features where images are expected and the other way round."""
        from graphmsda.data.task import check_columns

        features = listing.feature_count
        if features is not None:
            self._check_shape(str(listing.origin), [features])
            names = self.about.get("feature_names")
            check_columns("this model", None if names is None else tuple(names), listing, notes)
        elif len(self.about["shape"]) == 1:
            raise self._of_another_kind(str(listing.origin), "images")

    def _check_shape(self, origin: str, shape: Sequence[int]) -> None:
        if list(shape) != self.about["shape"]:
            raise self._of_another_kind(origin, _kind(shape))

    def _of_another_kind(self, origin: str, found: str) -> UserError:
        return UserError(
            f"{origin}: holds {found}, but this model reads {_kind(self.about['shape'])}; give data like those it was "
            "trained on"
        )

    @cached_property
    def _predictor(self) -> Predictor:
        with torch.inference_mode():
            return self.method.predictor()

    def _reader(self, listing: Listing) -> Callable[[range], Decoded]:
        from graphmsda.data.readers.arrays import ArrayListing

        read_some = listing.read_in_place if isinstance(listing, ArrayListing) else listing.read

        def read(rows: range) -> Decoded:
            decoded = read_some(rows, self.image_size)
            if decoded.kept:
                self._check_shape(str(listing.origin), decoded.x.shape[1:])
            return decoded

        return read

    def _answers(self, read: Callable[[range], Decoded], count: int, domain: int) -> Iterator[Answers]:
        parts = split_rows(count, self.about["shape"], self.device)
        return answer(self.method, self._predictor, self.device, read, parts, domain)

    def _stream_listing(self, listing: Listing) -> Iterator[Predictions]:
        import numpy as np

        notes, names_of = listing.notes, _namer(listing)
        classes, domains = (np.array(names, dtype=object) for names in (self.classes, self.domains))
        for part in self._answers(self._reader(listing), len(listing), -1):
            probabilities, count = part.probabilities, len(part.rows)
            labels: list[str | None] = classes[part.best.numpy()].tolist()
            nearest: list[str | None] = domains[part.nearest.numpy()].tolist()
            errors: list[str | None] = [None] * count
            if part.failures:
                places = _places(part)
                probabilities = torch.full((count, len(self.classes)), torch.nan).index_copy_(0, places, probabilities)
                labels, nearest = (_spread(values, part.kept, count) for values in (labels, nearest))
                for place, reason in part.failures:
                    errors[place] = reason
            yield Predictions(names_of(part.rows), labels, probabilities, nearest, errors, self.classes, notes)
            notes = ()  # once is enough


def _namer(listing: Listing) -> Callable[[range], list[str]]:
    """Return what names the items of some rows; it names none before it is asked, when a GPU is at work."""
    from graphmsda.data.readers.arrays import ArrayListing

    if isinstance(listing, ArrayListing):
        return listing.names_of
    names: list[str] = []

    def names_of(rows: range) -> list[str]:
        names.extend(() if names else listing.item_names)
        return names[rows.start : rows.stop]

    return names_of


def _all_kept(x: Tensor) -> Decoded:
    from graphmsda.data.images import Decoded

    return Decoded(x, list(range(len(x))), [])


def _places(part: Answers) -> Tensor:
    return torch.tensor(part.kept, dtype=torch.int64)


def _spread(values: Sequence[str | None], places: Sequence[int], count: int) -> list[str | None]:
    """Return a list of `count` with the values at their places and None elsewhere.

    >>> _spread(["a", "b"], [0, 2], 3)
    ['a', None, 'b']
    """
    result: list[str | None] = [None] * count
    for place, value in zip(places, values, strict=True):
        result[place] = value
    return result


def _kind(shape: Sequence[int]) -> str:
    """Return what samples of a shape are, for people.

    >>> _kind([3, 32, 32]), _kind([5])
    ('images of 32 x 32 pixels', 'feature vectors of length 5')
    """
    return f"feature vectors of length {shape[0]}" if len(shape) == 1 else f"images of {shape[1]} x {shape[2]} pixels"
