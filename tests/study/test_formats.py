"""Tables in every format: what is best, what is missing, what the paper has, and LaTeX that holds together."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from graphmsda.study.cells import Cell, Study
from graphmsda.study.data import Data
from graphmsda.study.formats import FORMATS, show
from graphmsda.study.grids import ablation_cells, sensitivity_cells, table_cells
from graphmsda.study.summary import tables

DIGITS = Data("digits-five")


def study_of(cells: list[Cell], accuracy: Any, kind: str = "table", data: Data = DIGITS, **more: Any) -> Study:
    rows = {}
    for cell in cells:
        value = accuracy(cell)
        if value is not None:
            free = {"information": value / 2}
            rows[cell.path] = {**cell.named(), "accuracy": value, "oracle_accuracy": None, "label_free": free}
    return Study(Path("study"), {"format": 1, "kind": kind, **data.about()}, cells, rows, more.get("errors", {}))


def digits(missing: bool = False) -> Study:
    cells = table_cells(DIGITS, ["source-only", "crf", "mrf"], DIGITS.domains, [0, 1, 2], {})

    def accuracy(cell: Cell) -> float | None:
        if missing and cell.method == "mrf" and cell.seed == 2:
            return None
        base = {"source-only": 0.6, "crf": 0.8, "mrf": 0.9}[cell.method]
        return base + 0.01 * cell.seed + (0.05 if cell.source == "sv" else 0.0)

    return study_of(cells, accuracy)


@pytest.mark.parametrize(("iterations", "batch", "beside"), [(100, 128, True), (100, 16, False), (2, 128, False)])
def test_times_beside_the_papers_only_where_they_are_of_the_same_job(iterations: int, batch: int, beside: bool) -> None:
    cell = Cell("multi-source", "noise", "mrf", 0, varied={"iterations": iterations, "repeats": 2})
    row = {"training": [0.1, 0.2], "inference": [0.3, 0.3], "backbone": "3conv-2fc", "batch_size": batch}
    text = show(Study(Path("study"), {"format": 1, "kind": "timing", **DIGITS.about()}, [cell], {cell.path: row}, {}))
    assert "0.15 ± 0.07" in text
    assert ("16.54" in text) == ("Table 8" in text) == beside


def test_text_of_the_papers_first_table() -> None:
    text = show(digits())
    lines = text.splitlines()
    (line,) = [line for line in lines if "MRF-MSDA" in line]
    *_, average, bar, oracle = re.split(r"\s{2,}", line)
    assert (average, bar, oracle) == ("91.0* ± 1.0 (93.7)", "│", "-")
    assert "91.0* ± 1.0 (90.7)" in line  # -> mm
    assert "Table 2 of Xu, Wang and Ni" in text
    assert [line for line in lines if line.startswith(("Single best ", "Source combine ", "Multi-source "))] != []
    order = [next(n for n, line in enumerate(lines) if line.startswith(name)) for name in
             ("Single best ", "Source combine", "Multi-source")]  # fmt: skip
    assert order == sorted(order)
    # The best of each column is marked once.
    _head, _, *rows = lines[1:]
    marks = [row.count("*") for row in rows[:7]]
    assert sum(marks) == len(DIGITS.domains) + 1


def test_what_is_missing_is_said() -> None:
    study = digits(missing=True)
    text = show(study)
    assert "90.5* ± 0.7 [2 of 3] (90.7)" in text
    assert "5 of 120 cells are not finished" in tables(study)[0].notes


def test_a_choice_waits_for_all_sources() -> None:
    cells = table_cells(DIGITS, ["source-only"], ["mm"], [0], {}, standards=["single-best"])
    study = study_of(cells, lambda cell: None if cell.source == "mt" else 0.5)
    assert tables(study)[0].lines[0].entries["-> mm"].mean is None
    more = table_cells(DIGITS, ["source-only"], ["mm"], [0, 1], {}, standards=["single-best"])
    study = study_of(more, lambda cell: None if (cell.source, cell.seed) == ("mt", 1) else 0.5)
    entry = tables(study)[0].lines[0].entries["-> mm"]
    assert (len(entry.values), entry.asked) == (1, 2)


def test_failures_are_said() -> None:
    cells = table_cells(DIGITS, ["mrf"], ["mm"], [0], {})
    study = study_of(cells, lambda cell: None, errors={cells[0].path: "no luck"})
    assert "1 failed: the same command tries them again" in show(study)
    assert json.loads(show(study, "json"))["failed"][0]["error"] == "no luck"


def test_markdown() -> None:
    text = show(digits(), "markdown")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows[:7]}) == 1
    assert "**91.0** ± 1.0 (90.7)" in text
    assert "→ mm" in rows[0]


def test_csv_and_json_hold_fractions() -> None:
    rows = list(csv.DictReader(io.StringIO(show(digits(), "csv"))))
    (one,) = [row for row in rows if row["row"] == "Multi-source, MRF-MSDA" and row["column"] == "-> mm"]
    assert float(one["mean"]) == pytest.approx(0.91)
    assert float(one["std"]) == pytest.approx(0.01)
    assert (float(one["paper_mean"]), float(one["paper_std"])) == (0.907, 0.007)
    assert one["best"] == "1"
    content = json.loads(show(digits(), "json"))
    lines = content["tables"][0]["lines"]
    entry = lines[-1]["entries"]["-> mm"]
    assert lines[-1]["labels"] == {"standard": "Multi-source", "method": "MRF-MSDA"}
    assert entry["mean"] == pytest.approx(0.91)
    assert entry["paper"] == [0.907, 0.007]
    assert len(content["runs"]) == len(digits().rows)


KNOWN = {"begin", "end", "centering", "caption", "toprule", "midrule", "bottomrule", "textbf", "pm", "surd"}
KNOWN |= {"leftarrow", "rightarrow", "textbackslash", "textasciitilde", "textasciicircum"}


def check_latex(text: str) -> None:
    """A tiny parser: environments and braces close in order, nothing unescaped, every row as wide as its table."""
    opened: list[str] = []
    width = 0
    for line in text.splitlines():
        if line.startswith("%"):
            assert line == r"% \usepackage{booktabs}"
            continue
        assert line.isascii(), line
        plain = re.sub(r"\\[%&#_{}$]", "", line)
        depth = 0
        for character in plain:
            depth += {"{": 1, "}": -1}.get(character, 0)
            assert depth >= 0, line
        assert depth == 0, line
        assert plain.count("$") % 2 == 0, line
        assert not re.search(r"[%#]", plain), line
        outside = re.sub(r"\$[^$]*\$", "", plain)
        assert "_" not in outside, line
        assert "^" not in outside, line
        for command in re.findall(r"\\([a-z]+)", plain):
            assert command in KNOWN, line
        if match := re.match(r"\\begin\{(\w+)\}", plain):
            opened.append(match[1])
            if match[1] == "tabular":
                (columns,) = re.findall(r"\\begin\{tabular\}\{([lr|]+)\}", plain)
                width = len(columns.replace("|", ""))
        elif match := re.match(r"\\end\{(\w+)\}", plain):
            assert opened.pop() == match[1]
        elif line.endswith(r"\\"):
            assert opened[-1] == "tabular"
            assert plain.count("&") == width - 1, line
        elif opened and opened[-1] == "tabular":
            assert plain in (r"\toprule", r"\midrule", r"\bottomrule"), line
        elif "&" in plain:
            raise AssertionError(line)
    assert opened == []


def studies() -> list[Study]:
    odd = Data(None, (("50%_a&b", "x"), ("c#d^e~\\{}$", "y"), ("plain", "z")))
    ablation = ablation_cells("crf", ["mm", "sv"], [0, 1], {})
    values = {"lambda_1": [1, 2], "tau": [0.1]}
    return [
        digits(),
        digits(missing=True),
        study_of(table_cells(odd, ["source-only", "mrf"], odd.domains, [0], {}), lambda cell: 0.5, data=odd),
        study_of(ablation, lambda cell: 0.5 + len(cell.parameters) / 10, "ablation"),
        study_of(sensitivity_cells(DIGITS, "crf", {"lambda_1": [1, 2]}, ["mm"], [0], {}), lambda c: 0.5, "sensitivity"),
        study_of([], lambda cell: None),
        study_of(
            sensitivity_cells(DIGITS, "mrf", {"tau": values["tau"]}, ["mm"], [0], {}), lambda c: None, "sensitivity"
        ),
    ]


@pytest.mark.parametrize("number", range(7))
def test_latex_holds_together(number: int) -> None:
    text = show(studies()[number], "latex")
    check_latex(text)
    if number == 0:
        assert r"\textbf{91.0} $\pm$ 1.0 (90.7)" in text
        assert text.count(r"\midrule") == 4  # below the heads and between the three standards


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("format", FORMATS)
def test_every_study_in_every_format(number: int, format: str) -> None:
    assert isinstance(show(studies()[number], format), str)


def test_ablation_beside_the_papers() -> None:
    text = show(studies()[3])
    assert "Table 6 of Xu" in text
    assert "(85.6)" in text  # all terms, -> mm
    assert "(74.8)" in text or "(74.9)" in text  # none
    assert r"$\surd$" in show(studies()[3], "latex")
    assert "✓" in show(studies()[3], "markdown")
