"""Samples in memory, as a listing."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from graphmsda.data.images import Decoded, shrink
from graphmsda.data.listing import Listing, digest_of


@dataclass(frozen=True, eq=False)
class ArrayListing(Listing):
    """Samples in memory: uint8 ``(N, H, W, 3)`` or float32 ``(N, F)``.

    Attributes:
        x: The samples.
        columns: What the features are called, where they have names.
    """

    x: NDArray[Any]
    columns: tuple[str, ...] | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def item_names(self) -> list[str]:
        """The file and the row of each sample; in a file of several parts, the part and the row within it."""
        return self.names_of(range(len(self)))

    def names_of(self, rows: range) -> list[str]:
        """Return the names of consecutive samples; where there are no parts, without making those of all."""
        if self.parts is not None:
            return self._names_in_parts[rows.start : rows.stop]
        name = self.origin.name  # once: a path takes longer to find it than all the rest
        return [f"{name}[{row}]" for row in rows]

    @cached_property
    def _names_in_parts(self) -> list[str]:
        name, parts = self.origin.name, self.parts or ()
        counts = {part: itertools.count() for part in set(parts)}
        return [f"{name}[{part} {next(counts[part])}]" for part in parts]

    @property
    def feature_count(self) -> int | None:
        """The length of a feature vector; None for images."""
        return int(self.x.shape[1]) if self.x.ndim == 2 else None

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The names of a table's columns."""
        return self.columns

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

    def read_in_place(self, rows: range, image_size: int | None) -> Decoded:
        """Return the same for consecutive rows, as they lie: channels last, and where possible not copied.

        So nobody may write to them.
        """
        if self.x.ndim == 4 and image_size is not None and self.own_shape != (image_size, image_size):
            return self.read(rows, image_size)
        part = self.x[rows.start : rows.stop]
        grey = part.ndim == 4 and part.strides[3] == 0  # one channel, shown three times
        if grey:
            part = part[..., :1]
        if not part.flags.writeable or min(part.strides) < 0:  # of which PyTorch makes no tensor
            part = part.copy()
        x = torch.from_numpy(part)
        if part.ndim == 4:
            x = x.permute(0, 3, 1, 2).expand(-1, 3, -1, -1)
        return Decoded(x, list(range(len(part))), [])

    def picture(self, index: int) -> Image.Image:
        """Return one row as a picture."""
        return Image.fromarray(np.ascontiguousarray(self.x[index]))

    def identity(self) -> str:
        """Hash the samples themselves: they are in memory anyway."""
        chunks = (self.x[start : start + 4096] for start in range(0, len(self.x), 4096))
        digests = [hashlib.blake2b(np.ascontiguousarray(chunk).data).hexdigest() for chunk in chunks]
        return digest_of(self.x.shape, str(self.x.dtype), digests)


def _resize(rows: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    result = np.empty((len(rows), size, size, 3), dtype=np.uint8)
    for row, small in zip(rows, result, strict=True):
        picture = Image.fromarray(np.ascontiguousarray(row))
        small[...] = np.asarray(shrink(picture, size))
    return result
