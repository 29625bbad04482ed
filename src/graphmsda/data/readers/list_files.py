"""Where the images that a list names really lie."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

PROBES = 8  # images looked for in each place that could be the root
BESIDE = 200  # entries looked at beside the list


def find_root(folder: Path, names: Sequence[str]) -> Path:
    """Return the folder to which paths in a list relate: of the list, above it, or one step down from there.

    The nearest that has all of a few images spread over the list is taken, else the one that has most of them, else the
    list's own.
    """
    step = max(1, len(names) // PROBES)
    probes = [_local(name) for name in (*names[:3], *names[::step])]
    best, most = folder, 0
    for place in _places(folder):
        count = sum(os.path.lexists(place / probe) for probe in probes)
        if count > most:
            best, most = place, count
        if count == len(probes):
            break
    return best


def find_missing(root: Path, names: Sequence[str]) -> tuple[list[Path], list[int]]:
    """Return the path of each image, and the rows of those that are not there.

    Folders are listed once each, which is much faster than asking for every image. Letters with accents are found
    however the file system spells them.
    """
    inside: dict[str, set[str]] = {}
    paths: list[Path] = []
    missing: list[int] = []
    for row, name in enumerate(names):
        path = os.path.join(root, _local(name))
        folder, base = os.path.split(path)
        if folder not in inside:
            inside[folder] = _content(folder)
        if base not in inside[folder] and not os.path.lexists(path):
            spelt = next((other for other in _spellings(path) if os.path.lexists(other)), None)
            if spelt is None:
                missing.append(row)
            path = spelt or path
        paths.append(Path(path))
    return paths, missing


def _places(folder: Path) -> Iterator[Path]:
    """Yield where images could lie, the nearest first."""
    here = Path(os.path.abspath(folder))
    yield folder
    for place in (here, *here.parents):
        if place != here:
            yield place
        if place in (here, here.parent):
            yield from _folders(place)


def _folders(place: Path) -> list[Path]:
    try:
        with os.scandir(place) as entries:
            names = [entry.path for entry in islice(entries, BESIDE)]
    except OSError:  # what may not be listed is not where the images are
        return []
    return sorted(Path(name) for name in names if os.path.isdir(name))


def _content(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))
    except (OSError, ValueError):
        return set()


def _local(name: str) -> str:
    """Return a path as this system writes it; lists from Windows have backslashes."""
    return os.path.normpath(name.replace("\\", "/") if "/" not in name else name)


def _spellings(path: str) -> Iterator[str]:
    yield unicodedata.normalize("NFC", path)
    yield unicodedata.normalize("NFD", path)
