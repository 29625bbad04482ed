"""MNIST-M anew: handwritten digits blended with photographs, as Ganin et al. (JMLR 2016) describe it.

For a digit :math:`I^1` and a patch :math:`I^2` cut from a photograph at random, pixel by pixel and channel by channel,

.. math:: I^{out}_{ijk} = |I^1_{ijk} - I^2_{ijk}|

so that the background is the photograph and the stroke its negative. In the published pictures the digit has no grey,
and all that is not black in MNIST seems to count as white: on 938 of them with an even background, strokes cover per
digit on average within 6 % as many pixels as MNIST has above 0, and about 1.4 times as many as it has above 127.
A border makes 32 x 32 pixels of 28 x 28. So it is here. Photographs of training pictures and of test pictures are
different ones. They took those of BSDS500; others make other pictures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphmsda.data.benchmarks.benchmark import Found
from graphmsda.data.benchmarks.digits_five import find, read
from graphmsda.data.benchmarks.drawing import shuffled
from graphmsda.data.formats import open_listing, take_part
from graphmsda.data.images import Unreadable
from graphmsda.data.listing import Listing
from graphmsda.data.obtain.synthesis import PARTS, Dice, versions, write_pictures
from graphmsda.data.progress import amount_bar
from graphmsda.data.readers.folder import open_folder
from graphmsda.errors import UserError

SIDE, BORDER = 28, 2
SIZE = SIDE + 2 * BORDER
LONG_SIDE = 481  # to which photographs are shrunk: that of BSDS500, so that a patch holds as much of the scene
MOST_PHOTOGRAPHS = 500  # as many as BSDS500 has; more would only need more memory
TEST_SHARE = 0.2  # of the photographs
CHUNK = 2048
GIVE = "give the folder with MNIST's four files, or an archive with train/<digit>/ and test/<digit>/"

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Built:
    """What was written.

    Attributes:
        path: The archive.
        train: Number of training images.
        test: Number of test images.
        photographs: Number of photographs used, for training and for test.
        notes: One sentence for each thing worth knowing.
    """

    path: Path
    train: int
    test: int
    photographs: tuple[int, int]
    notes: tuple[str, ...]


def build_mnist_m(
    mnist: Listing | Path,
    photographs: Path,
    out: Path,
    *,
    seed: int = 0,
    processes: int | None = None,
    progress: bool = False,
) -> Built:
    """Blend every picture of MNIST with photographs into a zip file, the same for the same data and seed.

    Args:
        mnist: MNIST with labels and both parts: a listing, the folder with its four files or the one above, or an
            archive or folder with ``train/<digit>/`` and ``test/<digit>/``.
        photographs: A folder with photographs, however arranged.
        out: The zip file, such as ``digits-five/mnistm.zip``.
        seed: Seed of all that is random.
        processes: How many blend at the same time; by default one for each core.
        progress: Show progress bars on stderr.
    """
    if seed < 0:
        raise UserError(f"--seed {seed}: give a whole number not below 0")
    listings = {part: _part(mnist, part) for part in PARTS}
    scenes, notes = _scenes(photographs, seed, progress)
    digits = {part: _digits(listing, part, progress) for part, listing in listings.items()}
    labels = {part: listing.labels or () for part, listing in listings.items()}

    def draw(part: str, number: int) -> Pixels:
        return blend(Dice(seed, part, number), digits[part][number], scenes[part])

    about = {
        "what": "Rebuilt MNIST-M: not the published files of Ganin et al. but MNIST blended with other photographs in "
        "their manner, so results with them are not comparable to published ones.",
        "command": f"graphmsda data build-mnist-m --seed {seed}",
        "seed": seed,
        "versions": versions(),
        "mnist": {part: hashlib.sha256(pixels.data).hexdigest() for part, pixels in digits.items()},
        "photographs": {part: [hashlib.sha256(scene.data).hexdigest() for scene in scenes[part]] for part in PARTS},
    }
    write_pictures(out, labels, draw, about, processes=processes, progress=progress)
    counts = len(scenes["train"]), len(scenes["test"])
    return Built(out, len(digits["train"]), len(digits["test"]), counts, tuple(notes))


def blend(dice: Dice, digit: Pixels, scenes: Sequence[Pixels]) -> Pixels:
    """Return the difference of a digit (28 x 28) and a random patch of one of the photographs: ``(32, 32, 3)``."""
    scene = scenes[dice.below(len(scenes))]
    top, left = dice.below(scene.shape[0] - SIZE + 1), dice.below(scene.shape[1] - SIZE + 1)
    patch = scene[top : top + SIZE, left : left + SIZE]
    ink = np.pad(digit > 0, BORDER)[..., None]
    return np.where(ink, 255 - patch, patch)  # the difference to black is the patch, to white its negative


def _part(mnist: Listing | Path, part: str) -> Listing:
    if isinstance(mnist, Listing):
        listing = take_part(mnist, part)
        if mnist.parts is None or listing.labels is None:
            raise UserError(f"{mnist.origin}: give MNIST with labels and with a train and a test part")
        return listing
    found = find(mnist, "mt") if mnist.is_dir() else ""
    if isinstance(found, Found):
        return read(found, "mt", part, labelled=True, variant="full")
    try:
        listing = open_listing(mnist, labelled=True)
    except UserError as error:
        raise (UserError(f"--mnist {mnist}: {found}; {GIVE}") if found else error) from error
    if listing.parts is None:
        raise UserError(f"--mnist {mnist}: no train and test part in it; {GIVE}")
    return take_part(listing, part)


def _digits(listing: Listing, part: str, progress: bool) -> Pixels:
    """Return the pictures as ``(N, 28, 28)``; they are grey, so one channel tells all."""
    digits = np.empty((len(listing), SIDE, SIDE), dtype=np.uint8)
    with amount_bar(f"reading MNIST ({part})", len(listing), enabled=progress) as show:
        for start in range(0, len(listing), CHUNK):
            rows = range(start, min(start + CHUNK, len(listing)))
            decoded = listing.read(rows, SIDE)
            if decoded.failures:
                row, reason = decoded.failures[0]
                raise UserError(f"{listing.item_names[start + row]}: cannot be read ({reason}); give all of MNIST")
            digits[start : rows.stop] = decoded.x[:, 0].numpy()
            show(rows.stop)
    return digits


def _scenes(folder: Path, seed: int, progress: bool) -> tuple[dict[str, list[Pixels]], list[str]]:
    """Return the photographs for each part, no larger than needed, and notes on those left out."""
    if not folder.is_dir():
        raise UserError(f"--photographs {folder}: not a folder; give one with photographs, such as those of BSDS500")
    listing = open_folder(folder, labelled=False)
    seen: set[str] = set()
    scenes: list[Pixels] = []
    unfit = 0
    order = shuffled(len(listing), seed, "photographs")
    with amount_bar("reading photographs", min(len(listing), MOST_PHOTOGRAPHS), enabled=progress) as show:
        for row in order:
            if len(scenes) == MOST_PHOTOGRAPHS:
                break
            scene = _scene(listing, int(row))
            digest = hashlib.sha256(scene.data).hexdigest() if scene is not None else ""
            if scene is None or digest in seen:  # a copy could bring one photograph into both parts
                unfit += 1
                continue
            seen.add(digest)
            scenes.append(scene)
            show(len(scenes))
    if len(scenes) < 2:
        raise UserError(
            f"--photographs {folder}: {len(scenes)} of its {len(listing)} pictures can be used; give at least 2 "
            f"different ones of at least {SIZE} x {SIZE} pixels, one for training and one for test"
        )
    notes = [f"{folder}: {unfit} pictures are unreadable, too small or copies and were left out"] if unfit else []
    tests = max(1, round(TEST_SHARE * len(scenes)))
    return {"test": scenes[:tests], "train": scenes[tests:]}, notes


def _scene(listing: Listing, row: int) -> Pixels | None:
    try:
        picture = listing.picture(row)
    except Unreadable:
        return None
    picture.thumbnail((LONG_SIDE, LONG_SIDE))
    return np.array(picture) if min(picture.size) >= SIZE else None
