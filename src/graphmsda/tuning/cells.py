"""The runs of a tuning on disk: a run directory for each, and one file with what came of all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphmsda import __version__
from graphmsda.engine import folder
from graphmsda.engine.settings import Settings
from graphmsda.errors import UserError
from graphmsda.files import write_text
from graphmsda.rehearsal import Rehearsal
from graphmsda.tuning.grid import Setting

RESULTS = "tune.json"

Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Cell:
    """One run: a setting, the source that plays the target, a seed, and the run directory."""

    setting: Setting
    player: str
    seed: int
    path: Path

    @property
    def settings(self) -> dict[str, Any]:
        """What `graphmsda.engine.fit.fit` is given."""
        return {**self.setting.settings, "method": self.setting.resolved.method, "seed": self.seed}


def lay_out(grid: Sequence[Setting], players: Sequence[str], seeds: Sequence[int], out: Path) -> list[Cell]:
    """Return all runs. Those of one player and seed stand together: stopped early, what there is can be compared."""
    return [
        Cell(setting, player, seed, out / plain(setting.name) / f"{plain(player)}-seed{seed}")
        for seed in seeds
        for player in players
        for setting in grid
    ]


def check_folders(
    cells: Sequence[Cell], rehearsals: Mapping[str, Rehearsal], out: Path, data_root: str | Path | None = None
) -> None:
    """Refuse a folder that holds other runs than these; nothing is written."""
    if (out / folder.CONFIG).is_file():
        raise UserError(f"--out {out}: holds a run; give a new or empty folder")
    about: dict[str, dict[str, Any]] = {}
    for cell in cells:
        if not (cell.path / folder.CONFIG).is_file():
            continue
        task = rehearsals[cell.player].task
        chosen = Settings(**cell.settings).resolved(task, data_root)
        if cell.player not in about:  # hashing the data takes a while: once for each player
            about[cell.player] = folder.describe(task, chosen, {})
        settings = {**dataclasses.asdict(chosen), "parameters": dict(chosen.parameters)}
        try:
            folder.open_folder(cell.path, about[cell.player] | {"settings": settings}, extend=False)
        except UserError as error:
            found = str(error).partition("; ")[0]
            raise UserError(f"{found}; give the same settings and data as then, or choose another --out") from error


def read_rows(out: Path, cells: Sequence[Cell]) -> dict[Cell, Row]:
    """Return the rows of runs that are finished and scored; where a row is missing `fit` finds the finished run."""
    try:
        rows = json.loads((out / RESULTS).read_text(encoding="utf-8"))["runs"]
        known = {(row["setting"], row["player"], row["seed"]): row for row in rows if row["accuracy"] is not None}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    found = {cell: known.get((cell.setting.name, cell.player, cell.seed)) for cell in cells}
    return {cell: row for cell, row in found.items() if row and (cell.path / folder.MODEL_ABOUT).is_file()}


def write_rows(out: Path, method: str, cells: Sequence[Cell], rows: Mapping[Cell, Row]) -> None:
    """Write ``tune.json`` whole: the rows so far, in the order of the runs."""
    there = [rows[cell] for cell in cells if cell in rows]
    about = {"version": __version__, "method": method, "of": len(cells), "runs": there}
    write_text(out / RESULTS, json.dumps(about, indent=1, ensure_ascii=False) + "\n")


def plain(name: str) -> str:
    """Return a name fit for a folder; one that had to be changed gets a hash, so that no two become one.

    >>> plain("alpha=0.1,tau=0.3")
    'alpha=0.1,tau=0.3'
    """
    fit = re.sub(r"[^A-Za-z0-9=,.+_-]+", "-", name).strip(".-")[:100]
    return fit if fit == name else f"{fit}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}"
