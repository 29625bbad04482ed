"""Text for people and files for programs: evaluations, predictions, methods."""

from __future__ import annotations

import csv
import dataclasses
import inspect
import io
import itertools
import json
import re
import sys
import typing
from collections.abc import Iterator, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from graphmsda.files import replacing
from graphmsda.methods import METHODS, Hyperparameter, find_method, hyperparameters

if TYPE_CHECKING:
    from rich.table import Table

    from graphmsda.run import Evaluation, Predictions, Run

COLUMNS = (
    "path",
    "label",
    "confidence",
    "nearest_source",
    "label_2",
    "confidence_2",
    "label_3",
    "confidence_3",
    "error",
)


def evaluation_json(result: Evaluation) -> str:
    """Return an evaluation as JSON; accuracies are fractions."""
    return json.dumps(dataclasses.asdict(result), indent=2, ensure_ascii=False)


def evaluation_table(result: Evaluation) -> str:
    """Return an evaluation for people: accuracy, per class, confusion."""
    total = sum(result.counts.values())
    lines = [f"accuracy {100 * result.accuracy:.1f} % of {total} samples"]
    if result.unreadable:
        first, reason = next(iter(result.unreadable.items()))
        lines.append(f"{len(result.unreadable)} could not be read and were left out (first: {first}, {reason})")
    lines += [f"note: {note}" for note in result.notes]
    wide = len(result.classes) > 20  # a confusion matrix of hundreds of columns helps nobody on a terminal
    table = new_table("class", "samples", "accuracy", *([] if wide else result.classes))
    for number, name in enumerate(result.classes):
        share = f"{100 * result.per_class[name]:.1f}" if name in result.per_class else "-"
        row = [] if wide else [str(n) if n else "·" for n in result.confusion[number]]
        table.add_row(name, str(result.counts[name]), share, *row)
    lines.append(render(table))
    lines.append("use --json for the confusion matrix" if wide else "rows are true classes, columns predicted ones")
    return "\n".join(lines)


def write_predictions(run: Run, inputs: Sequence[str | Path], out: Path | None, **reading: Any) -> tuple[int, int]:
    """Write the predictions as CSV to a file (whole or not at all) or standard output; return rows and failures.

    What had to be assumed of the data is told on stderr. `reading` goes to `Run.stream`.
    """
    parts = run.stream(list(inputs), **reading)
    if out is None:
        return _write_rows(parts, sys.stdout)
    with replacing(out) as beside, beside.open("w", newline="", encoding="utf-8") as file:
        return _write_rows(parts, file)


def _write_rows(parts: Iterator[Predictions], file: TextIO) -> tuple[int, int]:
    writer = csv.writer(file)
    first = next(parts, None)  # before the header: a mistake is told without a page begun
    writer.writerow(COLUMNS)
    rows = failures = 0
    for part in itertools.chain([] if first is None else [first], parts):
        for note in part.notes:
            print(f"graphmsda: {note}", file=sys.stderr)
        for row in prediction_rows(part):
            writer.writerow(row)
        rows += len(part)
        failures += sum(error is not None for error in part.errors)
    return rows, failures


def prediction_rows(predictions: Predictions) -> list[list[str]]:
    """Return one list of cells per sample, in the order of `COLUMNS`."""
    rows = []
    for item, best, source, error in zip(
        predictions.items, predictions.top(3), predictions.nearest_source, predictions.errors, strict=True
    ):
        cells = [cell for label, share in best for cell in (label, f"{share:.6f}")] + [""] * (6 - 2 * len(best))
        rows.append([item, *cells[:2], source or "", *cells[2:], error or ""])
    return rows


def methods_page() -> str:
    """Return the list of all methods."""
    table = new_table("method", "what it is")
    for name in [*METHODS, *(entry.name for entry in entry_points(group="graphmsda.methods"))]:
        try:
            table.add_row(name, (inspect.getdoc(find_method(name)) or "").partition("\n")[0])
        except Exception as error:  # another package's code: whatever it raises, the rest of the list stands
            table.add_row(name, f"cannot be loaded ({type(error).__name__}: {error})")
    return render(table) + "\n`graphmsda methods NAME` shows a method's hyper-parameters"


def method_page(name: str) -> str:
    """Return a method's citation, description and hyper-parameters with defaults and presets."""
    method = find_method(name)
    text = (inspect.getdoc(method) or "").partition("\nArgs:")[0]
    # LaTeX helps nobody on a terminal. A formula goes on where lines are indented.
    text = re.sub(r"\.\. math::.*\n(?:[ \t]+.*\n)*\n?", "", text).strip()
    parameters = hyperparameters(method)
    if not parameters:
        return f"{name}\n\n{text}\n\nno hyper-parameters"
    table = new_table("hyper-parameter", "default", *method.presets, "meaning")
    for parameter in parameters.values():
        presets = [_told(preset.get(parameter.name, parameter.default)) for preset in method.presets.values()]
        table.add_row(parameter.name, _told(parameter.default), *presets, _meaning(parameter))
    others = ", ".join(f"{key} is {_told(value)}" for key, value in method.pretrained.items())
    others = f"where the backbone starts from trained weights, the default of {others}\n" if others else ""
    flags = "set one with --set NAME=VALUE" + ("".join(f", or all with --preset {p}" for p in method.presets))
    return f"{name}\n\n{text}\n\n{render(table)}\n{others}{flags}"


def _told(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _meaning(parameter: Hyperparameter) -> str:
    if typing.get_origin(parameter.kind) is Literal:
        return f"{parameter.text} [{'|'.join(typing.get_args(parameter.kind))}]"
    return parameter.text


def new_table(*columns: str) -> Table:
    """Return an empty table in the house's look; all but the first column align right where they hold numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        words = column in ("what it is", "meaning", "method", "hyper-parameter", "class", "default")
        table.add_column(column, justify="left" if words else "right", overflow="fold")
    return table


def render(table: Table, **options: Any) -> str:
    """Return a rich table as text, in colour nowhere, as wide as the terminal."""
    from rich.console import Console

    target = Console()
    width = target.width if target.is_terminal else 120
    console = Console(file=io.StringIO(), width=width, no_color=True, highlight=False, markup=False, **options)
    console.print(table)
    text = str(console.file.getvalue())  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())
