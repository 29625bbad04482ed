"""Cells of accuracy: what is trained, what a row says, what the file and the page make of it."""

from __future__ import annotations

import dataclasses
import doctest
import json
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from graphmsda import UserError
from graphmsda.data import demo
from graphmsda.domains import Task
from graphmsda.engine import fit as engine
from tests.conftest import QUICK
from tests.test_readme import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import accuracy
import accuracy_rows
import cells
import results_numbers
import results_page

SMALL = {**QUICK, "backbone": "small", "epochs": 1}


def cell(method: str = "mrf", playing: str | None = None, **more: Any) -> cells.Cell:
    return cells.Cell("demo", "neon", playing, method, "default", 0, settings=SMALL, **more)


def asked(*words: str) -> list[cells.Cell]:
    given = accuracy.build_parser().parse_args([*words, "--out", "none.json"])
    return list(accuracy.cells(given))


def row(**more: Any) -> dict[str, Any]:
    made = {"command": f"python run.py --targets {more.get('target', 'mm')} --seeds {more.get('seed', 0)} --out x"}
    made |= {"commit": "abc", "hardware": "a GPU", "minutes": 1.0, "oracle_accuracy": None, "parameters": {}}
    first = {"method": "mrf", "setting": "default", "target": "mm", "seed": 0, "epochs": 30, "accuracy": 0.9}
    return first | made | {"settings": {}} | more


def test_source_only_is_read_off_adabn_to_the_bit(tmp_path: Path) -> None:
    adabn, read_off = cells.train_cell(cell("adabn", also=("source-only",)), tmp_path / "adabn")
    (trained,) = cells.train_cell(cell("source-only"), tmp_path / "source-only")
    assert read_off["trained"] == "with adabn"
    for name in ("method", "accuracy", "label_free", "source_accuracy", "steps"):
        assert read_off[name] == trained[name]
    assert adabn["label_free"] != trained["label_free"]


def test_a_stopped_cell_goes_on_and_ends_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (whole,) = cells.train_cell(cell(), tmp_path / "whole")
    assert list(tmp_path.iterdir()) == [], "nothing is kept of a finished cell"
    take_step, taken = engine.take_step, []

    def killed_in_the_second(*given: Any) -> None:
        taken.append(take_step(*given))
        if len(taken) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(engine, "take_step", killed_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        cells.train_cell(cell(), tmp_path / "run")
    (again,) = cells.train_cell(cell(), tmp_path / "run")
    assert len(taken) == again["steps"] > 2, "no step twice"
    assert again | {"minutes": None} == whole | {"minutes": None}


def test_a_cell_waits_in_a_folder_of_its_own() -> None:
    one = cell()
    others = [dataclasses.replace(one, **change) for change in ({"seed": 1}, {"settings": {}}, {"setting": "x"})]
    names = {one.folder("abc"), one.folder("abd"), *(other.folder("abc") for other in others)}
    assert len(names) == 5
    assert one.folder("abc") == cell().folder("abc")


def test_row_says_what_it_is(tmp_path: Path) -> None:
    (found,) = cells.train_cell(cell(parameters={"tau": 0.2}), tmp_path / "run")
    assert found["method"] == "mrf"
    assert "playing" not in found
    assert found["parameters"] == {"tau": 0.2}
    assert found["steps"] == 3
    assert found["epochs"] == 1
    assert found["oracle_accuracy"] >= found["accuracy"]  # the best step that was watched, the last one included
    assert 0 <= found["accuracy"] <= 1
    free = found["label_free"]
    assert 0 <= free["mean_entropy"] <= free["entropy_of_mean"] <= torch.tensor(10.0).log() + 1e-3
    assert 0 <= free["share_confident"] <= 1
    assert list(tmp_path.iterdir()) == []


def test_rehearsal_leaves_the_real_target_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trained: list[Task] = []

    def watch(task: Task, *rest: Any, **more: Any) -> Any:
        trained.append(task)
        return fit(task, *rest, **more)

    fit = cells.fit
    monkeypatch.setattr(cells, "fit", watch)
    monkeypatch.setattr(cells, "find_task", lambda *_, **__: pytest.fail("the real target was read"))
    (found,) = cells.train_cell(cell(playing="chalk"), tmp_path / "run")
    assert found["playing"] == "chalk"
    assert trained[0].domains == (*(name for name in demo.DOMAINS if name not in ("neon", "chalk")), "chalk")
    stage = cells.stage_of(cell(playing="chalk"))
    assert [len(part.y) for part in stage.scored_on] == [len(stage.task.target.x)]  # the demonstration holds none out


def test_cells_in_order_and_source_only_with_adabn() -> None:
    found = asked("--benchmark", "demo", "--targets", "neon", "chalk", "--seeds", "0", "1")
    assert [c.seed for c in found] == [0] * 8 + [1] * 8
    assert {c.setting for c in found} == {"default"}
    trained = accuracy.together(found)
    assert len(trained) == 12
    assert [c.also for c in trained if c.method == "adabn"] == [("source-only",)] * 4
    alone = accuracy.together([c for c in found if c.method != "adabn"])
    assert sum(c.method == "source-only" for c in alone) == 4


def test_changes_give_a_name() -> None:
    words = ["--benchmark", "demo", "--targets", "neon", "--methods", "mrf", "--set", "tau=0.2", "--epochs", "3"]
    (found,) = asked(*words, "--device", "cpu")
    assert (found.setting, found.parameters) == ("tau=0.2", {"tau": 0.2})
    (found,) = asked(*words, "--lr", "0.1")
    assert found.setting == "tau=0.2, lr=0.1"
    (found,) = asked(*words, "--name", "sharp")
    assert found.setting == "sharp"


def test_command_of_a_cell_asks_for_that_cell() -> None:
    words = "--benchmark pacs --targets S --methods mrf --rehearse --set tau=0.2 start=normal --lr 0.1 --preset paper"
    for one in asked(*shlex.split(words), "--seeds", "0", "1", "--data-root", "anywhere"):
        again = asked(*shlex.split(one.command())[2:])
        assert again == [dataclasses.replace(one, reading={}, settings={"epochs": 20, **one.settings})]
        assert again[0].key == one.key
        assert "anywhere" not in one.command()


def test_recipe_lies_below_what_is_typed() -> None:
    (found,) = asked("--benchmark", "pacs", "--targets", "photo", "--methods", "crf")
    assert found.all_settings["epochs"] == found.key[-1] == 20
    assert found.all_settings["batch_size"] == 16
    (found,) = asked("--benchmark", "pacs", "--targets", "photo", "--methods", "crf", "--epochs", "2")
    assert found.all_settings["epochs"] == found.key[-1] == 2
    (found,) = asked("--benchmark", "office31", "--targets", "D", "--methods", "mrf")
    assert found.all_settings["backbone"] == "alexnet"


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks").glob("*.yaml")), ids=lambda path: path.stem)
def test_settings_that_come_with_the_benchmarks_can_be_trained(path: Path) -> None:
    """A name or value that no method has would be told before anything is trained."""
    words = ["--benchmark", "digits-five", "--settings", str(path), "--targets", "mm", "--out", "none.json"]
    asked = list(accuracy.cells(accuracy.build_parser().parse_args(words)))
    assert len({cell.setting for cell in asked}) == len(asked) > 5


def test_named_settings(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("a: {method: mrf, parameters: {tau: 0.1}}\nb: {method: crf, settings: {lr: 0.01}}\n")
    words = ["--benchmark", "demo", "--targets", "neon", "--settings", str(file)]
    first, second = asked(*words)
    assert (first.method, first.setting, first.parameters) == ("mrf", "a", {"tau": 0.1})
    assert (second.method, second.setting, second.settings) == ("crf", "b", {"lr": 0.01})
    (only,) = asked(*words, "--only", "b")
    assert only == second


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--methods mrf", "--benchmark was not given"),
        ("--benchmark demo --targets nowhere", "demo has no domain 'nowhere'"),
        ("--benchmark digits-five --targets xx", "digits-five has no domain 'xx'"),
        ("--benchmark demo --methods mfr", "did you mean mrf"),
        ("--benchmark demo --methods mrf --set tua=1", "did you mean tau"),
        ("--benchmark demo --players neon", "without --rehearse"),
        ("--benchmark demo --jobs 0", "--jobs 0"),
        ("--benchmark demo --epochs 0", "--epochs 0"),
        ("--benchmark demo --settings none.yaml", "none.yaml"),
        ("--merge none.json", "no such file"),
        (f"--benchmark demo --keep {__file__}", "is in the way"),
    ],
)
def test_mistakes_are_one_sentence(words: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accuracy.main([*shlex.split(words), "--out", str(tmp_path / "out.json")]) == 2
    found = capsys.readouterr().err
    assert told in found
    assert found.count("\n") == 1


def test_cells_in_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained, skipped the second time, a failing cell told and recorded beside the others."""
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        "good: {method: mrf}\nbad: {method: mrf, settings: {weights: imagenet}}\n"  # the small network has no weights
    )
    out = tmp_path / "rows.json"
    command = f"--benchmark demo --targets neon --settings {settings} --backbone small --epochs 1 --steps-per-epoch 2 "
    command += f"--batch-size 4 --device cpu --commit abc --out {out}"
    assert accuracy.main(shlex.split(command)) == 0
    printed = capsys.readouterr().out
    assert "mrf [good] -> neon, seed 0: " in printed
    assert "failed: --weights" in printed
    assert "0 cells are left and 1 failed" in printed
    written = json.loads(out.read_text())
    assert [r["setting"] for r in written["runs"]] == ["good"]
    assert [r["setting"] for r in written["failed"]] == ["bad"]
    assert written["runs"][0]["commit"] == "abc"
    assert accuracy.main([*shlex.split(command), "--only", "good"]) == 0
    assert "1 of 1 cells are in" in capsys.readouterr().out
    assert accuracy.main([*shlex.split(command), "--only", "good", "--lr", "0.5"]) == 2
    assert "give another --name" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["equations", "parts", "sensitivity"])
def test_settings_kept_here_can_be_asked_for(name: str) -> None:
    words = ["--benchmark", "digits-five", "--settings", str(ROOT / "benchmarks" / f"{name}.yaml"), "--targets", "mm"]
    found = asked(*words)
    assert len({c.setting for c in found}) == len(found) >= 8
    assert all(c.parameters or c.settings for c in found), "none is the default under another name"


def test_deadline_ends_what_runs(tmp_path: Path) -> None:
    endless = dataclasses.replace(cell(), settings={**SMALL, "epochs": 100_000, "steps_per_epoch": 100})
    begin = time.monotonic()
    assert list(cells.run_cells([endless] * 3, 1, begin + 1.0, tmp_path, "abc")) == []
    assert not [child for child in multiprocessing.active_children() if child.name.startswith("Spawn")]


def test_a_cell_stops_when_the_command_is_killed(tmp_path: Path) -> None:
    """It would go on unseen beside the next command otherwise; what it has done is kept."""
    keep = tmp_path / "keep"
    command = "--benchmark demo --targets neon --methods mrf --backbone small --epochs 100000 --steps-per-epoch 100 "
    command += f"--batch-size 4 --device cpu --commit abc --keep {keep} --out {tmp_path / 'rows.json'}"
    script = [sys.executable, str(ROOT / "benchmarks" / "accuracy.py"), *shlex.split(command)]
    with subprocess.Popen(script, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        # A first row means that it is in the middle of training: before, a polite kill just ends it.
        assert eventually(lambda: any(file.stat().st_size for file in keep.glob("*/metrics.jsonl")))
        process.kill()
    assert eventually(lambda: any(keep.glob("*.minutes"))), "written by a worker that stops"
    assert any(keep.glob("*/checkpoint/state.safetensors"))


def test_a_cell_that_is_stopped_while_it_is_scored_keeps_its_minutes(tmp_path: Path) -> None:
    """Training is over then, so that nobody but the worker itself listens to the signal."""
    script = f"""
        import sys, multiprocessing, os, signal, time
        sys.path[:0] = [{str(ROOT / "benchmarks")!r}, {str(ROOT)!r}]
        import cells
        from pathlib import Path

        def train(cell, out):
            with cells.counted(out):
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)

        cells.train_cell, cells.stop_with_parent = train, lambda: None
        ours, theirs = multiprocessing.Pipe()
        ours.send((None, Path({str(tmp_path / "minutes")!r})))
        cells.work(theirs, Path({str(tmp_path / "log")!r}), 1)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=120)
    assert done.returncode == 143
    assert float((tmp_path / "minutes").read_text()) > 0


def eventually(condition: Callable[[], bool], patience: float = 120.0) -> bool:
    """Wait until something holds, and return whether it does."""
    end = time.monotonic() + patience
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


def test_first_cell_of_a_method_goes_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    allotted: list[int] = []

    class AtOnce:
        def __init__(self, scratch: Path, number: int, threads: int) -> None:
            self.tasks, self.theirs = multiprocessing.Pipe()
            self.process = multiprocessing.current_process()
            self.cell: cells.Cell | None = None
            allotted.append(threads)

        def give(self, cell: cells.Cell, commit: str) -> None:
            self.cell = cell
            given.append(f"{cell.method} {cell.seed}")
            self.theirs.send(given[-1])

        def take(self) -> str:
            return str(self.tasks.recv())

        def ask_to_stop(self) -> None:
            self.tasks.close()

        def stop(self) -> None:
            self.theirs.close()

    monkeypatch.setattr(cells, "Worker", AtOnce)
    monkeypatch.setattr(cells, "cores", lambda: 7)
    asked = [dataclasses.replace(cell(method), seed=seed) for method in ("mrf", "crf") for seed in range(2)]
    found = list(cells.run_cells(asked, 2, time.monotonic() + 60, tmp_path, "abc"))
    assert given[:2] == ["mrf 0", "crf 0"]
    assert allotted == [3, 3], "two processes share seven cores"
    assert sorted(given) == sorted(text for _, text in found) == ["crf 0", "crf 1", "mrf 0", "mrf 1"]
    given.clear()
    settings = [dataclasses.replace(one, setting=name) for name in ("warm", "cold") for one in asked[:2]]
    assert len(list(cells.run_cells(settings, 2, time.monotonic() + 60, tmp_path, "abc"))) == 4
    assert given[:2] == ["mrf 0", "mrf 0"], "one of each setting"
    given.clear()
    assert len(list(cells.run_cells(asked[:2], 2, time.monotonic() + 60, tmp_path, "abc"))) == 2, "nothing else to do"
    allotted.clear()
    assert len(list(cells.run_cells(asked, 9, time.monotonic() + 60, tmp_path, "abc"))) == 4
    assert set(allotted) == {1}, "more processes than cores"


def test_rows_replace_those_of_the_same_cell(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    failed = row(target="sv", error="broken")
    accuracy_rows.write(one, {"runs": [row(), row(seed=1)], "failed": [failed]})
    accuracy_rows.write(two, {"runs": [row(accuracy=0.8), row(target="sv")], "failed": [row(seed=1, error="no")]})
    assert accuracy.main(["--merge", str(two), "--out", str(one)]) == 0
    found = accuracy_rows.read(one)
    assert {(r["target"], r["seed"]): r["accuracy"] for r in found["runs"]} == {
        ("mm", 0): 0.8, ("mm", 1): 0.9, ("sv", 0): 0.9
    }  # fmt: skip
    assert found["failed"] == []
    (tmp_path / "bad.json").write_text("[]")
    with pytest.raises(UserError, match="not a file of results"):
        accuracy_rows.read(tmp_path / "bad.json")


def test_printed_table_of_a_hundred_cells_is_short() -> None:
    targets, names = ("mm", "mt", "up", "sv", "syn"), ("default", "tau=0.1", "tau=0.2", "alpha=3")
    rows = [row(target=t, seed=s, setting=n) for s in range(5) for t in targets for n in names]
    lines = accuracy_rows.table(rows[:-1])
    assert sum(len(accuracy_rows.line(r)) + 1 for r in rows) + sum(map(len, lines)) < 8000
    assert lines[0].split() == ["method", "setting", *targets, "mean", "cells"]
    assert lines[1].split() == ["mrf", "default", *["90.00"] * 6, "25"]
    partial = accuracy_rows.table([row(), row(setting="x"), row(target="sv")])
    assert partial[2].split() == ["mrf", "x", "90.00", "-", "90.00", "of", "1", "1"]
    played = accuracy_rows.table([row(playing="sv"), row(playing="up", accuracy=0.8)])
    assert played[0].split() == ["method", "setting", "sv", "up", "mean", "cells"]


def results(folder: Path) -> Path:
    """Digits-five with made-up numbers: all targets of MRF, some of CRF, another setting and a rehearsal."""
    rows = [
        row(target=target, seed=seed, accuracy=0.9 + 0.02 * seed + 0.01 * place)
        for place, target in enumerate(("mm", "mt", "up", "sv", "syn"))
        for seed in (0, 1)
    ]
    rows += [row(method="crf", target="mm", accuracy=0.8), row(playing="sv", accuracy=0.01)]
    rows += [row(setting="tau=0.1", target="mm", seed=0, accuracy=0.88)]
    accuracy_rows.write(folder / "digits-five.json", {"runs": rows, "failed": []})
    return folder


def test_page_shows_ours_beside_the_papers(tmp_path: Path) -> None:
    found = results_page.tables(results(tmp_path))
    text = found["digits-five"]
    ours = "| **MRF** | 91.0 ± 1.4 | 92.0 ± 1.4 | 93.0 ± 1.4 | 94.0 ± 1.4 | 95.0 ± 1.4 | 93.0 ± 1.4 | 2 | 30 | – |"
    assert ours in text
    assert "| MRF, the paper | 90.7 ± 0.7 | 99.2 ± 0.2 | 98.5 ± 0.4 | 85.8 ± 0.7 | 94.7 ± 0.5 | 93.7 |" in text
    assert "| **CRF** | 80.0 | – | – | – | – | – | 0 to 1 | 30 | – |" in text
    assert "| **MRF+** | – |" in text
    assert "commit abc; a GPU, 1.0 minutes a run: `python run.py --targets mm mt up sv syn --seeds 0 1 --out x`" in text
    assert "oracle" in text
    assert "| `mrf` | tau=0.1 | 88.0 | 1 | 30 | -2.0 (1) |" in found["digits-five-settings"]
    assert "Not measured yet" in found["pacs"]


def test_page_has_a_former_default_until_the_new_one_is_whole(tmp_path: Path) -> None:
    targets = list(results_page.TARGETS["pacs"])
    more = {"epochs": 15, "remark": "where it was the default"}
    former = [row(setting="former", target=target, accuracy=0.7, **more) for target in targets]
    part = row(setting="tau 0.1, former", target="sketch", accuracy=0.65, epochs=15)
    default = [row(target=target, accuracy=0.8, epochs=15) for target in targets]
    whole = "| MRF, former | 70.0 | 70.0 | 70.0 | 70.0 | 70.0 | 1 | 15 | – |"
    accuracy_rows.write(tmp_path / "pacs.json", {"runs": [*former, part, *default[:3]], "failed": []})
    found = results_page.tables(tmp_path)
    assert f"| **MRF** | 80.0 | 80.0 | 80.0 | – | – | 0 to 1 | 15 | – |\n{whole}\n| MRF, the paper |" in found["pacs"]
    assert "MRF, tau 0.1" not in found["pacs"]
    assert "| `mrf` | former | 70.0 | 70.0 | 70.0 | 70.0 | 1 | 15 | -10.0 (3) |" in found["pacs-settings"]
    assert "| `mrf` | tau 0.1, former | – | – | – | 65.0 | 1 | 15 | -5.0 (1) |" in found["pacs-settings"]
    assert "- `mrf`, former: commit abc, where it was the default; a GPU" in found["pacs-settings"]
    assert "- `mrf`, tau 0.1, former: commit abc; a GPU" in found["pacs-settings"]
    later = [row(setting="later", target=target, accuracy=0.75, **more) for target in targets]
    for runs, text in (
        ([*former, *later, *default[:3]], "75.0 (later, 1 seed)"),
        ([*later, *former], "70.0 (former, 1 seed)"),
        ([*default, *later], "80.0 (1 seed)"),
    ):
        accuracy_rows.write(tmp_path / "pacs.json", {"runs": runs, "failed": []})
        assert f"| {text} | 92.6 |" in results_page.tables(tmp_path)["averages"]
    accuracy_rows.write(tmp_path / "pacs.json", {"runs": [*former, part, *default], "failed": []})
    assert "MRF, former" not in results_page.tables(tmp_path)["pacs"]


def test_readings_of_the_equations_have_a_table_of_their_own(tmp_path: Path) -> None:
    named = {"mrf, logistic likelihood": 0.7, "mrf as printed": 0.4}
    rows = [row(setting=setting, accuracy=accuracy) for setting, accuracy in named.items()]
    rows += [row(setting="brief", accuracy=0.6), row(setting="tau 0.1", accuracy=0.5)]
    rows += [row(setting="mrf, prototypes start at random, brief", accuracy=0.55), row(), row(seed=1, accuracy=0.92)]
    rows += [row(method="crf"), row(target="mt"), row(epochs=50)]
    accuracy_rows.write(tmp_path / "digits-five.json", {"runs": rows, "failed": []})
    found = results_page.tables(tmp_path)
    assert found["readings"].splitlines()[:7] == [
        "| method | setting | → mm | seeds | epochs | difference |",
        "|---|---|---:|---:|---:|---:|",
        "| `mrf` | default | 91.0 ± 1.4 | 2 | 30 |  |",
        "| `mrf` | brief | 60.0 | 1 | 30 | -30.0 (1) |",
        "| `mrf` | as printed | 40.0 | 1 | 30 | -50.0 (1) |",
        "| `mrf` | logistic likelihood | 70.0 | 1 | 30 | -20.0 (1) |",
        "| `mrf` | prototypes start at random, brief | 55.0 | 1 | 30 | -5.0 (1) |",
    ]
    assert "tau 0.1" in found["digits-five-settings"]
    assert "printed" not in found["digits-five-settings"]


def test_paper_rows_average_as_the_paper_says() -> None:
    printed = [(benchmark, results_page.of_paper(benchmark, "mrf")) for benchmark in results_page.TARGETS]
    printed += [("digits-five", results_page.of_paper("digits-five", name)) for name in ("dan", "m3sda", "dctn")]
    for benchmark, (_, *texts) in printed:
        *numbers, average = (float(text.split()[0]) for text in texts)
        assert len(numbers) == len(results_page.TARGETS[benchmark])
        assert abs(sum(numbers) / len(numbers) - average) < 0.1  # it prints 93.7 for 93.78
    assert results_page.of_paper("digits-five", "adabn") == []


def test_page_says_what_misses_the_paper(tmp_path: Path) -> None:
    text = results_page.tables(results(tmp_path))["digits-five"]
    assert "More than 3 points below the paper: CRF: → mm by 5.6; MRF: → mt by 7.2, → up by 5.5." in text


def test_page_shows_times_beside_the_papers(tmp_path: Path) -> None:
    made = {"command": "c", "commit": "abc", "hardware": "a GPU", "torch": "2.9", "date": "today"}
    times = [{"method": "mrf", "training": [0.1, 0.2], "inference": [0.3, 0.3], **made}]
    accuracy_rows.write(tmp_path / "timing.json", {"runs": times, "failed": []})
    text = results_page.tables(tmp_path)["timing"]
    assert "| MRF | 0.150 ± 0.071 | 0.300 ± 0.000 | 16.54 ± 0.10 | 5.40 ± 0.08 |" in text
    assert "- All: a GPU, PyTorch 2.9, commit abc, today: `c`" in text
    assert "- Not measured yet: Source-only, " in text
    others = [dict(times[0], method="crf"), dict(times[0], method="mcd", command="other")]
    accuracy_rows.write(tmp_path / "timing.json", {"runs": [*times, *others], "failed": []})
    text = results_page.tables(tmp_path)["timing"]
    assert "- All others: a GPU, PyTorch 2.9, commit abc, today: `c`\n- MCD: a GPU, " in text
    del times[0]["hardware"]
    accuracy_rows.write(tmp_path / "timing.json", {"runs": times, "failed": []})
    with pytest.raises(UserError, match="has no hardware; measure it again with graphmsda study timing, which"):
        results_page.tables(tmp_path)


def test_page_has_a_place_for_each_table(tmp_path: Path) -> None:
    pages = [tmp_path / "results.md", tmp_path / "fidelity.md"]
    for page in pages:
        page.write_text((ROOT / "docs" / page.name).read_text(encoding="utf-8"), encoding="utf-8")
    words = ["--results", str(results(tmp_path)), "--pages", *map(str, pages)]
    assert results_page.main(words) == 0
    once = "".join(page.read_text(encoding="utf-8") for page in pages)
    for name, text in results_page.tables(tmp_path).items():
        assert once.count(f"<!-- table:{name} -->\n{text}\n<!-- /table:{name} -->") == 1
    assert results_page.main(words) == 0
    assert "".join(page.read_text(encoding="utf-8") for page in pages) == once


@pytest.mark.parametrize("path", results_page.PAGES, ids=lambda path: path.name)
def test_pages_are_what_the_results_say(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert "<!-- table:averages -->" in page or "<!-- table:readings -->" in page
    assert results_page.fill(page, results_page.tables(ROOT / "results")) == page


def test_averages_name_the_setting_that_has_every_target(tmp_path: Path) -> None:
    found = [row(target=target, setting="former", accuracy=0.8) for target in results_page.TARGETS["digits-five"]]
    found += [row(target="mm", accuracy=0.9), row(target="mm", setting="another", accuracy=0.1)]
    assert results_page.on_average("digits-five", found) == "80.0 (former, 1 seed)"
    found = [row(target=target, seed=seed) for target in results_page.TARGETS["digits-five"] for seed in (0, 1)] + found
    del found[0]  # mm of seed 0 stands once, further on
    assert results_page.on_average("digits-five", found) == "90.0 ± 0.0 (2 seeds)"
    longer = [row(target=target, epochs=50, accuracy=0.95) for target in results_page.TARGETS["digits-five"]]
    assert results_page.on_average("digits-five", longer + found) == "90.0 ± 0.0 (2 seeds)", "lengths are not mixed"
    assert results_page.on_average("pacs", found) == "–"
    accuracy_rows.write(tmp_path / "digits-five.json", {"runs": found, "failed": []})
    text = results_page.tables(tmp_path)["averages"]
    assert "| MRF | 90.0 ± 0.0 (2 seeds) | 93.7 | – | 92.6 |" in text
    assert "| MRF+ | – | – | – | – |" in text


def test_page_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert results_page.main(["--results", str(results(tmp_path)), "--pages", str(tmp_path / "none.md")]) == 2
    assert "none.md: there is no such file" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["command", "commit", "hardware"])
def test_page_refuses_rows_of_unknown_origin(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accuracy_rows.write(tmp_path / "pacs.json", {"runs": [row(target="photo", **{name: ""})], "failed": []})
    assert results_page.main(["--results", str(tmp_path), "--print"]) == 2
    assert f"run 1 (mrf photo 0) has no {name}" in capsys.readouterr().err


@pytest.mark.parametrize("module", [cells, results_numbers, results_page])
def test_examples(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
