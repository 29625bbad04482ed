"""`graphmsda select`, `figure reliability`, and the estimate of `fit` and `evaluate`, as they are typed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from graphmsda.cli import main
from graphmsda.selection import SCORES

QUICK = ["--epochs", "2", "--steps-per-epoch", "2", "--batch-size", "6", "--device", "cpu"]
SENTENCE = r"estimated accuracy on the target: \d+ % \(\d+-\d+ %\)"


def write_domains(place: Path, *, parts: bool = False) -> list[str]:
    """Write feature vectors of three sources and a target, and return what `fit` is told of them."""
    chance = np.random.default_rng(0)
    place.mkdir(exist_ok=True)
    for number, name in enumerate("abct"):
        arrays = {}
        for part in ("_train", "_test") if parts else ("",):
            y = arrays[f"y{part}"] = np.arange(30) % 3
            arrays[f"x{part}"] = (chance.normal(size=(30, 6)) + 2 * y[:, None] + 0.3 * number).astype("f4")
        np.savez(place / f"{name}.npz", **arrays)
    files = [str(place / f"{name}.npz") for name in "abct"]
    return ["--sources", *files[:3], "--target", files[3]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on feature vectors."""
    place = tmp_path_factory.mktemp("runs")
    data = write_domains(place / "data")
    for method in ("source-only", "mrf"):
        assert main(["fit", *data, "--method", method, "--out", str(place / method), *QUICK]) == 0
    return place


def test_ranks_by_all_scores(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["select", str(runs)]) == 0
    out = capsys.readouterr().out
    assert "best first by" in out
    assert "what each score would choose:" in out
    for name in SCORES:
        assert name in out
    assert "calibrated on earlier benchmarks alone" in out


@pytest.mark.parametrize("by", ["entropy", "source-accuracy", "estimate"])
def test_ranks_by_one(runs: Path, capsys: pytest.CaptureFixture[str], by: str) -> None:
    assert main(["select", str(runs / "mrf"), str(runs / "source-only"), "--by", by, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["by"] == by
    values = [row["estimate"]["accuracy"] if by == "estimate" else row["scores"][by] for row in found["runs"]]
    assert values == sorted(values, reverse=by == "estimate" or SCORES[by].higher)
    assert found["choices"] == {by: found["runs"][0]["run"]}
    assert set(found["runs"][0]["scores"]) == set(SCORES)
    assert main(["select", str(runs / "mrf"), str(runs / "source-only"), "--by", by]) == 0
    assert f"best first by {by}" in capsys.readouterr().out


def test_a_checkpoint_is_ranked_too(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("mrf", "source-only"):
        copy = tmp_path / method
        shutil.copytree(runs / method, copy)
        (copy / "model.json").unlink()
        (copy / "model.safetensors").unlink()
        assert main(["select", str(copy), str(runs / method), "--json"]) == 0
        # The last checkpoint is the finished model.
        unfinished, finished = (
            next(row["scores"] for row in json.loads(out)["runs"] if row["run"] == str(path))
            for out in [capsys.readouterr().out]
            for path in (copy, runs / method)
        )
        assert unfinished == pytest.approx(finished, rel=1e-4)
    if not torch.cuda.is_available():
        assert main(["select", str(tmp_path / "mrf"), "--device", "cuda"]) == 2
        assert "finds no CUDA device" in capsys.readouterr().err
    (tmp_path / "mrf" / "checkpoint" / "state.safetensors").unlink()
    assert main(["select", str(tmp_path / "mrf")]) == 2
    assert "has not finished training" in capsys.readouterr().err


def test_mistakes_are_told(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> str:
        assert main(["select", *words]) == 2
        return capsys.readouterr().err

    assert "--by luck: there is no such score; choose one of entropy" in told(str(runs), "--by", "luck")
    assert "there is no such folder" in told(str(tmp_path / "nothing"))
    assert "no finished rehearsal of" in told(str(runs / "mrf"), "--rehearsals", str(runs))
    sources = [str(runs / "data" / f"{name}.npz") for name in "abt"]
    other = ["--sources", *sources, "--target", str(runs / "data" / "c.npz")]
    assert main(["fit", *other, "--out", str(tmp_path / "c"), *QUICK]) == 0
    capsys.readouterr()
    assert "give runs of one task for a ranking" in told(str(runs / "mrf"), str(tmp_path / "c"))


def test_rehearsals_of_a_tuning(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_domains(runs / "data")
    assert main(["tune", *data, "--method", "mrf", "--players", "b", "c", "--out", str(tmp_path), *QUICK]) == 0
    capsys.readouterr()
    assert main(["select", str(runs / "mrf"), "--rehearsals", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"][0]["estimate"]
    assert found["calibrated_on"] == "2 rehearsals in which b, c played the target"
    # The labels of a run's target may not tell how good the run is, though they had a part in these rehearsals.
    sources = [str(runs / "data" / f"{name}.npz") for name in "abt"]
    other = ["--sources", *sources, "--target", str(runs / "data" / "c.npz"), "--method", "mrf"]
    assert main(["fit", *other, "--out", str(tmp_path / "c"), *QUICK]) == 0
    capsys.readouterr()
    assert main(["select", str(tmp_path / "c"), "--rehearsals", str(tmp_path)]) == 2
    assert "no finished rehearsal of mrf on the sources of" in capsys.readouterr().err


@pytest.mark.parametrize("parts", [False, True])
def test_fit_and_evaluate_estimate_where_there_are_no_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: bool
) -> None:
    run = str(tmp_path / "run")
    assert main(["fit", *write_domains(tmp_path, parts=parts), "--method", "mrf", "--out", run, *QUICK]) == 0
    printed = capsys.readouterr().out
    assert re.search(SENTENCE, printed)
    held = "the held-out parts of a, b, c" if parts else "the sources have no samples that training did not see"
    assert held in printed
    assert main(["evaluate", run]) == 0
    again = capsys.readouterr().out
    assert re.findall(SENTENCE, again) == re.findall(SENTENCE, printed)
    assert "give --data PATH" in again
    assert main(["evaluate", run, "--root", "x"]) == 2
    assert "--root was given without --data; leave it out" in capsys.readouterr().err
    assert main(["evaluate", run, "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["estimate"]["accuracy"] < 1
    (tmp_path / "a.npz").unlink()
    assert main(["evaluate", run]) == 2
    assert str(tmp_path / "a.npz") in capsys.readouterr().err


def test_benchmarks_are_measured_on_their_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ["--epochs", "1", "--steps-per-epoch", "1", "--batch-size", "6", "--device", "cpu", "--backbone", "small"]
    assert main(["fit", "--task", "demo:neon", "--out", str(tmp_path / "run"), *quick]) == 0
    assert "estimated" not in capsys.readouterr().out
    out = tmp_path / "reliability.svg"
    assert main(["figure", "reliability", str(tmp_path / "run"), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"<?xml")
    assert f"{out}: 7.16 x" in capsys.readouterr().out  # the target has a panel too


def test_reliability_without_labels_of_the_target(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "reliability.svg"
    assert main(["figure", "reliability", str(runs / "mrf"), "--out", str(out)]) == 0
    assert f"{out}: 3.50 x" in capsys.readouterr().out
    labelled = ["--data", str(runs / "data" / "t.npz")]
    words = ["figure", "reliability", str(runs / "mrf"), str(runs / "source-only"), "--out", str(out)]
    assert main([*words, *labelled]) == 0
    assert f"{out}: 7.16 x" in capsys.readouterr().out
    assert main([*words, "--root", "x"]) == 2
    assert "--root was given without --data" in capsys.readouterr().err
