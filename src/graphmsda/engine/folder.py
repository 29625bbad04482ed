"""The run directory: everything about a run in one folder, readable by people.

``config.yaml`` (what was asked), ``metrics.jsonl`` (what happened), ``checkpoint/state.safetensors`` (where training
stands), ``model.safetensors`` + ``model.json`` (what came of it).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import yaml

from graphmsda import __version__
from graphmsda.domains import Task
from graphmsda.engine.settings import FREE_TO_CHANGE, Settings
from graphmsda.errors import UserError
from graphmsda.files import explain_write_errors, write_text
from graphmsda.methods import find_method, hyperparameters

CONFIG, METRICS, MODEL, MODEL_ABOUT = "config.yaml", "metrics.jsonl", "model.safetensors", "model.json"
CHECKPOINT = "checkpoint/state.safetensors"


def describe(task: Task, settings: Settings, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``config.yaml`` holds."""
    return {
        "graphmsda": __version__,
        "data": {
            **origin,
            "domains": list(task.domains),
            "classes": list(task.classes),
            "samples": [len(source.y) for source in task.sources] + [len(task.target.x)],
            "fingerprint": task.fingerprint(),
        },
        "settings": {**dataclasses.asdict(settings), "parameters": dict(settings.parameters)},
    }


def read_config(path: Path) -> dict[str, Any]:
    """Read a run's ``config.yaml``, refusing folders that are no runs."""
    file = path / CONFIG
    if not file.is_file():
        found = "no such folder" if not path.is_dir() else f"there is no {CONFIG} in it"
        raise UserError(f"{path} is not a run directory ({found}); give the --out of a `graphmsda fit`")
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
        if not {"data", "settings"} <= config.keys() or not {"domains", "fingerprint"} <= config["data"].keys():
            raise ValueError("data or settings missing")
        config["settings"].keys()
    except (ValueError, AttributeError, yaml.YAMLError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{file} is not a run's configuration ({reason}); choose another folder") from error
    return dict(config)


def read_about(file: Path) -> dict[str, Any]:
    """Read ``model.json``, refusing what this version cannot understand."""
    needed = {"method", "parameters", "backbone", "dropout", "shape", "classes", "domains"}
    try:
        about: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if about.get("format") == 1 and not needed <= about.keys():
            raise ValueError(f"{', '.join(sorted(needed - about.keys()))} missing")
    except (ValueError, AttributeError) as error:
        raise UserError(f"{file} is damaged ({error}); copy it anew or train again") from error
    if about.get("format") != 1:
        raise UserError(f"{file} has format {about.get('format')}; this version reads 1; upgrade graphmsda")
    method = find_method(about["method"])
    if about.get("method_version", 1) != method.version:
        raise UserError(f"{file}: models of {about['method']} have changed since this one was made; train it again")
    unknown = ", ".join(sorted(about["parameters"].keys() - hyperparameters(method)))
    if unknown:
        raise UserError(f"{file}: {about['method']} has no hyper-parameter {unknown} any more; train it again")
    return about


def precision_of(path: Path) -> str:
    """Return the precision of the run in a folder; ``auto`` where there is none yet."""
    return str(read_config(path)["settings"].get("precision", "auto")) if (path / CONFIG).is_file() else "auto"


def open_folder(path: Path, config: Mapping[str, Any], *, extend: bool) -> None:
    """Check that this folder may hold the run `config` describes: it is new, empty, or holds the same run.

    Nothing is written. `extend` allows more epochs than the run there had.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"--out {path}: a file is there; give a folder")
    if not path.exists() or all(_is_litter(file) for file in path.iterdir()):
        return
    if not (path / CONFIG).is_file():
        raise UserError(f"--out {path}: the folder is not empty and holds no run; give a new or empty folder")
    before = read_config(path)
    differences = _differences(before["settings"], config["settings"])
    had, asked = before["settings"]["epochs"], config["settings"]["epochs"]
    if differences.pop("epochs", None) and not (extend and asked > had):
        way = "must be raised" if extend else "use --extend to go on to more epochs"
        raise UserError(f"--out {path} holds a run with epochs {had}, not {asked}; {way} or choose another --out")
    if before["data"]["fingerprint"] != config["data"]["fingerprint"]:
        raise UserError(
            f"--out {path} holds a run on other data ({', '.join(before['data']['domains'])}; its samples differ from "
            f"these); choose another --out"
        )
    if differences:
        told = "; ".join(f"{key} was {was} and is now {now}" for key, (was, now) in differences.items())
        raise UserError(
            f"--out {path} holds a run with other settings: {told}; choose another --out or the same settings"
        )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return what differs and both values in words; of another method its name alone."""
    # A run of an earlier version lacks settings that came later, whose defaults change nothing.
    known = {field.name: field.default for field in dataclasses.fields(Settings) if field.default is not MISSING}
    known["augment"] = "none"  # its default is decided by the method now

    def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
        rest = {k: v for k, v in (known | dict(settings)).items() if k not in (*FREE_TO_CHANGE, "parameters")}
        return rest | dict(settings.get("parameters", {}))

    def word(settings: Mapping[str, Any], key: str) -> str:
        return repr(settings[key]) if key in settings else "unknown (another version of graphmsda)"

    a, b = flat(before), flat(now)
    keys = [key for key in a | b if a.get(key) != b.get(key)]
    return {key: (word(a, key), word(b, key)) for key in (["method"] if "method" in keys else keys)}


def write_config(path: Path, config: Mapping[str, Any]) -> None:
    """Write ``config.yaml``, unless it already says so."""
    text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    file = path / CONFIG
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_text(file, text)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the folder against a second training process."""
    with explain_write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        file = (path / ".lock").open("w")
    with file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                busy = f"--out {path}: another process trains there now; wait for it or choose another --out"
                raise UserError(busy) from None
        for leftover in [*path.glob(".*.part"), *path.glob("*/.*.part")]:
            leftover.unlink()  # what a killed process had begun to write
        yield


def _is_litter(file: Path) -> bool:
    """Whether a killed process may have left this behind before it wrote its configuration."""
    return file.name == ".lock" or file.name.endswith(".part")


class Metrics:
    """``metrics.jsonl``: one row per interval; rows past the checkpoint are dropped when a run resumes.

    Each row goes to `others` too, such as those of `graphmsda.engine.sinks`.
    """

    def __init__(self, path: Path, step: int, others: Sequence[Any] = ()) -> None:
        self.path, self.others = path, others
        rows = [row for row in read_metrics(path) if row["step"] <= step]
        write_text(path, "".join(json.dumps(row) + "\n" for row in rows))

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        with explain_write_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        for other in self.others:
            other.write(row)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read all whole rows; a last one cut short by a kill is left out."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
