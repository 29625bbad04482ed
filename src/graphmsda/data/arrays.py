"""Arrays in ``.npz`` files: ``x`` with images or features and, where labels are wanted, ``y``."""

from __future__ import annotations

import hashlib
import unicodedata
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from graphmsda.data.images import Decoded, shrink
from graphmsda.data.listing import Listing, digest_of, place_name
from graphmsda.errors import UserError

EXPECTED = "give uint8 images (N, H, W) or (N, H, W, 1 or 3), or floating-point features (N, F)"


@dataclass(frozen=True, eq=False)
class ArrayListing(Listing):
    """Samples in memory: uint8 ``(N, H, W, 3)`` or float32 ``(N, F)``."""

    x: NDArray[Any]

    def __len__(self) -> int:
        return len(self.x)

    @property
    def item_names(self) -> list[str]:
        """The file and the row of each sample."""
        return [f"{self.origin.name}[{row}]" for row in range(len(self))]

    @property
    def feature_count(self) -> int | None:
        """The length of a feature vector; None for images."""
        return int(self.x.shape[1]) if self.x.ndim == 2 else None

    @property
    def own_shape(self) -> tuple[int, int] | None:
        """Height and width of the images; None for features."""
        return None if self.x.ndim == 2 else (int(self.x.shape[1]), int(self.x.shape[2]))

    def sides(self, limit: int) -> list[int]:
        """Return the smaller side, as often as there are images but at most `limit` times."""
        return [min(self.own_shape)] * min(limit, len(self)) if self.own_shape else []

    def read(self, indices: Sequence[int], image_size: int | None) -> Decoded:
        """Return the rows at `indices`; images are resized where `image_size` is given and differs from theirs."""
        rows = self.x[np.asarray(indices, dtype=np.int64)]
        if rows.ndim == 4:
            if image_size is not None and self.own_shape != (image_size, image_size):
                rows = _resize(rows, image_size)
            rows = np.ascontiguousarray(rows.transpose(0, 3, 1, 2))
        return Decoded(torch.from_numpy(rows), list(range(len(rows))), [])

    def picture(self, index: int) -> Image.Image:
        """Return one row as a picture."""
        return Image.fromarray(np.ascontiguousarray(self.x[index]))

    def identity(self) -> str:
        """Hash the samples themselves: they are in memory anyway."""
        chunks = (self.x[start : start + 4096] for start in range(0, len(self.x), 4096))
        digests = [hashlib.blake2b(np.ascontiguousarray(chunk).data).hexdigest() for chunk in chunks]
        return digest_of(self.x.shape, str(self.x.dtype), digests)


def open_arrays(path: Path, *, labelled: bool, root: Path | None = None) -> ArrayListing:
    """Read an ``.npz`` file; without `labelled` its ``y`` is not even opened."""
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UserError(f"{path}: holds one bare array; save it with np.savez(file, x=..., y=...)")
            x = _samples(path, _member(path, archive, "x"))
            labels = _labels(path, _member(path, archive, "y"), len(x)) if labelled else None
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path}: cannot be read as .npz; save it anew with np.savez(file, x=..., y=...)") from error
    return ArrayListing(place_name(path.with_suffix("")), path, labels, x)


def listing_of_arrays(x: Any, labels: Sequence[str] | None, *, name: str) -> ArrayListing:
    """Wrap an array or tensor already in memory; images may have their channels last or first."""
    array = np.asarray(x)
    if array.ndim == 4 and array.shape[3] not in (1, 3) and array.shape[1] in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    return ArrayListing(name, Path(name), None if labels is None else tuple(labels), _samples(Path(name), array))


def _member(path: Path, archive: np.lib.npyio.NpzFile, key: str) -> NDArray[Any]:
    if key not in archive.files:
        found = ", ".join(archive.files) or "nothing"
        raise UserError(
            f"{path}: no array named {key!r} in it (found: {found}); save it with np.savez(file, x=..., y=...)"
        )
    try:
        return np.asarray(archive[key])
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise UserError(
            f"{path}: {key!r} holds Python objects, which are not loaded because they could run code; "
            "save it as an array of numbers" + (" or strings" if key == "y" else "")
        ) from error


def _samples(path: Path, x: NDArray[Any]) -> NDArray[Any]:
    found = f"{path}: x is {x.dtype} of shape {x.shape}"
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        if x.ndim == 3:
            x = x[..., None]
        if x.shape[3] not in (1, 3):
            hint = "move the channels last" if x.shape[1] in (1, 3) else EXPECTED
            raise UserError(f"{found}, images with {x.shape[3]} channels; {hint}")
        x = np.broadcast_to(x, (*x.shape[:3], 3))
    elif np.issubdtype(x.dtype, np.floating) and x.ndim == 2:
        x = _finite(path, x)
    else:
        raise UserError(f"{found}; {EXPECTED}")
    if 0 in x.shape:
        raise UserError(f"{found}, which is empty; give at least one sample")
    return x


def _finite(path: Path, x: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        features = x.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(bad):
        raise UserError(
            f"{path}: {len(bad)} of {len(x)} rows of x hold values that are not finite in 32 bits "
            f"(first: row {bad[0]}); fill in or remove them"
        )
    return features


def _labels(path: Path, y: NDArray[Any], count: int) -> tuple[str, ...]:
    if y.ndim != 1 or y.dtype.kind not in "iuU":
        raise UserError(f"{path}: y is {y.dtype} of shape {y.shape}; give one integer or string for each sample")
    if len(y) != count:
        raise UserError(f"{path}: {count} samples in x but {len(y)} labels in y; give one label for each sample")
    return tuple(unicodedata.normalize("NFC", str(label)) for label in y.tolist())


def _resize(rows: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    result = np.empty((len(rows), size, size, 3), dtype=np.uint8)
    for row, small in zip(rows, result, strict=True):
        picture = Image.fromarray(np.ascontiguousarray(row))
        small[...] = np.asarray(shrink(picture, size))
    return result
