"""The curves figure: what metrics.jsonl says, seeds averaged."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from graphmsda import UserError
from graphmsda.figures import curves, style
from tests.figures.helpers import clashes, words


def make_run(
    path: Path,
    terms: dict[str, list[float]],
    *,
    method: str = "crf",
    seed: int = 0,
    target: str = "t",
    **parameters: Any,
) -> Path:
    """A run directory with a configuration and metrics, one row an epoch."""
    path.mkdir(parents=True)
    settings = {"method": method, "seed": seed, "epochs": 3, "device": "cpu", "parameters": parameters}
    data = {"domains": ["a", "b", target], "fingerprint": "x"}
    (path / "config.yaml").write_text(yaml.safe_dump({"data": data, "settings": settings}))
    length = len(next(iter(terms.values())))
    rows = [
        {"step": 10 * (n + 1), "epoch": n + 1.0, "lr": 0.1} | {name: values[n] for name, values in terms.items()}
        for n in range(length)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_lines_are_what_the_files_say(tmp_path: Path) -> None:
    one = make_run(tmp_path / "one", {"adjacency": [0.1, 0.2, 0.3], "source": [2.0, 1.0, 0.5]}, lambda_1=0.0)
    two = make_run(tmp_path / "two", {"source": [2.0, 1.5, 1.0], "accuracy": [0.5, 0.6, 0.75]}, lambda_1=5.0)
    with style.styled():
        figure = curves.draw(curves.read_curves([one, two]))
        titles = [axes.get_title(loc="left") for axes in figure.axes]
        assert titles == ["(a) accuracy", "(b) source", "(c) adjacency"]
        accuracy, source, shown = figure.axes
        (line,) = accuracy.lines
        np.testing.assert_allclose(line.get_xydata(), [[1, 50], [2, 60], [3, 75]])
        assert accuracy.get_ylabel() == "%"
        assert [list(line.get_ydata()) for line in source.lines] == [[2.0, 1.0, 0.5], [2.0, 1.5, 1.0]]
        assert source.lines[1].get_color() == line.get_color()  # a run has one look in all panels
        assert source.lines[0].get_linestyle() != source.lines[1].get_linestyle()
        assert len(shown.lines) == 1
        assert r"CRF-MSDA, $\lambda_1$ = 0" in words(figure)
        assert clashes(figure) == []


def test_seeds_are_averaged_with_a_band(tmp_path: Path) -> None:
    values = [[1.0, 0.5], [3.0, 0.5], [2.0, 0.2]]
    for seed, some in enumerate(values):
        make_run(tmp_path / "runs" / f"seed{seed}", {"source": some}, seed=seed)
    found = curves.read_curves([tmp_path])
    assert [len(runs) for runs in found.values()] == [3]
    with style.styled():
        figure = curves.draw(found)
        (line,) = figure.axes[0].lines
        np.testing.assert_allclose(line.get_ydata(), [2.0, 0.4])
        band = figure.axes[0].collections[0].get_paths()[0].vertices
        assert band[:, 1].max() == pytest.approx(2.0 + statistics.stdev([1, 3, 2]))
        assert any("mean of 3, band: ± 1 std" in text for text in words(figure))


def test_runs_on_other_targets_or_sources_are_not_averaged(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {"source": [1.0]}, target="x")
    make_run(tmp_path / "b", {"source": [1.0]}, target="y")
    assert list(curves.read_curves([tmp_path])) == ["CRF-MSDA, → x", "CRF-MSDA, → y"]
    other = make_run(tmp_path / "c", {"source": [1.0]}, target="x")
    config = yaml.safe_load((other / "config.yaml").read_text())
    config["data"]["domains"] = ["b", "x"]
    (other / "config.yaml").write_text(yaml.safe_dump(config))
    assert list(curves.read_curves([tmp_path / "a", other])) == ["CRF-MSDA, from a + b", "CRF-MSDA, from b"]


def test_a_steep_term_has_a_logarithmic_axis(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {"source": [1.0, 0.001], "entropy": [1.0, 0.0]})
    with style.styled():
        figure = curves.draw(curves.read_curves([run]))
    assert [axes.get_yscale() for axes in figure.axes] == ["log", "linear"]


def test_chosen_terms(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", {"source": [1.0, 0.5], "gradient": [1.0, 0.5]})
    found = curves.read_curves([run])
    assert curves.term_names(found) == ["source"]
    assert curves.term_names(found, ["lr", "gradient"]) == ["lr", "gradient"]
    with pytest.raises(UserError, match="--terms loss: the runs have no such column; they have lr, source, gradient"):
        curves.term_names(found, ["loss"])


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such folder"):
        curves.read_curves([tmp_path / "nothing"])
    with pytest.raises(UserError, match="there is no run in it"):
        curves.read_curves([tmp_path])
    run = make_run(tmp_path / "a", {"source": [1.0]})
    with pytest.raises(UserError, match="15 runs that differ in more than their seeds were found; give up to 14"):
        curves.draw({str(number): [[{"epoch": 1, "source": 1.0}]] for number in range(15)})
    (run / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="holds no reading yet"):
        curves.read_curves([run])
