"""Images and labels in the IDX format of MNIST, compressed or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from graphmsda.data.listing import place_name
from graphmsda.data.readers.arrays import ArrayListing
from graphmsda.errors import UserError

MOST_BYTES = 4 << 30  # MNIST has 47 MB; a header that promises more than this is damaged


def open_idx(images: Path, labels: Path | None) -> ArrayListing:
    """List the images in one IDX file, with labels from another where given."""
    x = read_idx(images, dimensions=3)
    names: tuple[str, ...] | None = None
    if labels is not None:
        y = read_idx(labels, dimensions=1)
        if len(y) != len(x):
            raise UserError(
                f"{labels}: holds {len(y):,} labels, but {images.name} holds {len(x):,} images; "
                "take both files from the same download"
            )
        names = tuple(map(str, y.tolist()))
    shape = (*x.shape, 3)
    return ArrayListing(place_name(images), images, names, np.broadcast_to(x[..., None], shape))


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """Return the array of unsigned bytes in an IDX file of the given number of dimensions."""
    try:
        with cast("IO[Any]", gzip.open(path) if path.suffix == ".gz" else path.open("rb")) as file:
            shape = _shape(path, file, dimensions)
            size = math.prod(shape)
            if min(shape) < 1 or size > MOST_BYTES:
                raise UserError(f"{path}: its header promises an array of shape {shape}; download it again")
            data = file.read(size + 1)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise UserError(f"{path}: cannot be read as an IDX file ({error}); download it again") from error
    if len(data) != size:
        found = f"{len(data):,}" if len(data) < size else "more than that"
        raise UserError(f"{path}: its header promises {size:,} values, but it holds {found}; download it again")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _shape(path: Path, file: IO[Any], dimensions: int) -> tuple[int, ...]:
    # Two zero bytes, the type (8: unsigned bytes), the number of dimensions, then each length as a big-endian int32.
    zeros, kind, found = struct.unpack(">HBB", file.read(4))
    if (zeros, kind, found) != (0, 8, dimensions):
        what = "images" if dimensions == 3 else "labels"
        raise UserError(f"{path}: does not begin like an IDX file of {what}; download it again")
    return struct.unpack(f">{found}i", file.read(4 * found))
