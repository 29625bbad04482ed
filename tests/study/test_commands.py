"""``graphmsda study`` as one types it, on small tables of features."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest

from graphmsda.cli import main
from graphmsda.run import Run
from graphmsda.study import work
from graphmsda.study.cells import read_study
from graphmsda.study.protocol import best_source
from tests.test_cli import told

FLAGS = ["--epochs", "2", "--steps-per-epoch", "3", "--batch-size", "6", "--device", "cpu"]


def write_domains(folder: Path, names: str = "abc") -> list[str]:
    """Write domains as tables of features and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = np.random.default_rng(0)
    for shift, name in enumerate(names):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["label", "f0", "f1", "f2"])
            for number in range(24):
                vector = chance.normal(size=3) + 4 * (number % 3) + shift / 2
                rows.writerow([("red", "green", "blue")[number % 3], *(f"{value:.4f}" for value in vector)])
    return [str(folder / f"{name}.csv") for name in names]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_domains(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def table(places: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study."""
    out = tmp_path_factory.mktemp("study") / "table"
    command = ["study", "table", "--domains", *places, "--methods", "source-only", "mrf", "--out", str(out), *FLAGS]
    assert main(command) == 0
    return out


def test_a_table_of_three_standards(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = read_study(table)
    assert len(study.rows) == 3 * (2 + 1 + 1) + 3
    assert main(["study", "show", str(table)]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert lines[0] == "Accuracy on your domains"
    assert re.split(r"\s{2,}", lines[1]) == ["standard", "method", "-> a", "-> b", "-> c", "Avg", "│ oracle"]
    assert [line.split("  ")[0] for line in lines[3:9]].count("Single best") == 1
    assert "Single best, source by source" in lines
    assert text.count("<\n") + text.count("< ") >= 3  # a chosen source for each target


def test_the_runs_of_each_standard(table: Path) -> None:
    combined = Run.load(table / "runs/source-combine/b/source-only/seed0", device="cpu")
    assert combined.domains == ("all sources", "b")
    alone = Run.load(table / "runs/single-best/b/source-only/from-c/seed0", device="cpu")
    assert alone.domains == ("c", "b")
    together = Run.load(table / "runs/multi-source/b/mrf/seed0", device="cpu")
    assert together.domains == ("a", "c", "b")


def test_runs_know_how_their_data_were_read(places: list[str], tmp_path: Path) -> None:
    few = tmp_path / "few.csv"
    lines = Path(places[0]).read_text().splitlines()
    few.write_text("\n".join(line for line in lines if not line.startswith("blue")) + "\n")
    command = ["study", "table", "--domains", str(few), *places[1:], "--classes", "union", "--targets", "b"]
    out = tmp_path / "study"
    assert main([*command, "--methods", "source-only", "--out", str(out), *FLAGS]) == 0
    assert main(["select", str(out)]) == 0  # without `--classes union` a missing class is a mistake
    assert main(["evaluate", str(out / "runs/multi-source/b/source-only/seed0")]) == 0


def test_single_best_reports_the_label_free_choice_and_the_oracle(table: Path) -> None:
    assert main(["study", "show", str(table), "--format", "json"]) == 0
    study = read_study(table)
    rows = [row for row in study.rows.values() if row["standard"] == "single-best"]
    chosen, oracle = [], []
    for target in "abc":
        own = [row for row in rows if row["target"] == target]
        chosen.append(max(own, key=lambda row: row["label_free"]["information"])["accuracy"])
        oracle.append(max(row["accuracy"] for row in own))
    from graphmsda.study.summary import tables

    line = tables(study)[0].lines[0]
    assert line.labels == ("Single best", "Source-only")
    assert line.entries["Avg"].mean == pytest.approx(sum(chosen) / 3)
    assert line.entries["oracle"].mean == pytest.approx(sum(oracle) / 3)


def test_more_seeds_are_added_to_the_same_folder(
    table: Path, places: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study", "table", "--domains", *places, "--methods", "mrf", "--targets", "a", "--seeds", "0", "1"]
    assert main([*command, "--out", str(table), *FLAGS]) == 0
    output = capsys.readouterr()
    assert "2 cells, 1 of them done before" in output.err
    assert "[1 of 2]" not in output.out.splitlines()[2]
    assert main(["study", "show", str(table), "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert len(content["runs"]) == 16
    assert content["failed"] == []


def test_ablation(places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["study", "ablation", "--method", "crf", "--domains", *places, "--targets", "a", "--out", str(tmp_path)]
    assert main([*command, *FLAGS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Loss terms of CRF-MSDA on your domains"
    assert [line[:13].split() for line in lines[3:7]] == [[], ["x"], ["x"], ["x", "x"]]
    assert len(read_study(tmp_path).rows) == 4


def test_sensitivity(places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["study", "sensitivity", "--method", "mrf", "--param", "tau", "1", "0.1", "--domains", *places]
    assert main([*command, "--targets", "a", "b", "--set", "alpha=1", "--out", str(tmp_path), *FLAGS]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tau of MRF-MSDA on your domains"
    assert [line.split()[0] for line in lines[3:5]] == ["0.1", "1"]
    rows = list(read_study(tmp_path).rows.values())
    assert {(row["parameters"]["tau"], row["target"]) for row in rows} == {(t, d) for t in (0.1, 1) for d in "ab"}
    assert all(row["parameters"]["alpha"] == 1 for row in rows)


def test_a_choice_among_settings_without_labels(
    places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study", "sensitivity", "--method", "mrf", "--param", "tau", "1", "0.1", "--domains", *places]
    assert main([*command, "--targets", "a", "b", "--seeds", "0", "1", "--out", str(tmp_path), *FLAGS]) == 0
    assert "chosen by" not in capsys.readouterr().out
    rows = list(read_study(tmp_path).rows.values())
    for score, sign in (("nuclear-norm", 1), ("class-balance", -1)):
        assert main(["study", "show", str(tmp_path), "--by", score, "--format", "json"]) == 0
        *_, last = json.loads(capsys.readouterr().out)["tables"][0]["lines"]
        assert last["labels"] == {"tau": f"chosen by {score}"}
        for target in "ab":
            means = {
                tau: [row for row in rows if (row["target"], row["varied"]["tau"]) == (target, tau)] for tau in (1, 0.1)
            }
            best = max(means.values(), key=lambda own: sign * sum(row["scores"][score] for row in own))
            assert last["entries"][f"-> {target}"]["values"] == [row["accuracy"] for row in best]
            assert not last["entries"][f"-> {target}"]["best"]
    assert "--by luck: there is no such score" in told(capsys, ["study", "show", str(tmp_path), "--by", "luck"])


def test_another_score_chooses_the_source_of_single_best(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "show", str(table), "--by", "entropy"]) == 0
    assert "the source is chosen without target labels by entropy" in capsys.readouterr().out
    study = read_study(table)
    rows = [row for row in study.rows.values() if row["standard"] == "single-best" and row["target"] == "a"]
    assert best_source(rows, score="entropy") == min(rows, key=lambda row: row["scores"]["entropy"])["source"]


def test_who_watches_gets_the_oracle_column(
    places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study", "table", "--methods", "mrf", "--domains", *places, "--targets", "a", "--out", str(tmp_path)]
    assert main([*command, "--watch", *FLAGS]) == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("│ oracle")
    (row,) = read_study(tmp_path).rows.values()
    assert row["oracle_accuracy"] >= row["accuracy"]


def test_timing(places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["study", "timing", "--methods", "crf", "adda", "--iterations", "2", "--repeats", "3"]
    assert main([*command, "--domains", *places, "--batch-size", "6", "--device", "cpu", "--out", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "training (s)" in text
    assert "has nothing to choose from" in told(capsys, ["study", "show", str(tmp_path), "--by", "entropy"])
    assert "(17.41)" not in text, "the paper's is of another network, of more iterations and images"
    assert "Seconds of 2 iterations, mean and standard deviation of 3; mlp, 6 images of each domain" in text
    for row in read_study(tmp_path).rows.values():
        assert len(row["training"]) == len(row["inference"]) == 3
        assert all(value > 0 for value in row["training"] + row["inference"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["table"], "neither --benchmark nor --domains was given"),
        (["table", "--benchmark", "digit"], "did you mean digits-five"),
        (["table", "--benchmark", "demo", "--methods", "mrv"], "unknown method 'mrv'; did you mean"),
        (["table", "--benchmark", "demo", "--targets", "neo"], "--targets neo: there is no such domain"),
        (["table", "--benchmark", "demo", "--seeds", "0", "0"], "--seeds 0 0: one is given twice"),
        (["table", "--benchmark", "demo", "--jobs", "0"], "--jobs 0: out of range"),
        (["table", "--benchmark", "demo", "--methods", "mrf", "--epochs", "0"], "--epochs 0: out of range"),
        (["ablation", "--method", "crf", "--benchmark", "demo", "--terms", "glow"], "--terms glow: crf has no"),
        (
            ["sensitivity", "--method", "mrf", "--benchmark", "demo", "--param", "tau", "-1"],
            "--param tau=-1.0: out of range",
        ),
        (["timing", "--repeats", "0"], "--repeats 0: out of range"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "study"
    assert said in told(capsys, ["study", *words, "--out", str(out)])
    assert not out.exists()


def test_what_is_no_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no study" in told(capsys, ["study", "show", str(tmp_path)])
    assert told(capsys, ["study", "show", str(tmp_path), "--format", "word"]).endswith("shows what can be given")


def test_a_study_with_failures_says_so_and_why(
    places: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr(work, "train_cell", fail)
    command = ["study", "table", "--domains", *places, "--methods", "mrf", "--targets", "a", "--out", str(tmp_path)]
    assert main([*command, *FLAGS]) == 2
    output = capsys.readouterr()
    assert "1 failed: the same command tries them again" in output.out
    assert "graphmsda: 1 of 1 cells failed; the same command tries them again" in output.err
    assert main(["study", "show", str(tmp_path)]) == 0
    assert "multi-source/a/mrf/seed0 failed: mrf -> a, seed 0: RuntimeError: no luck" in capsys.readouterr().err
