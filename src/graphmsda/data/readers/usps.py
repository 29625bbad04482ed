"""USPS digits, 16 x 16 grey: the LIBSVM text files and the ``usps.h5`` that circulates."""

from __future__ import annotations

import bz2
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphmsda.data.listing import place_name
from graphmsda.data.readers.arrays import ArrayListing
from graphmsda.errors import UserError

SIDE = 16
PIXELS = SIDE * SIDE
MOST_BYTES = 256 << 20  # of text; the training part has 22 MB


def open_libsvm(path: Path, *, labelled: bool) -> ArrayListing:
    """List one part in LIBSVM's text format: ``label 1:value ... 256:value``, labels 1 to 10, values -1 to 1.

    Without `labelled` the first word of a line is passed over unread.
    """
    try:
        with bz2.open(path) if path.suffix == ".bz2" else path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error}); download it again") from error
    if len(text) > MOST_BYTES:
        raise UserError(f"{path}: holds more than {MOST_BYTES >> 20} MB of text, so it is not USPS; download it again")
    lines = [line for line in text.splitlines() if line.strip()]
    values = np.zeros((len(lines), PIXELS))
    labels: list[str] = []
    for number, line in enumerate(lines):
        words = line.split()
        try:
            pairs = [word.split(b":") for word in words[1:]]
            values[number, [int(place) - 1 for place, _ in pairs]] = [float(value) for _, value in pairs]
            if labelled:
                labels.append(_digit(int(float(words[0])) - 1))
        except (ValueError, IndexError) as error:
            raise UserError(
                f"{path}: line {number + 1} is not of the form 'label 1:value ... {PIXELS}:value' with labels 1 to 10; "
                "download it again"
            ) from error
    return _listing(path, (values + 1.0) / 2.0, tuple(labels) if labelled else None)


def open_usps_h5(path: Path, part: str, *, labelled: bool) -> ArrayListing:
    """List one part of ``usps.h5``: groups ``train`` and ``test``, each with ``data`` (N, 256) and ``target``."""
    import h5py

    try:
        with h5py.File(path, "r") as file:
            values = np.asarray(file[f"{part}/data"], dtype=np.float64)
            numbers = np.asarray(file[f"{part}/target"]).reshape(-1).tolist() if labelled else None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be read as usps.h5, with {part}/data and {part}/target in it ({error}); download it again"
        ) from error
    if values.ndim < 2 or values[:1].size != PIXELS or (numbers is not None and len(numbers) != len(values)):
        raise UserError(f"{path}: {part}/data has shape {values.shape} instead of (N, {PIXELS}); download it again")
    try:
        labels = None if numbers is None else tuple(_digit(int(number)) for number in numbers)
    except ValueError as error:
        raise UserError(f"{path}: {part}/target holds labels that are not 0 to 9; download it again") from error
    return _listing(path, values.reshape(len(values), PIXELS), labels)


def _digit(number: int) -> str:
    if not 0 <= number <= 9:
        raise ValueError(number)
    return str(number)


def _listing(path: Path, brightness: NDArray[Any], labels: tuple[str, ...] | None) -> ArrayListing:
    if not len(brightness):
        raise UserError(f"{path}: holds no images; download it again")
    if not (brightness.min() >= -0.01 and brightness.max() <= 1.01):  # written so that NaN fails
        raise UserError(f"{path}: holds values that are not grey levels; download it again")
    grey = np.rint(np.clip(brightness, 0.0, 1.0) * 255.0).astype(np.uint8).reshape(-1, SIDE, SIDE, 1)
    return ArrayListing(place_name(path), path, labels, np.broadcast_to(grey, (*grey.shape[:3], 3)))
