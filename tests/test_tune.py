"""`graphmsda tune`: runs, resumption, failures, what is written and said, and mistakes."""

from __future__ import annotations

import csv
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import graphmsda.tune
from graphmsda import UserError
from graphmsda.cli import main
from graphmsda.tune import tune
from graphmsda.tuning.cells import plain
from tests.conftest import QUICK, feature_task
from tests.test_cli import make_domain, told
from tests.test_readme import blocks
from tests.test_rehearsal import with_forbidden_target

FLAGS = ["--epochs", "2", "--steps-per-epoch", "3", "--batch-size", "6", "--device", "cpu"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Domains a, b, c and the target d as tables of features."""
    folder = tmp_path_factory.mktemp("data")
    chance = np.random.default_rng(0)
    for shift, name in enumerate("abcd"):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["label", "f0", "f1", "f2"])
            for number in range(24):
                vector = chance.normal(size=3) + 4 * (number % 3) + shift / 2
                rows.writerow([("red", "green", "blue")[number % 3], *(f"{value:.4f}" for value in vector)])
    return folder


def command(data: Path, out: Path, *more: str, sources: str = "abc") -> list[str]:
    places = [str(data / f"{name}.csv") for name in sources]
    return ["tune", "--sources", *places, "--out", str(out), "--method", "mrf", *FLAGS, *more]


def stamps(out: Path) -> dict[Path, int]:
    """When each model was written."""
    return {file: file.stat().st_mtime_ns for file in sorted(out.rglob("model.safetensors"))}


def test_every_setting_is_rehearsed_and_the_real_target_never_touched(tmp_path: Path) -> None:
    task = with_forbidden_target(feature_task(sources=3))
    rows = tune(task, "mrf", {"tau": [0.1], "lr": [1e-2]}, out=tmp_path, seeds=[0, 1], **QUICK)
    assert len(rows) == 2 * 3 * 2
    assert {(row["setting"], row["player"], row["seed"]) for row in rows} == {
        (setting, f"source-{number}", seed)
        for setting in ("default", "lr=0.01,tau=0.1")
        for number in range(3)
        for seed in (0, 1)
    }
    assert all(0 <= row["accuracy"] <= 1 and row["error"] is None for row in rows)
    assert json.loads((tmp_path / "tune.json").read_text())["runs"] == rows
    config = yaml.safe_load((tmp_path / "lr=0.01,tau=0.1" / "source-1-seed1" / "config.yaml").read_text())
    assert config["data"]["domains"] == ["source-0", "source-2", "source-1"]
    assert config["data"]["rehearsal"] == {"player": "source-1"}
    assert "task" not in config["data"]  # or `evaluate` would score the real target
    assert config["settings"]["seed"] == 1
    assert config["settings"]["lr"] == 0.01
    assert config["settings"]["parameters"]["tau"] == 0.1


def test_a_finished_run_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = feature_task()
    first = tune(task, "mrf", {"tau": [0.1]}, out=tmp_path, **QUICK)
    before = stamps(tmp_path)
    assert len(before) == 4

    made: list[str] = []
    fit = graphmsda.tune.fit

    def counted(*given: Any, out: Path, **more: Any) -> Any:
        made.append(out.relative_to(tmp_path).as_posix())
        return fit(*given, out=out, **more)

    monkeypatch.setattr(graphmsda.tune, "fit", counted)
    assert tune(task, "mrf", {"tau": [0.1]}, out=tmp_path, **QUICK) == first
    assert made == []
    # More values: only what is new is trained.
    more = tune(task, "mrf", {"tau": [0.1, 1.0]}, out=tmp_path, **QUICK)
    assert made == ["tau=1.0/source-0-seed0", "tau=1.0/source-1-seed0"]
    assert [row for row in more if row["setting"] != "tau=1.0"] == first
    # The books lost: runs are found by themselves and scored again.
    (tmp_path / "tune.json").unlink()
    again = tune(task, "mrf", {"tau": [0.1]}, out=tmp_path, **QUICK)
    assert [row["accuracy"] for row in again] == [row["accuracy"] for row in first]
    assert {file: stamp for file, stamp in stamps(tmp_path).items() if file in before} == before


def test_an_interrupted_tuning_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = feature_task()
    whole = tune(task, "mrf", {"tau": [0.1]}, out=tmp_path / "whole", **QUICK)
    fit = graphmsda.tune.fit

    def interrupted(*given: Any, out: Path, **more: Any) -> Any:
        if "source-1" in out.name:
            raise KeyboardInterrupt
        return fit(*given, out=out, **more)

    monkeypatch.setattr(graphmsda.tune, "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune(task, "mrf", {"tau": [0.1]}, out=tmp_path / "cut", **QUICK)
    kept = json.loads((tmp_path / "cut" / "tune.json").read_text())
    assert kept["of"] == 4
    assert [row["player"] for row in kept["runs"]] == ["source-0", "source-0"]
    assert not (tmp_path / "cut" / "best.yaml").exists()
    monkeypatch.setattr(graphmsda.tune, "fit", fit)
    rest = tune(task, "mrf", {"tau": [0.1]}, out=tmp_path / "cut", **QUICK)
    assert [row["accuracy"] for row in rest] == [row["accuracy"] for row in whole]


def test_a_run_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    wild = {"lr": [1e30], "optimiser": ["sgd"]}
    rows = tune(feature_task(), "source-only", wild, out=tmp_path, **{**QUICK, "epochs": 20})
    bad = [row for row in rows if row["setting"] != "default"]
    assert len(bad) == 2
    assert all(row["accuracy"] is None and "not a number" in row["error"] for row in bad)
    assert all(row["error"] is None for row in rows if row["setting"] == "default")
    assert "default" in (tmp_path / "best.yaml").read_text().splitlines()[0]
    assert yaml.safe_load((tmp_path / "best.yaml").read_text())["settings"]["lr"] == 3e-3


def test_what_a_method_throws_is_recorded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = graphmsda.tune.fit

    def broken(*given: Any, out: Path, **more: Any) -> Any:
        if "tau" in out.parent.name:
            raise RuntimeError("shapes differ\nand more")
        return fit(*given, out=out, **more)

    monkeypatch.setattr(graphmsda.tune, "fit", broken)
    rows = tune(feature_task(), "mrf", {"tau": [0.1]}, out=tmp_path, **QUICK)
    assert [row["error"] for row in rows if row["setting"] == "tau=0.1"] == [
        f"{tmp_path / 'tau=0.1' / name}: RuntimeError: shapes differ" for name in ("source-0-seed0", "source-1-seed0")
    ]


def test_when_all_runs_fail_the_first_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **more: Any) -> Any:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(graphmsda.tune, "fit", full)
    with pytest.raises(UserError, match=r"all 2 runs failed, .*: the GPU has too little memory"):
        tune(feature_task(), "mrf", {}, out=tmp_path, **QUICK)


def test_processes_side_by_side_give_the_same(tmp_path: Path) -> None:
    task = feature_task()
    alone = tune(task, "mrf", {"tau": [0.1]}, out=tmp_path / "1", **QUICK)
    beside = tune(task, "mrf", {"tau": [0.1]}, out=tmp_path / "2", jobs=2, **QUICK)
    assert [{**row, "seconds": 0} for row in beside] == [{**row, "seconds": 0} for row in alone]
    assert [file.read_bytes() for file in stamps(tmp_path / "1")] == [
        file.read_bytes() for file in stamps(tmp_path / "2")
    ]


@pytest.mark.slow
def test_a_polite_kill_saves_what_the_processes_do(data: Path, tmp_path: Path) -> None:
    flags = ["--steps-per-epoch", "2000000", "--checkpoint-seconds", "1000", "--jobs", "2"]
    line = [sys.executable, "-m", "graphmsda", *command(data, tmp_path, *flags)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.rglob("metrics.jsonl"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        output = process.communicate()[1]
    assert process.returncode == 130, output
    assert output.splitlines()[-1] == "graphmsda: interrupted; the same command goes on from there"
    assert len(list(tmp_path.rglob("state.safetensors"))) == 2


def test_fixed_hyper_parameters_are_everyones(tmp_path: Path) -> None:
    tune(feature_task(), "mrf", {"tau": [0.1]}, out=tmp_path, fixed={"alpha": 0.7}, players=["source-1"], **QUICK)
    for file in sorted(tmp_path.rglob("config.yaml")):
        assert yaml.safe_load(file.read_text())["settings"]["parameters"]["alpha"] == 0.7
    assert [file.parent.name for file in stamps(tmp_path)] == ["source-1-seed0"] * 2


def test_names_become_folders_that_differ() -> None:
    assert plain("lr=0.001") == "lr=0.001"
    assert plain("a b") != plain("a-b") != plain("a/b") != plain("a b")
    assert "/" not in plain("weights=../x/y.pth")
    assert plain("..").strip(".")


# --- as a user types it -----------------------------------------------------------------------------------------------


def test_the_command_prints_one_table_and_its_recipe_trains_the_real_task(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = data / "d.csv"
    line = command(data, tmp_path / "tune", "--target", str(target), "--param", "tau", "0.1", "0.2", "--set", "alpha=1")
    assert main([*line, "--param", "weight-decay", "0", "1e-3", "--clip", "1"]) == 0
    output = capsys.readouterr()
    assert "5 settings x 3 players x 1 seed = 15 runs; playing the target: a, b, c" in output.err
    assert "15/15 " in output.err
    assert "default (tau 0.2, weight-decay 0.0005)" in output.out
    assert "-> a" in output.out
    assert "Best on average: " in output.out
    after = f"graphmsda fit --config {tmp_path / 'tune' / 'best.yaml'} --out RUN-DIRECTORY"
    assert output.out.splitlines()[-1].strip() == after
    assert main(["fit", "--config", str(tmp_path / "tune" / "best.yaml"), "--out", str(tmp_path / "run")]) == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    best = yaml.safe_load((tmp_path / "tune" / "best.yaml").read_text())
    assert config["data"]["domains"] == ["a", "b", "c", "d"]
    assert config["settings"] == config["settings"] | best["settings"]
    assert config["settings"]["parameters"]["alpha"] == 1.0
    assert config["settings"]["clip"] == 1.0
    assert "device" not in best["settings"]  # where rehearsals ran is not where the real run must


def test_the_target_may_be_left_out_and_is_never_opened(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(data, tmp_path / "one", "--param", "tau", "0.1", "--format", "csv", sources="ab")) == 0
    last = capsys.readouterr().out.splitlines()[-1].split()
    assert last[:4] == ["graphmsda", "fit", "--config", str(tmp_path / "one" / "best.yaml")]
    words = [str(data / "d.csv") if word == "YOUR-TARGET" else word for word in last[1:-1]]
    assert main([*words, str(tmp_path / "run")]) == 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["data"]["domains"] == ["a", "b", "d"]
    absent = str(tmp_path / "nowhere.csv")
    assert main(command(data, tmp_path / "two", "--target", absent, "--param", "tau", "0.1", sources="ab")) == 0
    assert yaml.safe_load((tmp_path / "two" / "best.yaml").read_text())["data"]["target"] == absent


def test_a_recipe_is_a_starting_point(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = {
        "data": {"sources": [str(data / "a.csv"), str(data / "b.csv")], "target": str(data / "d.csv")},
        "settings": {"method": "crf", "epochs": 1, "steps_per_epoch": 2, "seed": 5, "parameters": {"sigma": 0.2}},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    line = ["tune", "--config", str(tmp_path / "recipe.yaml"), "--param", "sigma", "0.2", "0.4", "--device", "cpu"]
    assert main([*line, "--out", str(tmp_path / "out")]) == 0
    assert "default (sigma 0.2)" in capsys.readouterr().out
    found = sorted(file.parent.relative_to(tmp_path / "out").as_posix() for file in stamps(tmp_path / "out"))
    assert found == ["default/a-seed5", "default/b-seed5", "sigma=0.4/a-seed5", "sigma=0.4/b-seed5"]


def test_a_task_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["tune", "--task", "demo:neon", "--method", "source-only", "--param", "dropout", "0.1", *FLAGS]
    assert main([*line, "--players", "plain", "--out", str(tmp_path)]) == 0
    assert "One run of each cannot tell a lead from noise" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "best.yaml").read_text())["data"] == {"task": "demo:neon", "reading": {}}
    domains = yaml.safe_load((tmp_path / "default" / "plain-seed0" / "config.yaml").read_text())["data"]["domains"]
    assert domains == ["texture", "camera", "chalk", "plain"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--param", "tua", "1"], "--param tua: neither a hyper-parameter of mrf nor a setting of the training"),
        (["--param", "tau"], "--param tau: no values"),
        (["--param", "tau", "-1"], "--param tau=-1.0: out of range; give a positive number"),
        (["--param", "tau", "big"], "--param tau=big: not understood; give a number"),
        (["--param", "epochs", "2", "0"], "--param epochs 0: out of range; give a whole number from 1"),
        (["--param", "tau", "1", "--param", "tau", "2"], "--param tau: given twice"),
        (["--players", "d"], "--players d: there is no such source; choose from a, b, c"),
        (["--players", "a", "a"], "--players a a: one is given twice"),
        (["--seeds", "1", "1"], "--seeds 1 1: one is given twice"),
        (["--jobs", "0"], "--jobs 0: out of range; give a whole number from 1"),
        (["--method", "mfr"], "--method: unknown method 'mfr'; did you mean"),
        (["--set", "tua=1"], "--set tua: method mrf has no hyper-parameter 'tua'"),
        (["--task", "demo:neon"], "--task was given with --sources or --target"),
        (["--variant", "paper"], "--variant was given without --task"),
        (["--devices", "2"], "unrecognized arguments: --devices 2"),
    ],
)
def test_mistakes(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
) -> None:
    assert sentence in told(capsys, command(data, tmp_path / "out", *more))
    assert not (tmp_path / "out").exists()


def test_one_source_no_data_and_folders_in_use(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "give at least two labelled sources" in told(capsys, command(data, tmp_path / "out", sources="a"))
    assert "no data: give --sources" in told(capsys, ["tune", "--out", str(tmp_path / "out")])
    assert main(command(data, tmp_path / "out", "--players", "a")) == 0
    sentence = told(capsys, command(data, tmp_path / "out", "--players", "a", "--epochs", "3"))
    assert "holds a run with epochs 2, not 3; give the same settings and data as then, or choose another" in sentence
    sentence = told(capsys, command(data, tmp_path / "out", "--players", "a", sources="ac"))
    assert "holds a run on other data" in sentence
    run = tmp_path / "out" / "default" / "a-seed0"
    assert "holds a run; give a new or empty folder" in told(capsys, command(data, run))
    (tmp_path / "file").touch()
    assert "is in the way" in told(capsys, command(data, tmp_path / "file"))


# --- docs/tuning.md ---------------------------------------------------------------------------------------------------


def test_the_pages_commands_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate("abcd"):
        make_domain(tmp_path / "data" / name, 20 + 40 * number, seed=number)
    monkeypatch.chdir(tmp_path)
    text = "\n".join(blocks("docs/tuning.md", "sh")).replace("\\\n", " ")
    commands = [shlex.split(line)[1:] for line in text.splitlines() if line]
    assert [words[0] for words in commands] == ["tune", "fit", "tune"]
    for words in commands:
        # Shorter, and in this process: another test starts some.
        shorter = ["--epochs", "1", "--steps-per-epoch", "1", "--batch-size", "4", "--device", "cpu"]
        shorter += ["--jobs", "1"] if words[0] == "tune" else []
        shorter += ["--players", "a"] if "--sources" in words else []
        assert main([*words, *shorter]) == 0
        output = capsys.readouterr().out
        if "demo:neon" in words:
            (shown,) = blocks("docs/tuning.md", "text")
            ours, theirs = output.strip().splitlines(), shown.splitlines()
            assert ours[0] == theirs[0]
            assert ours[1] == theirs[1]
            assert ours[-2:] == theirs[-2:]
    (code,) = blocks("docs/tuning.md", "python")
    short = code.replace("epochs=10", "epochs=1, steps_per_epoch=2, batch_size=6, device='cpu', players=['plain']")
    assert short != code
    exec(compile(short, "docs/tuning.md", "exec"), {"__name__": "__main__"})
    assert "default" in capsys.readouterr().out
