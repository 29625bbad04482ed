"""The cache as people see it: what lies there, how large it is, and how to be rid of it."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path

from graphmsda.data.store import ABOUT, remove


@dataclass(frozen=True)
class Entry:
    """One entry of the cache, for people: ``stale`` says whether its origin is gone."""

    path: Path
    origin: str
    images: int
    image_size: int
    bytes: int
    used: float
    stale: bool


def entries(folder: Path) -> list[Entry]:
    """Return the entries of a cache, the last used first; what a killed build left behind is listed with no images."""
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if not path.is_dir() or not re.search(r"-[0-9a-f]{16}(\.[0-9]+\.part)?$", path.name):
            continue
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        try:
            about = json.loads((path / ABOUT).read_text(encoding="utf-8"))
            row = Entry(
                path, str(about["origin"]), int(about["count"]), int(about["shape"][-1]), size,
                (path / ABOUT).stat().st_mtime, not Path(about["origin"]).exists(),
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            row = Entry(path, "(unfinished)", 0, 0, size, path.stat().st_mtime, True)
        found.append(row)
    return sorted(found, key=lambda entry: -entry.used)


def clear(folder: Path, names: list[str] | None = None) -> list[Entry]:
    """Remove the entries whose name or origin contains one of `names`, or all; return what was removed."""
    gone = [
        entry
        for entry in entries(folder)
        if names is None or any(name in entry.path.name or name in entry.origin for name in names)
    ]
    for entry in gone:
        remove(entry.path)
        entry.path.with_name(f"{entry.path.name}.lock").unlink(missing_ok=True)
    return gone


def cache_page(folder: Path, found: list[Entry]) -> str:
    """Return the table that `graphmsda data cache` prints."""
    if not found:
        return f"{folder}: nothing is kept there"
    rows = [
        (
            f"{entry.images:,}",
            f"{entry.image_size}",
            f"{entry.bytes / 1e6:,.1f} MB",
            time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)),
            entry.origin + ("  (gone)" if entry.stale and entry.images else ""),
        )
        for entry in found
    ]
    head = ("images", "side", "size", "last used", "made from")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head) - 1)]
    lines = [
        "  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in [head, *rows]
    ]
    total = sum(entry.bytes for entry in found)
    lines.append(f"{folder}: {len(found)} entries, {total / 1e6:,.1f} MB; --clear removes them, --clear NAME some")
    return "\n".join(lines)
