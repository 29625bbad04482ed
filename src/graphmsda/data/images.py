"""One picture file to pixels: any format, size and mode in, uint8 ``(3, size, size)`` out."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError

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


class Unreadable(Exception):  # noqa: N818 - it describes the picture
    """A picture that cannot be decoded; the message is a short reason such as ``truncated``."""


def is_image_name(name: str) -> bool:
    """Return whether a file of this name is taken for a picture.

    >>> is_image_name("cat.JPG"), is_image_name("notes.txt")
    (True, False)
    """
    return Path(name).suffix.lower() in SUFFIXES


def decode(file: Path | BinaryIO, size: int) -> NDArray[np.uint8]:
    """Read the whole picture, squeezed to `size` x `size`, upright and in colour.

    Transparent parts are shown on white, as on a page. Of an animation the first frame is taken. Grey levels of more
    than 8 bits are scaled down from 16 bits; floating-point pictures are read as 0 to 1 or 0 to 255 where their values
    lie in that range, and are stretched from their smallest to their largest value otherwise.

    Raises:
        Unreadable: The file is empty, truncated, damaged, unreasonably large or no picture.
    """
    try:
        with Image.open(file) as image:
            # JPEG can skip most of the work for large pictures; twice the size leaves the antialiasing to the resize.
            image.draft(None, (2 * size, 2 * size))
            image.load()  # before the orientation, which would load too, swallow a failure and leave half a picture
            orientation = _orientation(image)
            rgb = _to_rgb(image)
        small = rgb.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0)
        if orientation in _UPRIGHT:
            small = small.transpose(_UPRIGHT[orientation])
        return np.ascontiguousarray(np.asarray(small, dtype=np.uint8).transpose(2, 0, 1))
    except Exception as error:  # damaged files make decoders raise nearly anything
        raise Unreadable(_reason(file, error)) from error


def image_sizes(paths: Iterable[Path]) -> list[tuple[int, int]]:
    """Return ``(width, height)`` of each picture from its header alone; files without a legible header are left out."""
    sizes: list[tuple[int, int]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        for path in paths:
            try:
                with Image.open(path) as image:
                    sizes.append(image.size)
            except Exception:  # decoding will tell what is wrong with it
                continue
    return sizes


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
