"""Picture files to pixels: any format, size and mode in, uint8 ``(3, size, size)`` out."""

from __future__ import annotations

import errno
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from graphmsda.data.budget import Budget

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
MOST_SIDE = 1_000_000  # a row takes memory too, however short
MOST_BYTES = 256 * 2**20  # of a picture file: some decoders take in the whole file, however large

# Some decoders of Pillow's start other programs or are hardly tested; a wrong suffix must not lead to them.
_READERS = ("JPEG", "PNG", "WEBP", "BMP", "DIB", "TIFF", "GIF", "PPM")
_GAP = 3.0  # how many times the size wanted is left to the careful part of making a picture smaller
_TILE = 1024  # side of the pieces in which large pictures are converted, for conversions need several times the memory
_BYTES_PER_PIXEL = {"WEBP": 16}  # that decoding takes, about; 8 for other formats
_MEMORY = Budget(8 * MOST_PIXELS)
# Pillow takes memory in blocks. glibc gives blocks above 32 MiB back at once, but keeps smaller ones for each thread.
Image.core.set_block_size(64 * 2**20)  # type: ignore[attr-defined]


class Unreadable(Exception):  # noqa: N818 - it describes the picture
    """A picture that cannot be decoded; the message is a short reason such as ``truncated``."""


def is_image_name(name: str) -> bool:
    """Return whether a file of this name is taken for a picture.

    >>> is_image_name("cat.JPG"), is_image_name("notes.txt")
    (True, False)
    """
    return os.path.splitext(name)[1].lower() in SUFFIXES


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
    with _opened(file, draft=2 * size) as (image, orientation):
        return to_array(_upright(_squeeze(image, size), orientation))


def load_picture(file: Path | BinaryIO) -> Image.Image:
    """Read the whole picture at its own size, upright and in colour (mode RGB).

    Transparent parts are shown on white, as on a page. Of an animation the first frame is taken. Grey levels of more
    than 8 bits are scaled down from 16 bits; floating-point pictures are read as 0 to 1 or 0 to 255 where their values
    lie in that range, and are stretched from their smallest to their largest value otherwise.

    Raises:
        Unreadable: The file is empty, truncated, damaged, unreasonably large or no picture.
    """
    with _opened(file, draft=None) as (image, orientation):
        return _upright(_to_rgb(image), orientation)


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
    with quiet_decoding(), ThreadPoolExecutor(THREADS or _thread_count(size)) as pool:
        for position, result in enumerate(pool.map(attempt, indices)):
            if isinstance(result, str):
                failures.append((position, result))
            else:
                pixels[len(kept)] = result
                kept.append(position)
    return Decoded(x[: len(kept)], kept, failures)


THREADS: int | None = None  # None: as many as help; set to 1 in processes that decode beside others


def _thread_count(size: int) -> int:
    # Small pictures keep the interpreter busy, which is one at a time: more threads would only wait for each other.
    return 2 if size <= 64 else os.cpu_count() or 1


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
        _check_file(file)
        with Image.open(file, formats=_READERS) as image:
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
    return picture.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=_GAP)


def to_array(picture: Image.Image) -> NDArray[np.uint8]:
    """Return the pixels of an RGB picture with the channels first, ``(3, H, W)``."""
    return np.ascontiguousarray(np.asarray(picture, dtype=np.uint8).transpose(2, 0, 1))


@contextmanager
def _opened(file: Path | BinaryIO, draft: int | None) -> Iterator[tuple[Image.Image, int]]:
    """Yield a loaded picture, not yet upright, and its orientation; whatever goes wrong becomes `Unreadable`."""
    try:
        _check_file(file)
        # Closed when done, which frees the pixels before another picture takes their room; leaving a `with` would not.
        with _MEMORY.spending() as spend, closing(Image.open(file, formats=_READERS)) as image:
            each = _BYTES_PER_PIXEL.get(image.format or "", 8)
            pixels = image.width * image.height
            if pixels > MOST_PIXELS or pixels * each > _MEMORY.total or max(image.size) > MOST_SIDE:
                raise Image.DecompressionBombError
            if draft is not None:
                image.draft(None, (draft, draft))
                if not image.info.get("progressive"):  # these are unfolded as a whole, whatever size is asked for
                    pixels = image.width * image.height
            spend(pixels * each)
            image.load()  # before the orientation, which would load too, swallow a failure and leave half a picture
            yield image, _orientation(image)
    except Exception as error:  # damaged files make decoders raise nearly anything
        raise Unreadable(_reason(error)) from error


def _check_file(file: Path | BinaryIO) -> None:
    """Refuse what is not worth opening, and pipes, which would wait for ever."""
    if isinstance(file, Path):
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("not a file")
        count = status.st_size
    else:
        count = file.seek(0, os.SEEK_END)
        file.seek(0)
    if count == 0:
        raise Unreadable("empty file")
    if count > MOST_BYTES:
        raise Unreadable("too large")


def _upright(picture: Image.Image, orientation: int) -> Image.Image:
    return picture.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else picture


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # a damaged note about the camera is no reason to refuse the picture
        return 1


def _squeeze(image: Image.Image, size: int) -> Image.Image:
    """Return a picture of any mode in RGB, squeezed to `size` x `size`, without a second copy of a large one."""
    if max(image.size) <= _TILE:
        return shrink(_to_rgb(image), size)
    # As `shrink` does: by whole factors down to three times the size, then carefully.
    across, down = (max(1, int(side / size / _GAP)) for side in image.size)
    box = (0.0, 0.0, image.width / across, image.height / down)
    return _to_rgb(image, across, down).resize((size, size), Image.Resampling.BILINEAR, box=box)


def _to_rgb(image: Image.Image, across: int = 1, down: int = 1) -> Image.Image:
    """Return a picture of any mode in RGB, made smaller by whole factors, converted piece by piece."""
    limits = _limits(image) if _is_deep(image) else None
    if max(image.size) <= _TILE and across == down == 1:
        return _convert(image, limits)
    if image.mode == "RGB" and not image.has_transparency_data:
        return image.reduce((across, down)) if across > 1 or down > 1 else image.copy()
    result = Image.new("RGB", (-(-image.width // across), -(-image.height // down)))
    for left, top, piece in _pieces(image, across, down):
        result.paste(_convert(piece, limits).reduce((across, down)), (left // across, top // down))
    return result


def _pieces(image: Image.Image, across: int = 1, down: int = 1) -> Iterator[tuple[int, int, Image.Image]]:
    """Yield left and top of pieces that cover a picture, and the pieces; the steps are multiples of the factors."""
    wide, high = (max(1, _TILE // factor) * factor for factor in (across, down))
    for top in range(0, image.height, high):
        for left in range(0, image.width, wide):
            right, bottom = min(left + wide, image.width), min(top + high, image.height)
            yield left, top, image.crop((left, top, right, bottom))


def _convert(image: Image.Image, limits: tuple[float, float] | None) -> Image.Image:
    if limits is not None:
        return Image.fromarray(_to_bytes(image, *limits)).convert("RGB")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _is_deep(image: Image.Image) -> bool:
    return image.mode.startswith("I") or image.mode == "F"


def _limits(image: Image.Image) -> tuple[float, float]:
    """Return the values of a picture with deep grey levels that mean black and white."""
    ranges = [(float(grey.min()), float(grey.max())) for grey in (_grey(piece) for _, _, piece in _pieces(image))]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    usual = (1.0, 255.0) if image.mode == "F" else (65535.0,)
    return next(((0.0, top) for top in usual if low >= 0 and high <= top), (low, high))


def _grey(image: Image.Image) -> NDArray[np.float64]:
    return np.nan_to_num(np.asarray(image).astype(np.float64), posinf=0.0, neginf=0.0)


def _to_bytes(image: Image.Image, black: float, white: float) -> NDArray[np.uint8]:
    return np.round((_grey(image) - black) / max(white - black, 1e-9) * 255.0).astype(np.uint8)


def _reason(error: Exception) -> str:
    if isinstance(error, Unreadable):
        return str(error)
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return "too many pixels"
    if isinstance(error, FileNotFoundError):
        return "file not found"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "a link that leads in circles"
    if isinstance(error, UnidentifiedImageError):
        return "not a picture or damaged"
    if "truncated" in str(error).lower():
        return "truncated"
    return f"damaged ({type(error).__name__})"
