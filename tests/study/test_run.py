"""A study as a folder: finished cells stay, failed ones are tried again, killed and shared studies go on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from graphmsda import UserError
from graphmsda.study import attempts, work
from graphmsda.study import run as run_module
from graphmsda.study.board import Board
from graphmsda.study.cells import Cell, open_study, read_study
from graphmsda.study.data import Data, choose_data
from graphmsda.study.executors import choose_executor, visible_gpus
from graphmsda.study.grids import table_cells
from graphmsda.study.run import run_study
from graphmsda.study.work import Item, Outcome, Work, work_on
from tests.study.test_commands import FLAGS, write_domains

DEMO = Data("demo")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cells are trained in no time; returns which."""
    found: list[str] = []
    monkeypatch.setattr(work, "train_cell", lambda cell, data, out, **_: pretend(cell, found))
    monkeypatch.setattr(run_module, "check_cells", lambda *_: None)
    monkeypatch.setattr(run_module, "PAUSE", 0.02)
    return found


def pretend(cell: Cell, found: list[str]) -> dict[str, Any]:
    found.append(cell.path)
    return {**cell.named(), "accuracy": 0.5 + cell.seed / 10, "oracle_accuracy": None,
            "label_free": {"information": 1.0}}  # fmt: skip


def cells_of(seeds: Sequence[int] = (0,), methods: Sequence[str] = ("mrf", "crf")) -> list[Cell]:
    return table_cells(DEMO, methods, ["neon", "chalk"], seeds, {"epochs": 2})


def test_finished_cells_are_not_made_again_and_cells_can_be_added(tmp_path: Path, made: list[str]) -> None:
    first = run_study(tmp_path, "table", DEMO, cells_of())
    assert sorted(made) == sorted(first.rows) == sorted(cell.path for cell in cells_of())
    made.clear()
    assert run_study(tmp_path, "table", DEMO, cells_of()).rows == first.rows
    assert made == []
    more = run_study(tmp_path, "table", DEMO, cells_of([0, 1]))
    assert all("seed1" in path for path in made)
    assert len(made) == 4
    assert {path: more.rows[path] for path in first.rows} == first.rows
    # What another command asked for stays, and shows.
    made.clear()
    assert len(run_study(tmp_path, "table", DEMO, cells_of([0], ["mrf"])).rows) == 8
    assert made == []


def test_a_failed_cell_is_tried_again_and_its_error_kept(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cell: Cell, data: Data, out: Path, **_: Any) -> dict[str, Any]:
        if cell.method == "crf":
            raise UserError("training stopped: it became infinite") if cell.target == "neon" else ValueError("odd\nend")
        return pretend(cell, made)

    monkeypatch.setattr(work, "train_cell", fail)
    study = run_study(tmp_path, "table", DEMO, cells_of())
    assert len(made) == 2
    assert study.errors == {
        "multi-source/neon/crf/seed0": "training stopped: it became infinite",
        "multi-source/chalk/crf/seed0": "crf -> chalk, seed 0: ValueError: odd end",
    }
    monkeypatch.setattr(work, "train_cell", lambda cell, data, out, **_: pretend(cell, made))
    again = run_study(tmp_path, "table", DEMO, cells_of())
    assert len(made) == 4
    assert again.errors == {}
    assert attempts.errors(tmp_path / "cells/multi-source/neon/crf/seed0") == ["training stopped: it became infinite"]


def test_an_interrupted_study_goes_on(tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(cell: Cell, data: Data, out: Path, **_: Any) -> dict[str, Any]:
        if len(made) == 2:
            raise KeyboardInterrupt
        return pretend(cell, made)

    monkeypatch.setattr(work, "train_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_study(tmp_path, "table", DEMO, cells_of())
    assert len(read_study(tmp_path).rows) == 2
    monkeypatch.setattr(work, "train_cell", lambda cell, data, out, **_: pretend(cell, made))
    assert len(run_study(tmp_path, "table", DEMO, cells_of()).rows) == 4
    assert len(made) == 4


def test_several_workers_share_a_folder_and_make_each_cell_once(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(cell: Cell, data: Data, out: Path, **_: Any) -> dict[str, Any]:
        time.sleep(0.01)
        return pretend(cell, made)

    monkeypatch.setattr(work, "train_cell", slow)
    cells = cells_of(range(3))
    counts: list[int] = []
    workers = [
        threading.Thread(target=lambda: counts.append(len(run_study(tmp_path, "table", DEMO, cells).rows)))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert counts == [12] * 4  # none returns before all is done
    assert sorted(made) == sorted(cell.path for cell in cells)


def test_a_study_that_another_makes_at_this_moment_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"kind": "table", "benchmark": "demo"}
    listed = Path.iterdir

    def late(folder: Path) -> Iterator[Path]:
        monkeypatch.setattr(Path, "iterdir", listed)
        open_study(tmp_path, about)  # another command, between this one's two looks
        (tmp_path / "cells").mkdir()
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", late)
    open_study(tmp_path, about)
    with pytest.raises(UserError, match="holds a study with benchmark"):
        open_study(tmp_path, about | {"benchmark": "pacs"})


def test_a_vanished_machines_cell_is_taken_over(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "PATIENCE", 0.2)
    (cell, *_) = cells_of()
    place = tmp_path / "cells" / cell.path
    run_study(tmp_path, "table", DEMO, [])
    place.mkdir(parents=True)
    (place / "attempt-1.json").write_text(json.dumps({"state": "running", "host": "elsewhere", "pid": 1, "beat": 4}))
    study = run_study(tmp_path, "table", DEMO, cells_of())
    assert len(study.rows) == 4
    assert made[-1] == cell.path  # everything else first
    assert attempts.newest(place)[0] == 2


def test_who_was_given_up_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cell, *_) = cells_of()
    place = tmp_path / "cells" / cell.path

    def overtaken(cell: Cell, data: Data, out: Path, **_: Any) -> dict[str, Any]:
        assert attempts.take(place, lost=1) is not None
        return pretend(cell, [])

    monkeypatch.setattr(work, "train_cell", overtaken)
    assert work_on(Work(tmp_path, DEMO), Item(cell)).state == "busy"
    assert not (tmp_path / "runs" / cell.path / "result.json").exists()


def test_a_cell_that_kills_its_process_fails_in_the_end(tmp_path: Path, made: list[str]) -> None:
    def dying(work: Work, items: Sequence[Item]) -> Generator[Outcome]:
        for item in items:
            if item.cell.method == "mrf" and attempts.newest(work.out / "cells" / item.cell.path)[0] < 3:
                taken = attempts.take(work.out / "cells" / item.cell.path)
                assert taken is not None
                taken.end("running")
                taken.about |= {"pid": 2**22 + 1, "started": "0"}
                taken.end("running")
                return  # as when a pool of processes breaks
            yield work_on(work, item)

    study = run_study(tmp_path, "table", DEMO, cells_of(), executor=dying)
    assert len(study.rows) == 2
    assert set(study.errors) == {"multi-source/neon/mrf/seed0", "multi-source/chalk/mrf/seed0"}
    assert all("3 processes were killed while at it" in error for error in study.errors.values())


def test_workers_that_take_nothing_are_told_of(tmp_path: Path, made: list[str]) -> None:
    def idle(work: Work, items: Sequence[Item]) -> Generator[Outcome]:
        yield from ()

    with pytest.raises(UserError, match="4 cells are left but no worker takes one"):
        run_study(tmp_path, "table", DEMO, cells_of(), executor=idle)


def test_other_settings_or_data_are_refused(tmp_path: Path, made: list[str]) -> None:
    run_study(tmp_path, "table", DEMO, cells_of())
    other = table_cells(DEMO, ["mrf"], ["neon"], [0], {"epochs": 3})
    with pytest.raises(UserError, match=r"holds mrf -> neon, seed 0 with settings epochs 2, not epochs 3; choose"):
        run_study(tmp_path, "table", DEMO, other)
    device = table_cells(DEMO, ["mrf"], ["neon"], [0], {"epochs": 2, "device": "cpu"})
    run_study(tmp_path, "table", DEMO, device)  # which changes nothing
    with pytest.raises(UserError, match="holds a study with kind table, not ablation"):
        run_study(tmp_path, "ablation", DEMO, cells_of())
    with pytest.raises(UserError, match="holds a study with benchmark demo, not pacs"):
        run_study(tmp_path, "table", Data("pacs"), cells_of())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="not empty and no study"):
        run_study(tmp_path / "full", "table", DEMO, cells_of())
    with pytest.raises(UserError, match=r"no study \(study.json is not there\)"):
        read_study(tmp_path / "full")


def test_a_result_without_its_checkpoint_and_with_all_that_made_it(tmp_path: Path) -> None:
    data = choose_data(None, write_domains(tmp_path / "data"), {})
    settings = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 4, "device": "cpu"}
    cells = table_cells(data, ["source-only"], ["a"], [0], settings, standards=["source-combine"])
    tmp_path = tmp_path / "study"
    study = run_study(tmp_path, "table", data, cells)
    (row,) = study.rows.values()
    needed = {"benchmark", "standard", "method", "setting", "target", "seed", "epochs", "accuracy", "oracle_accuracy",
              "source_accuracy", "label_free", "steps", "minutes", "parameters", "settings", "commit", "hardware",
              "torch", "date"}  # fmt: skip
    assert needed <= row.keys()
    assert 0 <= row["accuracy"] <= 1
    figures = row["label_free"]
    assert figures["information"] == pytest.approx(figures["entropy_of_mean"] - figures["mean_entropy"], abs=1e-5)
    out = tmp_path / "runs" / cells[0].path
    assert (out / "model.safetensors").is_file()
    assert not (out / "checkpoint").exists()


def test_a_changed_tree_is_not_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a", *words], check=True)

    def commit() -> str:
        work.origin.cache_clear()
        return work.origin()["commit"]

    monkeypatch.setattr(work, "__file__", str(tmp_path / "package" / "study" / "work.py"))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "other work")
    try:
        assert commit() == "unknown"  # installed inside of somebody's repository
        git("add", ".")
        git("commit", "-q", "-m", "package")
        clean = commit()
        assert clean.isalnum()
        (tmp_path / "package" / "__init__.py").write_text("changed")
        assert commit() == f"{clean}+changes"
    finally:
        work.origin.cache_clear()


def test_the_board_counts_and_estimates() -> None:
    cells = cells_of([0, 1])
    board = Board(cells, {}, jobs=2)
    assert board.summary() == "0 of 8 cells done"
    for cell in cells[:2]:
        board.take(Outcome(cell, "done", {"accuracy": 0.5}, seconds=10))
    board.take(Outcome(cells[2], "failed", error="no luck", seconds=10))
    board.take(Outcome(cells[3], "busy"))
    assert board.summary() == "2 of 8 cells done, 1 failed, about 25 s left"
    assert board.body() == [
        ["", "method", "-> neon", "-> chalk"],
        ["Multi-source", "mrf", "1/2", "0/2 1 failed"],
        ["", "crf", "1/2", "0/2"],
    ]
    for cell in cells:
        board.take(Outcome(cell, "done", {"accuracy": 0.5 + cell.seed / 10}))
    assert board.body()[1] == ["Multi-source", "mrf", "55.0", "55.0"]
    assert board.summary() == "8 of 8 cells done"
    from rich.console import Console

    console = Console(record=True, width=80)
    console.print(board.picture())
    assert "8 of 8 cells done" in console.export_text()


def test_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--jobs 0: out of range"):
        choose_executor(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 3")
    assert visible_gpus() == ("2", "3")


@pytest.mark.slow
def test_a_killed_worker_of_several_processes(tmp_path: Path) -> None:
    places = write_domains(tmp_path / "data")
    command = [sys.executable, "-m", "graphmsda", "study", "table", "--domains", *places, "--methods", "source-only",
               "mrf", "--seeds", "0", "1", "--jobs", "2", "--out", str(tmp_path / "study"), *FLAGS]  # fmt: skip
    killed = subprocess.Popen(command, stderr=subprocess.PIPE)
    while not list((tmp_path / "study").rglob("result.json")):
        assert killed.poll() is None
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    there = {file: file.stat().st_mtime_ns for file in (tmp_path / "study").rglob("result.json")}
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Multi-source" in done.stdout
    study = read_study(tmp_path / "study")
    assert len(study.rows) == len(study.cells) == 2 * (3 * 4 + 3)
    assert all(file.stat().st_mtime_ns == stamp for file, stamp in there.items())
