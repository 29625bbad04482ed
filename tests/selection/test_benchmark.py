"""benchmarks/selection.py: its figures on rows whose truth is known, and a run from beginning to end."""

from __future__ import annotations

import doctest
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graphmsda.cli import main
from graphmsda.selection import SCORES
from graphmsda.selection.combination import HELD_OUT, Off, combine, interval
from tests.test_readme import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import selection
import selection_prior
import selection_tables

PARTS = {"transport": 0.7, "thresholded-confidence": 0.8}


def row(target: str, method: str, accuracy: float, *, guess: float, seed: int = 0) -> dict[str, Any]:
    """A run whose scores rank it by its accuracy, but for entropy, which does the opposite."""
    scores = {name: accuracy if score.higher else -accuracy for name, score in SCORES.items()}
    scores["entropy"] = accuracy
    off = {"players": 3, "mean": 0.2, "squares": 0.4}
    said = {"accuracy": guess, "low": guess - 0.05, "high": guess + 0.05, "parts": PARTS, "off": off}
    return {
        "run": f"{target}/{method}-{seed}",
        "benchmark": "demo",
        "target": target,
        "method": method,
        "samples": 100,
        "accuracy": accuracy,
        "true_logit": 1.0,
        "scores": scores,
        "estimates": {"one run": said},
        "calibration": {"temperature": 1.0, "sources": [0.1, 0.05], "target": [0.2, 0.15]},
        "commit": "abc",
        "hardware": "here",
    }


def rows() -> list[dict[str, Any]]:
    methods = ("source-only", "adabn", "crf", "mrf")
    return [
        row(target, method, 0.5 + 0.1 * number, guess=0.55 + 0.1 * number + (0.1 if target == "c" else 0.0))
        for target in "abc"
        for number, method in enumerate(methods)
    ]


def test_figures() -> None:
    found = selection_tables.summarise(rows())["demo"]
    best, worst = found["scores"]["transport"], found["scores"]["entropy"]
    assert best["correlation"] == pytest.approx(1)
    assert best["regret"] == pytest.approx(0)
    assert worst["correlation"] == pytest.approx(-1)
    assert worst["regret"] == pytest.approx(0.3)
    assert found["chance"] == pytest.approx(0.15)
    alone = found["estimates"]["one run"]
    assert alone["error"] == pytest.approx((0.05 + 0.05 + 0.15) / 3)
    assert alone["bias"] == pytest.approx(alone["error"])
    assert found["estimates"]["two seeds"] is None
    assert found["estimators"]["transport"]["bias"] == pytest.approx(0.05)


def test_verdicts() -> None:
    found = selection_tables.summarise(rows())
    assert selection_tables.verdict("transport", found) == "use"
    assert selection_tables.verdict("entropy", found) == "do not use"


def test_other_targets_stand_in_for_rehearsals() -> None:
    told = selection.with_other_targets(rows())
    assert all(set(one["estimates"]) == {"one run", "other targets"} for one in told)
    found = told[0]["estimates"]["other targets"]
    assert found["low"] < found["accuracy"] < found["high"]
    alone = [one for one in rows() if one["target"] == "a"]
    assert all(set(one["estimates"]) == {"one run"} for one in selection.with_other_targets(alone))


def test_rows_tell_again_what_the_estimate_says() -> None:
    one = row("a", "mrf", 0.7, guess=0.9)
    kept = one["estimates"]["one run"]
    told = selection_prior.retold([one])[0]["estimates"]
    assert set(told) == {"one run"}  # there is no other benchmark
    expected = interval(combine(PARTS), Off(**kept["off"]), HELD_OUT, 100)
    assert tuple(told["one run"][name] for name in ("accuracy", "low", "high")) == expected


def test_a_prior_is_of_the_other_benchmarks() -> None:
    """Truths far below what all estimators say, in one benchmark, make the prior of the other pessimistic."""
    low = [row(target, "mrf", 0.5, guess=0.9) | {"true_logit": -1.0, "benchmark": "low"} for target in "abc"]
    high = [row(target, "mrf", 0.9, guess=0.9) | {"true_logit": 2.5, "benchmark": "high"} for target in "abc"]
    assert selection_prior.fit(low).bias < selection_prior.fit([*low, *high]).bias < selection_prior.fit(high).bias
    told = selection_prior.retold([*low, *high])
    found = {one["benchmark"]: one["estimates"]["by other benchmarks"] for one in told}
    assert found["low"]["accuracy"] > found["high"]["accuracy"]
    assert found["high"]["prior"][0] == selection_prior.fit(low).bias


def test_page(tmp_path: Path) -> None:
    file, page = tmp_path / "found.json", tmp_path / "page.md"
    selection.write(file, {"commands": ["python benchmarks/selection.py demo"], "date": "2026-01-01"}, rows())
    page.write_text("before\n<!-- table:selection -->\nold\n<!-- /table:selection -->\nafter\n")
    assert selection.main(["--out", str(file), "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- table:selection -->\n| score |")
    assert text.endswith("<!-- /table:selection -->\nafter\n")
    assert "\nold\n" not in text
    assert "| entropy | -1.00 | -1.00 | 30.0 (30.0) | do not use |" in text


def test_a_table_is_read_whole_again(tmp_path: Path) -> None:
    def put(*cells: tuple[str, str, float]) -> None:
        """Write a table of runs by setting, target and accuracy."""
        runs = [
            {"method": "mrf", "setting": setting, "epochs": 3, "seed": 0, "commit": "abc", "target": target}
            | {
                "selection": {
                    name: value for name, value in row(target, "mrf", accuracy, guess=0.6).items() if name != "run"
                }
            }
            for setting, target, accuracy in cells
        ]
        table.write_text(json.dumps({"runs": runs}))

    table, file = tmp_path / "demo.json", tmp_path / "found.json"
    selection.write(file, {"commands": [], "date": "2026-01-01"}, rows())  # runs of folders, which stay
    put(("default", "a", 0.7), ("default", "b", 0.8), ("other", "a", 0.6))
    assert selection.main([str(table), "--out", str(file), "--commit", "abc"]) == 0
    put(("default", "a", 0.9), ("renamed", "b", 0.8))
    assert selection.main([str(table), "--out", str(file), "--commit", "abc"]) == 0
    found = {one["run"]: one["accuracy"] for one in json.loads(file.read_text())["rows"]}
    assert {run: value for run, value in found.items() if run.startswith("demo/")} == {
        "demo/mrf, default, a, 3 epochs, seed 0": 0.9,
        "demo/mrf, renamed, b, 3 epochs, seed 0": 0.8,
    }
    assert {one["run"] for one in rows()} <= set(found)


def test_doctests() -> None:
    assert doctest.testmod(selection_tables).failed == 0


def test_from_runs_to_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "gather", partial(selection.gather, most=60))
    quick = ["--epochs", "1", "--steps-per-epoch", "1", "--batch-size", "6", "--device", "cpu", "--backbone", "small"]
    for seed in ("0", "1"):
        out = str(tmp_path / "runs" / seed)
        assert main(["fit", "--task", "demo:neon", "--method", "mrf", "--seed", seed, "--out", out, *quick]) == 0
    file = tmp_path / "selection.json"
    words = [str(tmp_path / "runs"), "--out", str(file), "--device", "cpu", "--commit", "abc"]
    assert selection.main(words) == 0
    found = json.loads(file.read_text())
    assert [one["run"] for one in found["rows"]] == ["runs/0", "runs/1"]
    assert all({"one run", "two seeds"} <= set(one["estimates"]) for one in found["rows"])
    assert str(tmp_path) not in file.read_text()
    before = file.read_text()
    capsys.readouterr()
    assert selection.main(words) == 0  # nothing is left to measure
    assert "runs/0" not in capsys.readouterr().out
    assert json.loads(file.read_text())["rows"] == json.loads(before)["rows"]
