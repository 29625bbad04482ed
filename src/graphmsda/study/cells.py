"""The cells of a study, and the folder they are kept in.

::

    study.json                                       what is studied: the kind of table, the data
    cells/multi-source/mm/mrf/seed0/cell.json        what is asked
                                   /attempt-1.json   who works on it, or how that ended
    runs/multi-source/mm/mrf/seed0/                  the run directory, as of any other run
                                  /result.json       what came of it: the row of the table's runs

Every file but those of a run is made whole and by one process, so that any number of workers can add cells and take
them. A cell is finished when its ``result.json`` is there.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphmsda import __version__
from graphmsda.engine.settings import FREE_TO_CHANGE
from graphmsda.errors import UserError
from graphmsda.files import explain_write_errors
from graphmsda.study import attempts
from graphmsda.tuning.cells import plain

STUDY, CELL, RESULT = "study.json", "cell.json", "result.json"

Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        standard: One of `graphmsda.study.protocol.STANDARDS`.
        target: The domain to adapt to.
        method: Name of the method.
        seed: Seed of the run.
        source: The one source of single best, or in a rehearsal the one that plays the target.
        setting: What this choice of hyper-parameters is called: ``default``, ``tau=0.1``, ``global+local``.
        parameters: Hyper-parameters that differ from the method's defaults.
        settings: Other settings that were asked for.
        varied: What sets it apart in an ablation (``{"global": True}``) or sensitivity study (``{"tau": 0.1}``).
    """

    standard: str
    target: str
    method: str
    seed: int
    source: str | None = None
    setting: str = "default"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    varied: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where it lies below ``cells`` and ``runs``."""
        name = self.method if self.setting == "default" else f"{self.method},{self.setting}"
        role = "playing" if self.standard == "rehearsal" else "from"
        source = [] if self.source is None else [f"{role}-{plain(self.source)}"]
        return "/".join([self.standard, plain(self.target), plain(name), *source, f"seed{self.seed}"])

    @property
    def label(self) -> str:
        """What people are told of it."""
        name = self.method if self.setting == "default" else f"{self.method} [{self.setting}]"
        source = {"single-best": f"{self.source} -> ", "source-combine": "combined -> "}.get(self.standard, "-> ")
        played = f" played by {self.source}" if self.standard == "rehearsal" else ""
        return f"{name} {source}{self.target}{played}, seed {self.seed}"

    def named(self) -> Row:
        """Return the part of its result that tells which cell it is."""
        kept = ("standard", "method", "setting", "target", "source", "seed", "parameters", "settings", "varied")
        return {name: dict(value) if isinstance(value := getattr(self, name), Mapping) else value for name in kept}

    @property
    def fixed(self) -> dict[str, Any]:
        """What decides its result: all that was asked but for settings that change nothing."""
        settings = {name: value for name, value in self.settings.items() if name not in FREE_TO_CHANGE}
        if "preset" in self.settings:
            settings["preset"] = self.settings["preset"]
        return {"parameters": dict(self.parameters), "settings": settings, "varied": dict(self.varied)}


@dataclass(frozen=True)
class Study:
    """What lies in the folder of a study.

    Attributes:
        path: The folder.
        about: What ``study.json`` says: ``kind``, ``benchmark``, ``domains``, ``reading``, of a search ``search``.
        cells: All cells that were ever asked for.
        rows: Results, by the path of the cell.
        errors: The last error of cells that failed and are not finished, by path.
    """

    path: Path
    about: Mapping[str, Any]
    cells: Sequence[Cell]
    rows: Mapping[str, Row]
    errors: Mapping[str, str]


def open_study(out: Path, about: Mapping[str, Any], *, make: bool = True) -> None:
    """Make the folder of a study, or check that it is one of the same kind and data; without `make`, only check."""
    if (out / STUDY).is_file():
        before = _read_json(out / STUDY)
        for name in ("kind", "benchmark", "domains", "reading", "search"):
            was, now = before.get(name), _plain(about.get(name))
            if was != now:
                raise UserError(
                    f"--out {out}: holds a study with {name} {_told(was)}, not {_told(now)}; choose another --out or "
                    "give the same"
                )
        return
    if out.is_file() or (out.is_dir() and any(not file.name.startswith(".") for file in out.iterdir())):
        if (out / STUDY).is_file():  # another command has made it since: it is the first file of a study
            open_study(out, about)
            return
        raise UserError(f"--out {out}: not empty and no study; give a new or empty folder")
    if not make:
        return
    _make(out / STUDY, {"format": 1, "graphmsda": __version__, **about})
    open_study(out, about)  # another command may have been faster


def add_cells(out: Path, cells: Sequence[Cell]) -> None:
    """Write down what is asked, refusing cells that are there with other settings; nothing is written then."""
    new = []
    for cell in cells:
        file = out / "cells" / cell.path / CELL
        if not file.is_file():
            new.append((file, cell))
            continue
        before = _cell(file)
        for name, was in before.fixed.items():
            now = _plain(cell.fixed[name])
            if was != now:
                raise UserError(
                    f"--out {out}: holds {cell.label} with {name} {_told(was)}, not {_told(now)}; choose another --out "
                    "or give the same"
                )
    for file, cell in new:
        _make(file, dataclasses.asdict(cell))


def read_study(path: str | Path) -> Study:
    """Read all that is in the folder of a study; others may be at work on it."""
    path = Path(path)
    if not (path / STUDY).is_file():
        raise UserError(f"{path}: no study ({STUDY} is not there); give the --out of a `graphmsda study` command")
    about = _read_json(path / STUDY)
    if about.get("format") != 1:
        raise UserError(f"{path / STUDY} has format {about.get('format')}; this version reads 1; upgrade graphmsda")
    cells = [_cell(file) for file in sorted((path / "cells").rglob(CELL))]
    rows = {cell.path: row for cell in cells if (row := read_row(path, cell)) is not None}
    failed = {cell.path: attempts.errors(path / "cells" / cell.path) for cell in cells if cell.path not in rows}
    return Study(path, about, cells, rows, {name: told[-1] for name, told in failed.items() if told})


def read_row(out: Path, cell: Cell) -> Row | None:
    """Return the result of a cell, None where it is not finished."""
    file = out / "runs" / cell.path / RESULT
    return _read_json(file) if file.is_file() else None


def _cell(file: Path) -> Cell:
    return Cell(**_read_json(file))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: damaged ({error}); remove it and run the same command again") from error
    return dict(content)


def _make(file: Path, content: Mapping[str, Any]) -> None:
    """Write a file whole; where another process has made it meanwhile, that one stays."""
    with explain_write_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{secrets.token_hex(8)}.part")
        beside.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        if file.exists():
            beside.unlink()
        else:
            os.replace(beside, file)


def _plain(value: Any) -> Any:
    """Return a value as it comes back from a file."""
    return json.loads(json.dumps(value))


def _told(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {each}" for name, each in value.items()) or "of the defaults"
    return ", ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else str(value)
