"""Trees of tiny images in the layouts of the benchmarks, written fast: one file's bytes many times over."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from PIL import Image


@cache
def picture_bytes(value: int = 128, side: int = 4) -> bytes:
    file = io.BytesIO()
    Image.new("L", (side, side), value).save(file, "PNG")
    return file.getvalue()


def picture(path: Path, value: int = 128, side: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture_bytes(value, side))
    return path


def folder_of(root: Path, names: Iterable[str]) -> Path:
    """Make a folder of images, most of them links to one file."""
    root.mkdir(parents=True, exist_ok=True)
    (root / ".one").write_bytes(picture_bytes())
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(root / ".one", path)
        except OSError:  # file systems allow a limited number of links, or none
            path.write_bytes(picture_bytes())
    return root


def zip_of(path: Path, names: Iterable[str], **others: str) -> Path:
    """Make a zip file of images, and of `others` by name and text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, picture_bytes())
        for name, text in others.items():
            archive.writestr(name, text)
    return path


def real_data(name: str) -> Path:
    """Return the folder of a benchmark's real data, or skip the test."""
    root = os.environ.get("GRAPHMSDA_DATA")
    if root is None:
        pytest.skip("GRAPHMSDA_DATA is not set to a folder with real data")
    if not (Path(root) / name).is_dir():
        pytest.skip(f"$GRAPHMSDA_DATA has no {name}")
    return Path(root)
