"""The flags that say how data are read, and the same from a recipe."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphmsda.errors import UserError

# How data are read: name of each flag, and what `add_argument` needs to know of it.
READING: dict[str, dict[str, Any]] = {
    "image_size": {"type": int, "metavar": "N", "help": "side of the images (default: 32 for small, else 224)"},
    "classes": {"choices": ("error", "common", "union"), "help": "when sources lack classes that others have"},
    "format": {"metavar": "NAME", "help": "folder, archive, list, npz, mat, parquet or csv (default: by name)"},
    "root": {"type": Path, "metavar": "DIR", "help": "folder to which the paths in a list file relate"},
    "cache": {"metavar": "DIR", "help": "where decoded pictures are kept (default: ~/.cache/graphmsda)"},
    "data_root": {"metavar": "DIR", "help": "where benchmarks lie (default: $GRAPHMSDA_DATA)"},
    "variant": {"metavar": "NAME", "help": "variant of a benchmark; `graphmsda data list` names them"},
}


def add_reading(group: Any, *names: str) -> None:
    """Add some of the flags that say how data are read."""
    for name in names:
        group.add_argument(f"--{name.replace('_', '-')}", **READING[name])


def refuse(given: argparse.Namespace, names: Sequence[str], why: str) -> None:
    """Refuse flags that would have no effect."""
    for name in names:
        if getattr(given, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} was given {why}; leave it out")


def recipe_data(path: Path) -> dict[str, Any]:
    """Return what a recipe says of data, as the flags of `fit` would."""
    from graphmsda.engine.settings import read_recipe

    data = read_recipe(path)[0]
    reading = data.get("reading") or {}
    if not isinstance(reading, dict):
        raise UserError(f"--config {path}: data.reading is {reading!r}; give names and values, such as image_size: 32")
    for name in reading:
        if name not in READING:
            close = difflib.get_close_matches(str(name), READING, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(READING)}"
            raise UserError(f"--config {path}: unknown name {name!r} in data.reading; {hint}")
    sources = data.get("sources")
    found = {"task": data.get("task"), "sources": [sources] if isinstance(sources, str) else sources}
    return found | {"target": data.get("target")} | reading
