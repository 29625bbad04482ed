"""Runs trained for a moment on data small enough to look at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from graphmsda.cli import main

QUICK = ["--epochs", "3", "--steps-per-epoch", "3", "--batch-size", "8", "--device", "cpu"]
NASTY = '<script>alert(1)</script> & "x"'  # what a class may be called
CLASSES = ("ant", "bee", NASTY)


def write_images(path: Path, shade: int, classes: Sequence[str], count: int = 8, seed: int = 0) -> Path:
    """An array file: a bright bar tells the class, the shade the domain."""
    chance = np.random.default_rng(seed)
    y = np.arange(count * len(classes)) % len(classes)
    x = shade + chance.integers(0, 60, (len(y), 16, 16, 3))
    for place, label in enumerate(y):
        start = 16 * int(label) // len(classes)
        x[place, :, start : start + max(1, 16 // len(classes))] += 110
    np.savez(path, x=x.clip(0, 255).astype(np.uint8), y=np.array(classes)[y])
    return path


def write_features(path: Path, shift: float, classes: Sequence[str], count: int = 8, seed: int = 0) -> Path:
    """An array file: classes are clouds, each domain shifted."""
    chance = np.random.default_rng(seed)
    centres = 4 * np.random.default_rng(7).normal(size=(len(classes), 12))
    y = np.arange(count * len(classes)) % len(classes)
    x = centres[y] + shift + chance.normal(size=(len(y), 12))
    np.savez(path, x=x.astype(np.float32), y=np.array(classes)[y])
    return path


def train(folder: Path, method: str, sources: Sequence[Path], target: Path, *more: str) -> Path:
    """A finished run."""
    out = folder / f"run-{method}"
    places = ["--sources", *map(str, sources), "--target", str(target)]
    assert main(["fit", *places, "--method", method, "--out", str(out), *QUICK, *more]) == 0
    return out
