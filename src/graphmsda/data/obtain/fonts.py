"""Fonts to draw digits with: found on the system or where the user says, and tried before they are used."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from graphmsda.errors import UserError

SUFFIXES = frozenset({".ttf", ".otf", ".ttc"})
DIGITS = "0123456789"
TRIAL = 64  # size at which digits are tried, in pixels
SIDE = 24  # side of the square to which they are squeezed for comparison
ENOUGH = 8  # fonts from which on they are compared with each other
GIVE = "give others with --fonts"


@dataclass(frozen=True)
class Face:
    """A font that has digits.

    Attributes:
        path: The file.
        name: Family and style.
        sha256: Checksum of the file.
        height: Height of its zero, as a share of the font's size.
    """

    path: Path
    name: str
    sha256: str
    height: float

    def at(self, size: int) -> ImageFont.FreeTypeFont:
        """Return the font at a size in pixels."""
        return _load(self.path, size)


def find_faces(places: Sequence[Path] | None) -> tuple[list[Face], int]:
    """Return the fonts that have digits, in an order that does not depend on where they lie, and the number of others.

    Args:
        places: Font files, or folders with some below them; the system's own fonts by default.
    """
    files = list(_system_files() if places is None else _files(places))
    if not files:
        if places is None:
            raise UserError("no fonts were found on this system; install some, or name files or folders with --fonts")
        raise UserError(f"--fonts {' '.join(map(str, places))}: no .ttf, .otf or .ttc files there; {GIVE}")
    tried: dict[str, tuple[Face, NDArray[np.float64]]] = {}
    seen: set[str] = set()
    for path in files:
        try:
            checksum = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError:
            continue
        if checksum not in seen and (trial := _try(path, checksum)) is not None:
            tried[checksum] = trial
        seen.add(checksum)
    chosen = _alike([tried[checksum] for checksum in sorted(tried)])
    if not chosen:
        raise UserError(f"none of the {len(files)} fonts found has the digits 0 to 9; {GIVE}")
    return chosen, len(seen) - len(chosen)


def _files(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_file():
            yield place
        elif place.is_dir():
            below = (Path(folder, file) for folder, _, files in os.walk(place) for file in files)
            yield from sorted(path for path in below if path.suffix.lower() in SUFFIXES)
        else:
            raise UserError(f"--fonts {place}: not found; give a font file or a folder of fonts")


def _system_files() -> Iterator[Path]:
    try:
        listed = subprocess.run(
            ["fc-list", "--format", "%{file}\n"], capture_output=True, timeout=60, check=True
        ).stdout
        files = {Path(os.fsdecode(line)) for line in listed.splitlines()}
    except (OSError, subprocess.SubprocessError):
        files = set()
    if not files:
        home = Path.home()
        folders = {
            "darwin": [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"],
            "win32": [Path(os.environ.get("WINDIR", r"C:\Windows"), "Fonts")],
        }.get(sys.platform, [Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), home / ".fonts"])
        files = set(_files([folder for folder in folders if folder.is_dir()]))
    yield from sorted(path for path in files if path.suffix.lower() in SUFFIXES)


def _try(path: Path, checksum: str) -> tuple[Face, NDArray[np.float64]] | None:
    """Return a font and its ten digits as unit vectors; None if it has none, or draws them blank or all alike."""
    try:
        font = _load(path, TRIAL)
        boxes = [font.getbbox(digit, anchor="ls") for digit in DIGITS]
        if any(right - left < 2 or bottom - top < 2 for left, top, right, bottom in boxes):
            return None
        vectors = np.stack([_vector(font, digit, box) for digit, box in zip(DIGITS, boxes, strict=True)])
        name = " ".join(part for part in font.getname() if part)
    except (OSError, ValueError, OverflowError, MemoryError):  # no font, a damaged one, or one of bitmaps
        return None
    likeness = vectors @ vectors.T - np.eye(len(DIGITS))
    # A font without digits draws the same box for each; blank ones are zero vectors.
    if not np.isfinite(vectors).all() or likeness.max() > 0.995 or np.linalg.norm(vectors, axis=1).min() < 0.5:
        return None
    return Face(path, name, checksum, (boxes[0][3] - boxes[0][1]) / TRIAL), vectors


def _vector(font: ImageFont.FreeTypeFont, digit: str, box: tuple[float, float, float, float]) -> NDArray[np.float64]:
    left, top, right, bottom = (int(edge) for edge in box)
    glyph = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(glyph).text((-left, -top), digit, fill=255, font=font, anchor="ls")
    pixels = np.asarray(glyph.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float64).ravel()
    pixels -= pixels.mean()
    return pixels / max(float(np.linalg.norm(pixels)), 1e-9)


def _alike(tried: list[tuple[Face, NDArray[np.float64]]]) -> list[Face]:
    """Leave out fonts of symbols, whose digits are nobody else's: most of them look less like the average digit."""
    if len(tried) < ENOUGH:
        return [face for face, _ in tried]
    average = np.mean([vectors for _, vectors in tried], axis=0)
    average -= average.mean(axis=0)  # what all digits share does not tell them apart
    chosen = []
    for face, vectors in tried:
        recognised = np.argmax(vectors @ average.T, axis=1) == np.arange(len(DIGITS))
        if recognised.sum() >= 6:
            chosen.append(face)
    return chosen


@lru_cache(maxsize=256)
def _load(path: Path, size: int) -> ImageFont.FreeTypeFont:
    # The basic layout is the same whether or not a library for complex scripts is installed.
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)
