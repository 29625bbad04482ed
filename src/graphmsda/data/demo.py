"""Embedded data: real handwritten digits, seen in five visual worlds, made on the spot.

The 1,797 handwritten digits that ship with scikit-learn are dealt out to five domains, so that no handwritten original
appears in two domains or in both the training and the test part of one. Each domain then draws its own originals in
its own way, 32 x 32 pixels in colour:

- ``plain``: dark ink on squared white paper.
- ``neon``: rows of coloured, glowing bulbs in the dark.
- ``texture``: the difference between the digit and a colourful pattern, as in MNIST-M.
- ``camera``: a photograph out of focus, with little contrast, uneven light and sensor noise.
- ``chalk``: thick, grainy strokes on a green board with traces of what was wiped off.

The pixels are the same on every machine: random numbers come straight from the bits of PCG64, whose stream numpy
guarantees, and rendering uses only arithmetic that IEEE 754 rounds exactly (no sums of many terms, sines or powers).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from graphmsda.domains import Domain, EvalSet, Task
from graphmsda.errors import UserError

DOMAINS = ("plain", "neon", "texture", "camera", "chalk")
SPLITS = ("train", "test")
CLASSES = tuple(str(digit) for digit in range(10))
SIZE = 32
RENDERINGS = 3  # of each training original, so that 240 originals make 720 images
TRAIN_PER_CLASS = 24

_SEED = 1797

Floats = NDArray[np.float64]
Rendered = tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]


def load(target: str) -> tuple[Task, EvalSet]:
    """Return the task that adapts the other four domains to `target`, and the target's test part.

    >>> task, test = load("neon")
    >>> task.domains
    ('plain', 'texture', 'camera', 'chalk', 'neon')
    """
    _check_domain(target)
    sources = tuple(_domain(name, "train") for name in DOMAINS if name != target)
    test = _domain(target, "test")
    return Task(sources, _domain(target, "train").unlabelled(), CLASSES), EvalSet(target, test.x, test.y)


def supervised(target: str) -> tuple[Task, EvalSet]:
    """Return the ceiling: the task of `load` with the target's labelled training part as one more source.

    The labels of the target reach training here because this is, openly, another task.
    """
    task, test = load(target)
    known = _domain(target, "train")
    return Task((*task.sources, Domain(f"{target} (labelled)", known.x, known.y)), task.target, task.classes), test


@cache
def render(domain: str, split: str) -> Rendered:
    """Draw one part of one domain.

    Returns:
        Images, uint8 ``(N, 3, 32, 32)``; labels, int64 ``(N,)``; and the index of the handwritten original behind each
        image, int64 ``(N,)``, which tells renderings of one original from others. The arrays are read-only.
    """
    _check_domain(domain)
    if split not in SPLITS:
        raise UserError(f"the demo has no split {split!r}; choose one of {', '.join(SPLITS)}")
    digits, labels = _originals()
    index = _deal(labels)[domain, split]
    if split == "train":
        index = np.repeat(index, RENDERINGS)
    bits = np.random.PCG64([_SEED, DOMAINS.index(domain), SPLITS.index(split)])
    colours = _STYLES[domain](digits[index], bits)
    pixels = np.floor(np.clip(colours, 0.0, 1.0) * 255.0 + 0.5).astype(np.uint8)
    result = (pixels, labels[index], index)
    for array in result:
        array.flags.writeable = False
    return result


def _domain(name: str, split: str) -> Domain:
    x, y, _ = render(name, split)
    return Domain(name, torch.tensor(x), torch.tensor(y))  # copies: the cached arrays stay as they are


def _check_domain(name: str) -> None:
    if name not in DOMAINS:
        raise UserError(f"the demo has no domain {name!r}; choose one of {', '.join(DOMAINS)}")


@cache
def _originals() -> tuple[Floats, NDArray[np.int64]]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return found.images.astype(np.float64) / 16.0, found.target.astype(np.int64)


def _deal(labels: NDArray[np.int64]) -> dict[tuple[str, str], NDArray[np.int64]]:
    """Deal the originals out, class by class, like cards: to each domain a training and a test part."""
    bits = np.random.PCG64([_SEED])
    parts: dict[tuple[str, str], list[NDArray[np.int64]]] = {(d, s): [] for d in DOMAINS for s in SPLITS}
    for digit in range(len(CLASSES)):
        members = np.flatnonzero(labels == digit)
        shuffled = members[np.argsort(bits.random_raw(len(members)), kind="stable")]
        for turn, domain in enumerate(DOMAINS):
            hand = shuffled[turn :: len(DOMAINS)]
            parts[domain, "train"].append(hand[:TRAIN_PER_CLASS])
            parts[domain, "test"].append(hand[TRAIN_PER_CLASS:])
    return {part: np.sort(np.concatenate(chunks)).astype(np.int64) for part, chunks in parts.items()}


# Tools of the styles. Images are float64 (N, C, 32, 32) with values around 0 to 1.


def _uniform(bits: np.random.PCG64, low: float, high: float, *shape: int) -> Floats:
    # Generator.random may change between numpy versions; the raw stream may not.
    raw = bits.random_raw(shape)
    return low + (high - low) * ((raw >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _per_image(bits: np.random.PCG64, low: float, high: float, n: int, channels: int = 1) -> Floats:
    return _uniform(bits, low, high, n, channels, 1, 1)


def _mix(a: Floats, b: Floats, share: Floats) -> Floats:
    return a + (b - a) * share


def _ramp(value: Floats, centre: Floats | float, width: float) -> Floats:
    """Return 0 below and 1 above `centre`, with a linear edge of `width`."""
    return np.clip((value - centre) / width + 0.5, 0.0, 1.0)


def _blur(image: Floats, times: int) -> Floats:
    """Blur with the binomial filter (1, 2, 1) / 4 in both directions, `times` over."""
    for _ in range(times):
        for axis in (-1, -2):
            pad = [(0, 0)] * image.ndim
            pad[axis] = (1, 1)
            wide = np.moveaxis(np.pad(image, pad, mode="edge"), axis, 0)
            image = np.moveaxis((wide[:-2] + wide[2:]) * 0.25 + wide[1:-1] * 0.5, 0, axis)
    return image


def _clouds(bits: np.random.PCG64, n: int, channels: int, cells: int) -> Floats:
    """Return smooth noise from 0 to 1: a random grid of `cells` x `cells`, stretched over the image."""
    grid = _uniform(bits, 0.0, 1.0, n, channels, cells, cells)
    place: Floats = np.arange(SIZE, dtype=np.float64) * ((cells - 1) / (SIZE - 1))
    low = np.minimum(place.astype(np.int64), cells - 2)
    share: Floats = place - low
    rows = _mix(grid[:, :, low], grid[:, :, low + 1], share[:, None])
    return _mix(rows[..., low], rows[..., low + 1], share)


def _stripes(bits: np.random.PCG64, n: int, period: int, off: float = 0.0) -> Floats:
    """Return ``(n, 1, 32)`` ones one pixel wide every `period` pixels, from a random start, and `off` between them."""
    start = np.floor(_uniform(bits, 0.0, period, n, 1, 1)).astype(np.int64)
    here: Floats = ((np.arange(SIZE) + start) % period == 0).astype(np.float64)
    return off + (1.0 - off) * here


def _hues(bits: np.random.PCG64, n: int) -> Floats:
    """Return fully saturated colours ``(n, 3, 1, 1)`` of random hue."""
    hue = _uniform(bits, 0.0, 6.0, n)[:, None]
    distance = np.abs(hue - np.array([0.0, 2.0, 4.0]))  # from red, green and blue, around the wheel of length 6
    colours: Floats = np.clip(2.0 - np.minimum(distance, 6.0 - distance), 0.0, 1.0)
    return colours[:, :, None, None]


def _write(
    digits: Floats,
    bits: np.random.PCG64,
    *,
    turn: float = 0.1,
    slant: float = 0.1,
    zoom: float = 0.1,
    shift: float = 1.5,
) -> Floats:
    """Return the ink of each 8 x 8 digit on the large grid, ``(N, 1, 32, 32)``, after a small random affine move."""
    n = len(digits)
    half = _uniform(bits, -turn / 2, turn / 2, n, 1, 1)
    # Tangent of the half angle gives sine and cosine by exact arithmetic.
    cosine, sine = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    shear = _uniform(bits, -slant, slant, n, 1, 1)
    scale = _uniform(bits, 1 - zoom, 1 + zoom, n, 1, 1) * (7.0 / SIZE + 0.06)
    moves = _uniform(bits, -shift, shift, 2, n, 1, 1)
    across = np.arange(SIZE) - (SIZE - 1) / 2
    v, u = across[None, :, None] + moves[0], across[None, None, :] + moves[1]
    u = u + shear * v
    return _cubic(digits, 3.5 + scale * (cosine * v - sine * u), 3.5 + scale * (sine * v + cosine * u))[:, None]


def _cubic(images: Floats, row: Floats, column: Floats) -> Floats:
    """Read small `images` at fractional places by Catmull-Rom interpolation; outside there is nothing."""
    margin = 3
    padded = np.pad(images, ((0, 0), (margin, margin), (margin, margin)))
    n, height, width = padded.shape
    flat = padded.reshape(-1)
    row, column = np.clip(row + margin, 1, height - 2.001), np.clip(column + margin, 1, width - 2.001)
    top, left = np.floor(row).astype(np.int64), np.floor(column).astype(np.int64)
    rows, columns = _catmull_rom(row - top), _catmull_rom(column - left)
    start = (np.arange(n)[:, None, None] * height + top - 1) * width + left - 1
    result = np.zeros_like(row)
    for i in range(4):
        line = np.zeros_like(row)
        for j in range(4):
            line += columns[j] * flat[start + (i * width + j)]
        result += rows[i] * line
    return result


def _catmull_rom(t: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    return (
        ((2.0 - t) * t - 1.0) * t * 0.5,
        ((3.0 * t - 5.0) * t * t + 2.0) * 0.5,
        ((4.0 - 3.0 * t) * t + 1.0) * t * 0.5,
        (t - 1.0) * t * t * 0.5,
    )


# The five styles: 8 x 8 digits and random bits to colour images.


def _plain(digits: Floats, bits: np.random.PCG64) -> Floats:
    n = len(digits)
    ink = _ramp(_write(digits, bits, slant=0.25), 0.6, 0.3)
    paper = _per_image(bits, 0.92, 1.0, n) - _per_image(bits, 0.0, 0.05, n, 3)
    lines = np.maximum(_stripes(bits, n, 6)[..., None, :], _stripes(bits, n, 6)[..., :, None])
    paper = paper - lines * np.array([0.45, 0.3, 0.12])[:, None, None] * _per_image(bits, 0.25, 0.65, n)
    pen = _per_image(bits, 0.0, 0.2, n) + _per_image(bits, 0.0, 0.12, n, 3)
    return _mix(paper, pen, ink) + _uniform(bits, -0.015, 0.015, n, 1, SIZE, SIZE)


def _neon(digits: Floats, bits: np.random.PCG64) -> Floats:
    n = len(digits)
    ink = _ramp(_write(digits, bits), 0.4, 0.3)
    bulbs = _stripes(bits, n, 3, 0.25)[..., None, :] * _stripes(bits, n, 3, 0.25)[..., :, None]
    light = ink * bulbs
    colour = _mix(_hues(bits, n), np.ones((n, 3, 1, 1)), np.full((n, 1, 1, 1), 0.15))
    night = _hues(bits, n) * _per_image(bits, 0.02, 0.14, n)
    return night + colour * (0.5 * _blur(light, 2) + 0.9 * light) + 0.4 * light * light


def _texture(digits: Floats, bits: np.random.PCG64) -> Floats:
    n = len(digits)
    ink = _ramp(_write(digits, bits), 0.45, 0.2)
    pattern = 0.7 * _clouds(bits, n, 3, 4) + 0.3 * _clouds(bits, n, 3, 9)
    return np.abs(pattern - ink * _per_image(bits, 0.85, 1.0, n, 3))


def _camera(digits: Floats, bits: np.random.PCG64) -> Floats:
    n = len(digits)
    ink = _blur(_ramp(_write(digits, bits), 0.4, 0.3), 3)
    light = _mix(np.full((n, 1, 1, 1), 0.25), np.full((n, 1, 1, 1), 0.6), _clouds(bits, n, 1, 2))
    tint = np.array([1.0, 0.86, 0.68])[:, None, None] * _per_image(bits, 0.85, 1.0, n, 3)
    scene = light * tint * (1.0 + _per_image(bits, 0.45, 0.65, n) * ink)
    return scene + _uniform(bits, -0.06, 0.06, n, 3, SIZE, SIZE)


def _chalk(digits: Floats, bits: np.random.PCG64) -> Floats:
    n = len(digits)
    ink = _ramp(_write(digits, bits), 0.32, 0.3)
    grain = _ramp(0.6 * _uniform(bits, 0.0, 1.0, n, 1, SIZE, SIZE) + 0.4 * _clouds(bits, n, 1, 16), 0.4, 0.35)
    board = np.array([0.13, 0.3, 0.2])[:, None, None] * _per_image(bits, 0.8, 1.3, n)
    # What was wiped off is another digit of the same part, so that no original strays into a second one.
    wiped = _blur(_ramp(_write(np.roll(digits, n // 2, axis=0), bits, turn=0.6, shift=7.0), 0.32, 0.3), 1)
    dust = 0.3 * _ramp(_clouds(bits, n, 1, 6), 0.6, 0.5) + _per_image(bits, 0.08, 0.3, n) * wiped
    stick = 1.0 - _per_image(bits, 0.0, 0.25, n, 3)
    return _mix(board + dust, stick * 0.9, ink * grain)


_STYLES: dict[str, Callable[[Floats, np.random.PCG64], Floats]] = {
    "plain": _plain,
    "neon": _neon,
    "texture": _texture,
    "camera": _camera,
    "chalk": _chalk,
}
