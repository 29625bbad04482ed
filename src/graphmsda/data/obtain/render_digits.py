"""Synthetic Digits anew: numbers in the fonts at hand, in the manner of Ganin and Lempitsky (ICML 2015).

They describe numbers of one to three digits in many fonts, varied in position, orientation, background and stroke
colours, and amount of blur, 32 x 32 pixels in colour; the digit in the middle is the label. Their files are not always
to be had and their program is not public, so these are other pictures of the same kind, marked as re-synthesised:
results with them do not compare to the digit with published ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from graphmsda.data.obtain.fonts import Face, find_faces
from graphmsda.data.obtain.synthesis import Dice, versions, write_pictures
from graphmsda.errors import UserError

SIZE = 32
MARGIN = 8  # around the picture while it is drawn, so that turning and blurring see what lies outside
FINE = 4  # pixels in each direction drawn for one
WIDE = (SIZE + 2 * MARGIN) * FINE
CONTRAST = 50.0  # smallest difference in brightness between stroke and background, of 255
FEW_FONTS = 50

Colour = NDArray[np.float64]


@dataclass(frozen=True)
class Rendered:
    """What was written.

    Attributes:
        path: The archive.
        train: Number of training images.
        test: Number of test images.
        fonts: Number of fonts used.
        notes: One sentence for each thing worth knowing.
    """

    path: Path
    train: int
    test: int
    fonts: int
    notes: tuple[str, ...]


def render_digits(
    out: Path,
    *,
    fonts: Sequence[Path] | None = None,
    train: int = 25_000,
    test: int = 9_000,
    seed: int = 0,
    processes: int | None = None,
    progress: bool = False,
) -> Rendered:
    """Draw Synthetic Digits into a zip file, the same for the same fonts and seed.

    Args:
        out: The zip file, such as ``digits-five/syn.zip``.
        fonts: Font files, or folders with some below them; the system's own fonts by default.
        train: Number of training images, a tenth of them for each digit.
        test: Number of test images.
        seed: Seed of all that is random.
        processes: How many draw at the same time; by default one for each core.
        progress: Show a progress bar on stderr.
    """
    for flag, count in (("--train", train), ("--test", test)):
        if count < 10:
            raise UserError(f"{flag} {count}: too few; give at least 10, one of each digit")
    if seed < 0:
        raise UserError(f"--seed {seed}: give a whole number not below 0")
    faces, others = find_faces(fonts)
    labels = {"train": [str(n % 10) for n in range(train)], "test": [str(n % 10) for n in range(test)]}
    about = {
        "what": "Re-synthesised Synthetic Digits: not the published files of Ganin and Lempitsky but pictures drawn in "
        "their manner, so results with them are not comparable to published ones.",
        "command": f"graphmsda data render-digits --train {train} --test {test} --seed {seed}",
        "seed": seed,
        "versions": versions(),
        "fonts": [{"name": face.name, "sha256": face.sha256} for face in faces],
    }

    def draw(part: str, number: int) -> NDArray[np.uint8]:
        return draw_number(Dice(seed, part, number), faces, number % 10)

    write_pictures(out, labels, draw, about, processes=processes, progress=progress)
    notes = [f"{others} of {len(faces) + others} fonts have no digits of their own and were left out"] if others else []
    if len(faces) < FEW_FONTS:
        notes.append(
            f"fonts with digits: {len(faces)}, which is little variety; install more or name some with --fonts"
        )
    return Rendered(out, train, test, len(faces), tuple(notes))


def draw_number(dice: Dice, faces: Sequence[Face], label: int) -> NDArray[np.uint8]:
    """Draw one picture whose middle digit is `label`: uint8 ``(32, 32, 3)``."""
    before, after = ((0, 0), (0, 0), (1, 0), (0, 1), (1, 1), (1, 1))[dice.below(6)]
    text = "".join(str(dice.below(10)) for _ in range(before)) + str(label)
    text += "".join(str(dice.below(10)) for _ in range(after))
    face = faces[dice.below(len(faces))]
    strokes = _strokes(dice, face, text, before)
    paper, ink = _colours(dice)
    ground = np.broadcast_to(paper, (*strokes.shape, 3))
    if dice.uniform() < 0.4:
        ground = ground + _slope(dice)[..., None] * _tint(dice, 30.0)
    picture = ground + (ink - ground) * strokes[..., None]
    blurred = Image.fromarray(_bytes(picture)).filter(ImageFilter.GaussianBlur(dice.uniform(0.0, 1.4)))
    return np.ascontiguousarray(np.asarray(blurred)[MARGIN:-MARGIN, MARGIN:-MARGIN])


def _strokes(dice: Dice, face: Face, text: str, middle: int) -> NDArray[np.float64]:
    """Return how much of each pixel is covered by ink, from 0 to 1, with the margin around."""
    font = face.at(max(8, round(dice.uniform(15.0, 29.0) * FINE / max(face.height, 0.2))))
    left, top, right, bottom = font.getbbox(text[middle], anchor="ls")
    centre = font.getlength(text[:middle]) + (left + right) / 2, (top + bottom) / 2
    sheet = Image.new("L", (WIDE, WIDE))
    start = WIDE / 2 - centre[0], WIDE / 2 - centre[1]
    width = round(dice.uniform(0.5, 1.5) * FINE / 2) if dice.uniform() < 0.3 else 0  # some in bold
    ImageDraw.Draw(sheet).text(start, text, fill=255, font=font, anchor="ls", stroke_width=width)

    # Turn, slant and shift around the middle; the tangent of the half angle gives sine and cosine by plain arithmetic.
    half = dice.uniform(-0.12, 0.12)
    cosine, sine = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    slant, stretch = dice.uniform(-0.25, 0.25), dice.uniform(0.85, 1.2)
    a, b = cosine * stretch, sine + slant * cosine
    d, e = -sine * stretch, cosine - slant * sine
    x, y = (WIDE / 2 + dice.uniform(-3.0, 3.0) * FINE for _ in range(2))
    moved = sheet.transform(
        sheet.size,
        Image.Transform.AFFINE,
        (a, b, WIDE / 2 - a * x - b * y, d, e, WIDE / 2 - d * x - e * y),
        Image.Resampling.BILINEAR,
    )
    return np.asarray(moved.reduce(FINE), dtype=np.float64) / 255.0


def _colours(dice: Dice) -> tuple[Colour, Colour]:
    """Return background and stroke, far apart in brightness: the stroke mostly on the side with more room."""
    paper = dice.uniform(0.0, 255.0)
    brighter = (paper < 127.5) != (dice.uniform() < 0.1)
    room = 255.0 - paper if brighter else -paper
    ink = paper + dice.uniform(0.7, 1.0) * room
    if abs(ink - paper) < CONTRAST:
        ink = paper + (CONTRAST if paper < 127.5 else -CONTRAST)
    return _coloured(dice, paper), _coloured(dice, ink)


def _coloured(dice: Dice, brightness: float) -> Colour:
    """Return a colour of about the given brightness, vivid or close to grey."""
    tint = _tint(dice, dice.uniform(0.0, 70.0))
    colour: Colour = np.clip(brightness + tint - tint.mean(), 0.0, 255.0)
    return colour


def _tint(dice: Dice, most: float) -> Colour:
    return np.array([dice.uniform(-most, most) for _ in range(3)])


def _slope(dice: Dice) -> NDArray[np.float64]:
    """Return light that changes evenly across the picture, from about -1 to 1."""
    across = np.linspace(-1.0, 1.0, SIZE + 2 * MARGIN)
    slope: NDArray[np.float64] = dice.uniform(-1.0, 1.0) * across[:, None] + dice.uniform(-1.0, 1.0) * across
    return slope


def _bytes(pixels: NDArray[np.float64]) -> NDArray[np.uint8]:
    return np.clip(np.round(pixels), 0.0, 255.0).astype(np.uint8)
