"""Tables for people, JSON and CSV for programs."""

from __future__ import annotations

import csv
import inspect
import io
import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from graphmsda import METHODS, Evaluation, Predictions
from graphmsda.methods import hyperparameters
from graphmsda.tables import (
    COLUMNS,
    evaluation_json,
    evaluation_table,
    method_page,
    methods_page,
    prediction_rows,
    write_predictions,
)

ODD = ('a, "b"', "größe 猫", "[red]plain[/nothing]")


def evaluation(classes: tuple[str, ...] = ODD, unreadable: dict[str, str] | None = None) -> Evaluation:
    count = len(classes)
    confusion = [[5 * (i == j) + (j == (i + 1) % count) for j in range(count)] for i in range(count)]
    confusion[-1] = [0] * count
    return Evaluation(
        accuracy=5 / 6,
        per_class=dict.fromkeys(classes[:-1], 5 / 6),
        counts={name: sum(row) for name, row in zip(classes, confusion, strict=True)},
        confusion=confusion,
        classes=classes,
        unreadable=unreadable or {},
    )


class FakeRun:
    """Gives its predictions part by part."""

    def __init__(self, *parts: Predictions) -> None:
        self.parts = parts
        self.asked: list[object] = []

    def stream(self, data: object) -> Iterator[Predictions]:
        self.asked.append(data)
        yield from self.parts


def predictions(classes: tuple[str, ...] = ODD) -> Predictions:
    probabilities = torch.tensor([0.2, 0.7, 0.1][: len(classes)])
    rows = torch.stack([probabilities, torch.full((len(classes),), torch.nan), probabilities.flip(0)])
    return Predictions(
        ['a,"quoted".png', "line\nbreak.png", "猫.png"],
        [classes[1], None, classes[int(rows[2].argmax())]],
        rows,
        ["source, one", None, "quelle"],
        [None, 'broken, "badly"', None],
        classes,
    )


def test_evaluation_for_people() -> None:
    text = evaluation_table(evaluation(unreadable={"x.png": "truncated", "y.png": "empty file"}))
    lines = text.splitlines()
    assert lines[0] == "accuracy 83.3 % of 12 samples"
    assert "2 could not be read" in lines[1]
    assert "x.png, truncated" in lines[1]
    first = next(line for line in lines if line.startswith('a, "b"'))
    assert first.split()[-5:] == ["6", "83.3", "5", "1", "·"]
    assert next(line for line in lines if line.startswith("größe")).split()[-5:] == ["6", "83.3", "·", "5", "1"]
    last = next(line for line in lines if line.startswith("[red]plain[/nothing]"))  # shown as it is, no markup
    assert last.split()[-5:] == ["0", "-", "·", "·", "·"]
    assert lines[-1] == "rows are true classes, columns predicted ones"
    assert "\x1b" not in text


def test_many_classes_leave_the_confusion_to_json() -> None:
    text = evaluation_table(evaluation(tuple(f"class-{k}" for k in range(30))))
    assert text.splitlines()[-1] == "use --json for the confusion matrix"
    assert all(f"class-{k} " in text for k in range(30))
    assert max(map(len, text.splitlines())) < 60


def test_evaluation_for_programs() -> None:
    result = evaluation(unreadable={"猫.png": "truncated"})
    text = evaluation_json(result)
    again = json.loads(text)
    assert Evaluation(**again | {"classes": tuple(again["classes"])}) == result
    assert again["accuracy"] == pytest.approx(5 / 6)  # a fraction, not percent
    assert "猫" in text


def test_cells() -> None:
    rows = prediction_rows(predictions())
    assert rows[0] == [
        *('a,"quoted".png', ODD[1], "0.700000", "source, one"),
        *(ODD[0], "0.200000", ODD[2], "0.100000", ""),
    ]
    assert rows[1] == ["line\nbreak.png", "", "", "", "", "", "", "", 'broken, "badly"']
    assert all(len(row) == len(COLUMNS) for row in rows)


def test_two_classes_leave_the_third_cells_empty() -> None:
    row = prediction_rows(predictions(("no", "yes")))[0]
    assert row == ['a,"quoted".png', "yes", "0.700000", "source, one", "no", "0.200000", "", "", ""]


def test_csv_file(tmp_path: Path) -> None:
    run = FakeRun(predictions(), predictions())
    assert write_predictions(run, ["new/"], tmp_path / "deep" / "out.csv") == (6, 2)
    assert run.asked == [["new/"]]
    with (tmp_path / "deep" / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert tuple(rows[0]) == COLUMNS
    assert rows[1:] == prediction_rows(predictions()) * 2
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out.csv"]


def test_csv_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert write_predictions(FakeRun(predictions()), ("new/",), None) == (3, 1)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out, newline="")))
    assert [row["path"] for row in rows] == predictions().items
    assert [row["error"] for row in rows] == ["", 'broken, "badly"', ""]
    assert [rows[2][name] for name in ("label", "label_2", "label_3")] == [ODD[1], ODD[2], ODD[0]]
    assert float(rows[0]["confidence"]) == pytest.approx(0.7)


def test_a_failure_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    class Broken(FakeRun):
        def stream(self, data: object) -> Iterator[Predictions]:
            yield predictions()
            raise ZeroDivisionError

    (tmp_path / "out.csv").write_text("old")
    with pytest.raises(ZeroDivisionError):
        write_predictions(Broken(), ["new/"], tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_all_methods_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(METHODS["source-only"]):
        """Mine: a method of another package."""

    entry = EntryPoint("mine", "somewhere:Mine", "graphmsda.methods")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Mine)
    for module in ("graphmsda.tables", "graphmsda.methods"):
        monkeypatch.setattr(f"{module}.entry_points", lambda *, group: [entry])
    page = methods_page()
    for name, method in METHODS.items():
        line = next(line for line in page.splitlines() if line.split()[:1] == [name])
        assert (inspect.getdoc(method) or "").split()[0] in line
    assert "mine" in page
    assert "Mine: a method of another package." in page


def test_a_broken_package_does_not_hide_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("theirs", "a_module_that_is_not:Method", "graphmsda.methods")
    for module in ("graphmsda.methods", "graphmsda.tables"):
        monkeypatch.setattr(f"{module}.entry_points", lambda *, group: [entry])
    page = methods_page()
    assert "mrf" in page
    assert "cannot be loaded (ModuleNotFoundError" in page


@pytest.mark.parametrize("name", list(METHODS))
def test_a_page_shows_every_hyperparameter(name: str) -> None:
    page = method_page(name)
    assert page.startswith(f"{name}\n")
    assert (inspect.getdoc(METHODS[name]) or "").splitlines()[0] in page
    parameters = hyperparameters(METHODS[name])
    for parameter in parameters.values():
        cells = next(line.split() for line in page.splitlines() if line.split()[:1] == [parameter.name])
        default = parameter.default
        assert cells[1] == (str(default).lower() if isinstance(default, bool) else str(default))
        for place, preset in enumerate(METHODS[name].presets.values()):
            value = preset.get(parameter.name, default)
            assert cells[2 + place] == (str(value).lower() if isinstance(value, bool) else str(value))
    for key, value in METHODS[name].pretrained.items():
        assert f"{key} is {value}" in page
    assert ("trained weights" in page) == bool(METHODS[name].pretrained)
    for preset in METHODS[name].presets:
        assert f"--preset {preset}" in page
    assert ("no hyper-parameters" in page) == (not parameters)
    assert not any(part in page for part in ("Args:", "math::", r"\frac", r"\bigl"))  # nor the rest of a long formula
