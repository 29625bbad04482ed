"""The sensitivity figure: means and bands over seeds, from tunings, studies and files of rows."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphmsda import UserError
from graphmsda.figures import sensitivity, style
from graphmsda.study.cells import Cell, add_cells, open_study
from tests.figures.helpers import clashes, words

ACCURACY = {0.05: [0.5, 0.6], 0.1: [0.7, 0.7], 0.2: [0.8, 0.9], 1.0: [0.4, 0.6]}


def rows_of(target: str = "mm", usual: float = 0.2) -> list[dict[str, Any]]:
    return [
        {"setting": "default" if tau == usual else f"tau={tau}", "values": {"tau": tau}, "player": target, "seed": seed,
         "accuracy": accuracy, "error": None}
        for tau, several in ACCURACY.items()
        for seed, accuracy in enumerate(several)
    ]  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"method": "mrf", "runs": rows}))
    return path


def test_a_tuning_is_drawn(tmp_path: Path) -> None:
    failed = {"setting": "tau=9", "values": {"tau": 9}, "player": "mm", "seed": 0, "accuracy": None, "error": "no"}
    write(tmp_path / "tune.json", [*rows_of("mm"), *rows_of("svhn"), failed])
    with style.styled():
        figure = sensitivity.draw(sensitivity.read_rows([tmp_path]))
        (axes,) = figure.axes
        lines = [line for line in axes.lines if len(line.get_xdata()) == 4]
        assert len(lines) == 2
        for line in lines:
            np.testing.assert_allclose(line.get_xdata(), list(ACCURACY))
            np.testing.assert_allclose(line.get_ydata(), [100 * statistics.mean(a) for a in ACCURACY.values()])
        band = axes.collections[0].get_paths()[0].vertices
        assert band[:, 1].max() == pytest.approx(85 + 100 * statistics.stdev([0.8, 0.9]))
        assert axes.get_xscale() == "log"
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0.05", "0.1", "0.2", "1"]
        assert axes.get_xlabel() == r"$\tau$"
        assert {"→ mm", "→ svhn", "default"} <= set(words(figure))
        assert clashes(figure) == []


def test_a_study_is_drawn_with_a_panel_for_each_parameter(tmp_path: Path) -> None:
    out = tmp_path / "study"
    cells = [
        Cell("multi-source", "mm", "mrf", seed, None, f"{name}={value}", {name: value}, {}, {name: value})
        for name, values in {"tau": (0.1, 0.2), "alpha": (0.0, 1.0, 100.0)}.items()
        for value in values
        for seed in (0, 1)
    ]
    open_study(out, {"kind": "sensitivity", "benchmark": "digits-five", "domains": ["mm", "mt"], "reading": {}})
    add_cells(out, cells)
    with pytest.raises(UserError, match="no run of this study is finished"):
        sensitivity.read_rows([out])
    for cell in cells[:-1]:  # the last is not finished
        place = out / "runs" / cell.path
        place.mkdir(parents=True)
        (place / "result.json").write_text(json.dumps({**cell.named(), "accuracy": 0.5 + 0.1 * cell.seed}))
    with style.styled():
        figure = sensitivity.draw(sensitivity.read_rows([out]))
        second, first = figure.axes  # by name
        assert (first.get_xlabel(), second.get_xlabel()) == (r"$\tau$", r"$\alpha$")
        assert [label.get_text() for label in second.get_xticklabels()] == ["0", "1", "100"]
        np.testing.assert_allclose(second.lines[0].get_ydata(), [55, 55, 50])
        np.testing.assert_allclose(second.lines[0].get_xdata(), [0, 1, 2])  # 0 has no place among powers of ten
        assert clashes(figure) == []


def test_only_one_parameter_moves_in_a_grid(tmp_path: Path) -> None:
    rows = [
        {"setting": "default" if (a, b) == (1, "log") else "x", "values": {"alpha": a, "likelihood": b}, "player": "mm",
         "seed": 0, "accuracy": accuracy}
        for a, b, accuracy in ((1, "log", 0.5), (2, "log", 0.6), (1, "verbatim", 0.7), (2, "verbatim", 0.9))
    ]  # fmt: skip
    found = sensitivity.varied(sensitivity.read_rows([write(tmp_path / "rows.json", rows)]))
    assert [row["accuracy"] for row in found["alpha"]] == [0.5, 0.6]
    assert [row["accuracy"] for row in found["likelihood"]] == [0.5, 0.7]
    with style.styled():
        figure = sensitivity.draw(sensitivity.read_rows([tmp_path]), parameters=["likelihood"])
        assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["log", "verbatim"]


def test_rows_of_a_list(tmp_path: Path) -> None:
    rows = [{"parameters": {"tau": tau}, "accuracy": 0.5, "seed": 0, "target": "mm"} for tau in (0.1, 0.2)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    assert [row["target"] for row in sensitivity.read_rows([tmp_path / "rows.json"])] == ["mm", "mm"]


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no finished run of a study"):
        sensitivity.read_rows([tmp_path])
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(UserError, match="is not a file of results"):
        sensitivity.read_rows([tmp_path / "a.json"])
    rows = sensitivity.read_rows([write(tmp_path / "tune.json", rows_of())])
    with pytest.raises(UserError, match="--param alpha: has not been varied there; varied were tau"):
        sensitivity.draw(rows, parameters=["alpha"])
    with pytest.raises(UserError, match="--targets up: the study has no such target; it has mm"):
        sensitivity.draw(rows, targets=["up"])
    with pytest.raises(UserError, match="no parameter has more than one value"):
        sensitivity.draw(rows[:2])
    open_study(tmp_path / "s", {"kind": "table", "benchmark": "demo", "domains": ["a"], "reading": {}})
    with pytest.raises(UserError, match="is a study of kind table"):
        sensitivity.read_rows([tmp_path / "s"])
