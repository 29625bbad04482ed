"""Picture files to pixels: any format, size and mode in, uint8 ``(3, size, size)`` out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"})

# EXIF orientation to the move that sets the picture upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


MOST_PIXELS = 64_000_000  # 8,000 x 8,000: what a picture may unfold to in memory


class Unreadable(Exception):  # noqa: N818 - it describes the picture
    """A picture that cannot be decoded; the message is a short reason such as ``truncated``."""


def is_image_name(name: str) -> bool:
    """Return whether a file of this name is taken for a picture.

    >>> is_image_name("cat.JPG"), is_image_name("notes.txt")
    (True, False)
    """
    return Path(name).suffix.lower() in SUFFIXES


@dataclass(frozen=True)
class Decoded:
    """The samples that could be read.

    Attributes:
        x: Images, uint8 ``(N, 3, H, W)``, or features, float32 ``(N, F)``, in the order asked for.
        kept: For each row of `x` its position within the indices asked for.
        failures: Position within the indices asked for, and the reason, of each sample that could not be read.
    """

    x: Tensor
    kept: list[int]
    failures: list[tuple[int, str]]


def decode(file: Path | BinaryIO, size: int) -> NDArray[np.uint8]:
    """Read the whole picture, squeezed to `size` x `size`, upright and in colour, as `load_picture` describes.

    Raises:
        Unreadable: The file is empty, truncated, damaged, unreasonably large or no picture.
    """
    # JPEG can skip most of the work for large pictures; twice the size leaves the antialiasing to the resize.
    with _opened(file, draft=2 * size) as (rgb, orientation):
        return to_array(_upright(shrink(rgb, size), orientation))


def load_picture(file: Path | BinaryIO) -> Image.Image:
    """Read the whole picture at its own size, upright and in colour (mode RGB).

    Transparent parts are shown on white, as on a page. Of an animation the first frame is taken. Grey levels of more
    than 8 bits are scaled down from 16 bits; floating-point pictures are read as 0 to 1 or 0 to 255 where their values
    lie in that range, and are stretched from their smallest to their largest value otherwise.

    Raises:
        Unreadable: The file is empty, truncated, damaged, unreasonably large or no picture.
    """
    with _opened(file, draft=None) as (rgb, orientation):
        return _upright(rgb, orientation)


def decode_all(get: Callable[[int], Path | BinaryIO], indices: Sequence[int], size: int) -> Decoded:
    """Decode the pictures that `get` opens for each of `indices`, several at a time."""

    def attempt(index: int) -> NDArray[np.uint8] | str:
        try:
            file = get(index)
            return decode(file, size)
        except Unreadable as error:
            return str(error)

    x = torch.empty((len(indices), 3, size, size), dtype=torch.uint8)
    pixels = x.numpy()
    kept: list[int] = []
    failures: list[tuple[int, str]] = []
    with quiet_decoding(), ThreadPoolExecutor(THREADS or os.cpu_count()) as pool:
        for position, result in enumerate(pool.map(attempt, indices)):
            if isinstance(result, str):
                failures.append((position, result))
            else:
                pixels[len(kept)] = result
                kept.append(position)
    return Decoded(x[: len(kept)], kept, failures)


THREADS: int | None = None  # None: one a core; set to 1 in processes that decode beside others


@contextmanager
def quiet_decoding() -> Iterator[None]:
    """Silence what decoders say of odd files; filters are shared by all threads, so set them before those start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", ResourceWarning)
        yield


def image_size(file: Path | BinaryIO) -> tuple[int, int] | None:
    """Return ``(width, height)`` of a picture from its header alone; None where there is no legible header."""
    try:
        with Image.open(file) as image:
            return image.size
    except Exception:  # decoding will tell what is wrong with it
        return None


def image_sizes(files: Iterable[Path | BinaryIO]) -> list[tuple[int, int]]:
    """Return ``(width, height)`` of each picture that has a legible header."""
    with quiet_decoding():
        return [size for size in map(image_size, files) if size is not None]


def shrink(picture: Image.Image, size: int) -> Image.Image:
    """Squeeze a picture to `size` x `size`."""
    if picture.size == (size, size):
        return picture
    return picture.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)


def to_array(picture: Image.Image) -> NDArray[np.uint8]:
    """Return the pixels of an RGB picture with the channels first, ``(3, H, W)``."""
    return np.ascontiguousarray(np.asarray(picture, dtype=np.uint8).transpose(2, 0, 1))


@contextmanager
def _opened(file: Path | BinaryIO, draft: int | None) -> Iterator[tuple[Image.Image, int]]:
    """Yield a picture in colour, not yet upright, and its orientation; whatever goes wrong becomes `Unreadable`."""
    try:
        with Image.open(file) as image:
            if image.width * image.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            if draft is not None:
                image.draft(None, (draft, draft))
            image.load()  # before the orientation, which would load too, swallow a failure and leave half a picture
            orientation = _orientation(image)
            rgb = _to_rgb(image)
        yield rgb, orientation
    except Exception as error:  # damaged files make decoders raise nearly anything
        raise Unreadable(_reason(file, error)) from error


def _upright(picture: Image.Image, orientation: int) -> Image.Image:
    return picture.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else picture


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # a damaged note about the camera is no reason to refuse the picture
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_bytes(np.asarray(image), image.mode)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _to_bytes(values: NDArray[np.generic], mode: str) -> NDArray[np.uint8]:
    grey = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(grey.min()), float(grey.max())
    usual = (1.0, 255.0) if mode == "F" else (65535.0,)
    start, end = next(((0.0, top) for top in usual if low >= 0 and high <= top), (low, high))
    return np.round((grey - start) / max(end - start, 1e-9) * 255.0).astype(np.uint8)


def _reason(file: Path | BinaryIO, error: Exception) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "too many pixels"
    if isinstance(error, FileNotFoundError):
        return "file not found"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, UnidentifiedImageError):
        return "empty file" if _is_empty(file) else "not a picture or damaged"
    if "truncated" in str(error).lower():
        return "truncated"
    return f"damaged ({type(error).__name__})"


def _is_empty(file: Path | BinaryIO) -> bool:
    return file.stat().st_size == 0 if isinstance(file, Path) else file.seek(0, 2) == 0
