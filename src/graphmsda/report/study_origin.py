"""Where a study's numbers come from: commands that ask for it, settings, versions, hardware, and what failed."""

from __future__ import annotations

import json
import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graphmsda.errors import UserError
from graphmsda.report.page import Section
from graphmsda.report.parts import Row, Text, bullets, code, details, facts, join, paragraph, table
from graphmsda.study.cells import Cell, Study
from graphmsda.study.data import NOISE
from graphmsda.study.protocol import STANDARDS, standards_of
from graphmsda.study.summary import methods_in_order

MOST = 200  # lines of a list


def commands(study: Study) -> list[str]:
    """Return commands that ask for the cells of a study, whatever was typed when it was made."""
    make = {"table": _tables, "ablation": _ablations, "sensitivity": _sensitivities, "timing": _timings}
    make["search"] = _searches
    return [shlex.join(words) for words in make[study.about["kind"]](study)]


def origin_section(study: Study) -> Section:
    """Return the commands, versions, hardware and settings."""
    rows = list(study.rows.values())
    items: dict[str, Text] = {"Folder": str(study.path.resolve().name)}
    data = study.about.get("benchmark") or ", ".join(study.about.get("domains") or ())
    reading = ", ".join(f"{name} {value}" for name, value in (study.about.get("reading") or {}).items())
    items["Data"] = data + (f" ({reading})" if reading else "")
    named = {"graphmsda": "Version", "commit": "Commit", "torch": "PyTorch", "hardware": "Hardware", "date": "Date",
             "backbone": "Backbone", "epochs": "Epochs", "steps": "Steps", "batch_size": "Batch size"}  # fmt: skip
    for name, title in named.items():
        several = Counter(str(row[name]) for row in rows if row.get(name) is not None)
        if several:
            items[title] = _counted(several)
    minutes = [row["minutes"] for row in rows if row.get("minutes") is not None]
    if minutes:
        items["Time of all runs"] = f"{_time(sum(minutes))}, {_time(statistics.fmean(minutes))} each"
    body = join(code(command) for command in commands(study))
    note = "Made from the cells in the folder: it asks for the same ones, whatever was typed at the time."
    if any(cell.parameters for cell in study.cells) and study.about["kind"] == "table":
        note += " FOLDER stands for the recipes the hyper-parameters below came from."
    if study.about.get("benchmark") is None:
        note += " Names of domains stand for the paths of their data."
    return Section("How it was made", body + paragraph(note, "note") + facts(items) + _settings(study))


def failures_section(study: Study) -> Section | None:
    """Return which cells failed and which are not finished; None where all are."""
    failed = [cell for cell in study.cells if cell.path in study.errors]
    waiting = [cell for cell in study.cells if cell.path not in study.rows and cell.path not in study.errors]
    if not failed and not waiting:
        return None
    body = paragraph(
        f"{len(study.rows)} of {len(study.cells)} cells are finished, {len(failed)} failed, {len(waiting)} are not "
        "done yet. Numbers on this page are of those that are finished; the same command goes on with the others.",
        "warning",
    )
    if failed:
        rows: list[Row] = [[cell.label, study.errors[cell.path]] for cell in failed[:MOST]]
        body += table(["cell", "error"], rows, caption=_first("Failed cells", failed))
    if waiting:
        body += details(_first("Cells not done yet", waiting), bullets(cell.label for cell in waiting[:MOST]))
    return Section("What is missing", body)


def _time(minutes: float) -> str:
    return (
        f"{60 * minutes:.0f} s" if minutes < 2 else f"{minutes:.1f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
    )


def _first(text: str, several: Sequence[Cell]) -> str:
    return text if len(several) <= MOST else f"{text}, the first {MOST} of {len(several)}"


def _counted(several: Counter[str]) -> str:
    if len(several) == 1:
        return next(iter(several))
    listed = ", ".join(f"{name} ({count})" for name, count in several.most_common(6))
    return f"{listed}, ..." if len(several) > 6 else listed


def _settings(study: Study) -> str:
    """Return which settings and hyper-parameters differ from the defaults, by method."""
    told: dict[tuple[str, str], dict[str, None]] = {}
    for cell in study.cells:
        name = cell.method if cell.setting == "default" else f"{cell.method} {cell.setting}"
        told.setdefault((_listed(cell.settings), _listed(cell.parameters)), {})[name] = None
    if not any(settings or parameters for settings, parameters in told):
        return paragraph("All settings and hyper-parameters are the defaults of this version.", "note")
    rows: list[Row] = [
        [", ".join(names), parameters or "–", settings or "–"]
        for (settings, parameters), names in list(told.items())[:MOST]
    ]
    caption = "What was asked for beyond the defaults"
    return details(caption, table(["method", "hyper-parameters", "settings"], rows, caption=caption))


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_typed(value)}" for name, value in values.items() if value is not None)


def _tables(study: Study) -> Iterable[list[str]]:
    asked: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}  # of each method: its standards, all the rest
    for method in methods_in_order(cell.method for cell in study.cells):
        own = [cell for cell in study.cells if cell.method == method]
        there = {cell.standard for cell in own}
        words = _common(study, own) + (["--recipes", "FOLDER"] if any(cell.parameters for cell in own) else [])
        asked[method] = tuple(name for name in STANDARDS if name in there), tuple(words)
    unusual = {one for method, one in asked.items() if set(one[0]) != _usual(method)}
    groups: dict[tuple[str, ...], list[str]] = {}
    for method, (standards, rest) in asked.items():
        named = ("--standards", *standards) if (standards, rest) in unusual else ()
        groups.setdefault((*rest, *named), []).append(method)
    for flags, methods in groups.items():
        yield ["graphmsda", "study", "table", *_data(study), "--methods", *methods, *flags, *_out(study)]


def _ablations(study: Study) -> Iterable[list[str]]:
    for method, terms in dict.fromkeys((cell.method, tuple(cell.varied)) for cell in study.cells):
        own = [cell for cell in study.cells if (cell.method, tuple(cell.varied)) == (method, terms)]
        whole = next((cell.parameters for cell in own if all(cell.varied.values())), {})
        words = ["--method", method, "--terms", *terms, *_common(study, own), *_set(whole)]
        yield ["graphmsda", "study", "ablation", *_data(study), *words, *_out(study)]


def _sensitivities(study: Study) -> Iterable[list[str]]:
    for method, name in dict.fromkeys((cell.method, next(iter(cell.varied))) for cell in study.cells):
        own = [cell for cell in study.cells if cell.method == method and name in cell.varied]
        values = [_typed(value) for value in dict.fromkeys(cell.varied[name] for cell in own)]
        field = "wrong_edges" if name == "N_neg" else name
        base = {each: value for each, value in own[0].parameters.items() if each != field}
        words = ["--method", method, "--param", name, *values, *_common(study, own, without=name), *_set(base)]
        yield ["graphmsda", "study", "sensitivity", *_data(study), *words, *_out(study)]


def _timings(study: Study) -> Iterable[list[str]]:
    for about in dict.fromkeys(json.dumps(dict(cell.varied)) for cell in study.cells):
        own = [cell for cell in study.cells if json.dumps(dict(cell.varied)) == about]
        counts = [word for name, value in own[0].varied.items() for word in (f"--{name}", str(value))]
        words = ["--methods", *methods_in_order(cell.method for cell in own), *counts, *_flags(own[0].settings)]
        data = [] if study.about.get("benchmark") == NOISE else [*_data(study), "--targets", own[0].target]
        yield ["graphmsda", "study", "timing", *data, *words, *_out(study)]


def _searches(study: Study) -> Iterable[list[str]]:
    about, tried = study.about["search"], {(cell.target, cell.setting) for cell in study.cells}
    trials = max(Counter(target for target, _ in tried).values(), default=1)
    targets = [name for name in study.about.get("domains") or () if name in dict(tried)]
    words = ["--method", about["method"]]
    for name, part in about["space"].items():
        ends = part["values"] if "values" in part else [part["low"], part["high"], *(["log"] if part["log"] else [])]
        words += ["--param", name, *map(_typed, ends)]
    words += ["--score", about["score"], "--trials", str(trials), "--targets", *targets]
    words += ["--seeds", *map(str, about["seeds"])]
    usual = next((cell for cell in study.cells if not cell.varied), None)
    if usual is not None:
        words += [*_flags(usual.settings), *_set(usual.parameters)]
    yield ["graphmsda", "study", "search", *_data(study), *words, *_out(study)]


def _data(study: Study) -> list[str]:
    benchmark, domains = study.about.get("benchmark"), list(study.about.get("domains") or ())
    words = ["--benchmark", benchmark] if benchmark else ["--domains", *domains]
    return words + _flags(study.about.get("reading") or {})


def _common(study: Study, cells: Sequence[Cell], without: str = "") -> list[str]:
    """Return targets, seeds and settings of some cells."""
    there = {cell.target for cell in cells}
    targets = [name for name in study.about.get("domains") or () if name in there]
    words = [] if len(targets) == len(study.about.get("domains") or ()) else ["--targets", *targets]
    settings = {name: value for name, value in cells[0].settings.items() if name != without}
    seeds = sorted({cell.seed for cell in cells})
    return [*words, "--seeds", *map(str, seeds), *_flags(settings)]


def _flags(settings: Mapping[str, Any]) -> list[str]:
    given = {name: value for name, value in settings.items() if value is not None and not isinstance(value, Mapping)}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", _typed(value))]


def _set(parameters: Mapping[str, Any]) -> list[str]:
    return ["--set", *(f"{name}={_typed(value)}" for name, value in parameters.items())] if parameters else []


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _out(study: Study) -> list[str]:
    return ["--out", str(study.path)]


def _usual(method: str) -> set[str]:
    try:
        return set(standards_of(method))
    except UserError:  # of a package that is not installed here
        return set()
