"""Domains made on the spot: pictures drawn one by one from a seed and written into an archive that says so.

Each picture has random numbers of its own, made from the seed, its part and its number, so that the archive is the same
however many processes draw it.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from graphmsda.data.benchmarks.digits_five import MARKER
from graphmsda.data.progress import amount_bar
from graphmsda.errors import UserError
from graphmsda.files import replacing
from graphmsda.forked import map_in_order

PARTS = ("train", "test")
CHUNK = 128  # pictures handed to a process at a time
FEW = 500  # pictures below which starting processes costs more than it saves
STAMP = (1980, 1, 1, 0, 0, 0)  # of every file in the archive: the same picture is the same bytes whenever it is drawn

Draw = Callable[[str, int], NDArray[np.uint8]]  # part and number of a picture to its pixels (H, W, 3)


class Dice:
    """Random numbers for one picture, from the raw stream of PCG64, which numpy keeps as it is."""

    def __init__(self, seed: int, part: str, number: int) -> None:
        self._bits = np.random.PCG64([seed, PARTS.index(part), number])

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return a number from `low` to below `high`."""
        return low + (high - low) * (int(self._bits.random_raw()) >> 11) * 2.0**-53

    def below(self, count: int) -> int:
        """Return a whole number from 0 to below `count`."""
        return int(self._bits.random_raw()) * count >> 64


def write_pictures(
    out: Path,
    labels: Mapping[str, Sequence[str]],
    draw: Draw,
    about: Mapping[str, object],
    *,
    processes: int | None = None,
    progress: bool = False,
) -> None:
    """Draw pictures into ``<part>/<label>/<number>.png`` of a zip file, whole or not at all.

    Args:
        out: The zip file; one that this function made before is replaced.
        labels: The label of each picture of each part.
        draw: Draws one.
        about: What to record in the archive, fit for JSON; ``what`` is a sentence for people.
        processes: How many draw at the same time; by default one for each core.
        progress: Show a progress bar on stderr.
    """
    _check_out(out)
    jobs = [(part, number) for part in PARTS for number in range(len(labels[part]))]
    title = f"writing {out.name}"
    with (
        amount_bar(title, len(jobs), enabled=progress) as show,
        replacing(out) as beside,
        zipfile.ZipFile(beside, "w", zipfile.ZIP_STORED) as archive,  # PNG is compressed already
    ):
        record = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
        archive.writestr(zipfile.ZipInfo("README.txt", STAMP), f"{about['what']}\n\n{record}")
        archive.writestr(zipfile.ZipInfo(MARKER, STAMP), record)
        done = 0
        for pictures in _drawn(jobs, draw, processes, out):
            for content in pictures:
                part, number = jobs[done]
                name = f"{part}/{labels[part][number]}/{number}.png"
                archive.writestr(zipfile.ZipInfo(name, STAMP), content)
                done += 1
            show(done)


def versions() -> dict[str, str]:
    """Return the versions on which the pixels may depend."""
    import PIL
    from PIL import features

    from graphmsda import __version__

    freetype = str(features.version("freetype2"))
    return {"graphmsda": __version__, "pillow": PIL.__version__, "freetype": freetype, "numpy": np.__version__}


def _check_out(out: Path) -> None:
    if out.suffix.lower() != ".zip":
        raise UserError(f"--out {out}: give the name of a .zip file to write")
    if not out.exists():
        return
    try:
        with zipfile.ZipFile(out) as archive:
            if MARKER in archive.namelist():
                return
    except (OSError, zipfile.BadZipFile):
        pass
    raise UserError(f"--out {out}: is there and was not made by this command; choose another or move it away")


def _drawn(jobs: Sequence[tuple[str, int]], draw: Draw, processes: int | None, out: Path) -> Iterator[list[bytes]]:
    """Yield the pictures chunk by chunk, in order."""

    def encode(chunk: Sequence[tuple[str, int]]) -> list[bytes]:
        encoded = []
        for part, number in chunk:
            content = io.BytesIO()
            Image.fromarray(draw(part, number)).save(content, "png")
            encoded.append(content.getvalue())
        return encoded

    chunks = [jobs[start : start + CHUNK] for start in range(0, len(jobs), CHUNK)]
    return map_in_order(encode, chunks, what=str(out), processes=1 if len(jobs) < FEW else processes)
