"""A study on a Ray cluster of two nodes: the same results, and nothing lost or made twice when a node is killed."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from graphmsda import UserError
from graphmsda.engine import folder
from graphmsda.study import attempts
from graphmsda.study import on_ray as on_ray_module
from graphmsda.study.cells import Cell, read_study
from graphmsda.study.data import Data, choose_data
from graphmsda.study.executors import here
from graphmsda.study.grids import table_cells
from graphmsda.study.on_ray import Caller, _in_task, capacity, choose_ray, connect, on_ray
from graphmsda.study.run import run_study
from graphmsda.study.work import Item, Work, train_cell
from tests.study.test_commands import FLAGS, write_domains
from tests.test_cli import told

QUICK = {"epochs": 2, "steps_per_epoch": 3, "batch_size": 6, "device": "cpu"}
LONG = {**QUICK, "epochs": 40, "steps_per_epoch": 10}  # some seconds


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return choose_data(None, write_domains(tmp_path_factory.mktemp("data")), {})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of one machine that has a CPU and nothing else."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    connect(made.address)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def second(cluster: Any) -> Iterator[Any]:
    """Another machine, with a GPU by its own account."""
    node = cluster.add_node(num_cpus=1, num_gpus=1)
    yield node
    if node in cluster.list_all_nodes():
        cluster.remove_node(node)


ONE_CPU = partial(on_ray, cpus=1, gpus=0)


def figures(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("accuracy", "label_free", "steps", "parameters")}


def states(out: Path, cell: Cell) -> list[str]:
    place = out / "cells" / cell.path
    return [attempts.read(place, number + 1)["state"] for number in range(attempts.newest(place)[0])]


def when(happens: Callable[[], Any], act: Callable[[Any], None]) -> threading.Thread:
    """Act as soon as something is the case."""

    def wait() -> None:
        for _ in range(2400):
            if found := happens():
                act(found)
                return
            time.sleep(0.05)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_the_same_results_as_in_one_process(cluster: Any, data: Data, tmp_path: Path) -> None:
    cells = table_cells(data, ["source-only", "mrf"], ["a"], [0], QUICK, standards=["multi-source"])
    there = run_study(tmp_path / "ray", "table", data, cells, executor=ONE_CPU)
    alone = run_study(tmp_path / "here", "table", data, cells, executor=here)
    assert len(there.rows) == 2
    assert {path: figures(row) for path, row in there.rows.items()} == {
        path: figures(row) for path, row in alone.rows.items()
    }
    assert [states(tmp_path / "ray", cell) for cell in cells] == [["done"], ["done"]]
    stamps = [file.stat().st_mtime_ns for file in sorted((tmp_path / "ray").rglob("result.json"))]
    run_study(tmp_path / "ray", "table", data, cells, executor=ONE_CPU)
    assert [file.stat().st_mtime_ns for file in sorted((tmp_path / "ray").rglob("result.json"))] == stamps


def test_a_folder_shared_with_a_process_outside_of_the_cluster(cluster: Any, data: Data, tmp_path: Path) -> None:
    cells = table_cells(data, ["source-only", "mrf"], ["a", "b"], [0, 1], QUICK, standards=["multi-source"])
    counts: list[int] = []

    def alone() -> None:
        counts.append(len(run_study(tmp_path, "table", data, cells, executor=here).rows))

    thread = threading.Thread(target=alone)
    thread.start()
    counts.append(len(run_study(tmp_path, "table", data, cells, executor=ONE_CPU).rows))
    thread.join()
    assert counts == [8, 8]
    assert [states(tmp_path, cell) for cell in cells] == [["done"]] * 8


def test_a_failed_cell_does_not_stop_the_others(cluster: Any, data: Data, tmp_path: Path) -> None:
    cells = table_cells(data, ["mrf"], ["a", "b"], [0], QUICK)
    spoilt = tmp_path / "runs" / cells[0].path
    run_study(tmp_path, "table", data, [])
    spoilt.parent.mkdir(parents=True)
    spoilt.write_text("a file where the run directory should be")
    study = run_study(tmp_path, "table", data, cells, executor=ONE_CPU)
    assert set(study.rows) == {cells[1].path}
    assert set(study.errors) == {cells[0].path}


def test_shares_of_gpus(cluster: Any, second: Any, data: Data, tmp_path: Path) -> None:
    assert capacity(1, 0) == 2
    assert capacity(1, 0.25) == 1  # the one with a GPU has one CPU
    assert capacity(0, 0.25) == 4
    assert capacity(1, 2) == 0
    executor, jobs = choose_ray(None, 0.5, 0.5, "auto")
    assert jobs == 2
    cells = table_cells(data, ["source-only"], ["a"], [0, 1], QUICK, standards=["multi-source"])
    assert len(run_study(tmp_path, "table", data, cells, executor=executor).rows) == 2


def test_a_node_that_is_killed(
    cluster: Any, second: Any, data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = table_cells(data, ["mrf"], ["a", "b"], [0, 1], LONG)
    family: list[int] = []
    lost: list[Cell] = []

    def at_work() -> list[Cell]:
        """Cells in whose training a process of the second node is."""
        family[:] = descendants(second.all_processes["raylet"][0].process.pid)
        newest = {cell.path: attempts.newest(tmp_path / "cells" / cell.path)[1] for cell in cells}
        return [
            cell
            for cell in cells
            if newest[cell.path].get("state") == "running"
            and newest[cell.path].get("pid") in family
            and (tmp_path / "runs" / cell.path / folder.METRICS).is_file()
        ]

    def cut(found: list[Cell]) -> None:
        lost[:] = found
        for process in [second.all_processes["raylet"][0].process.pid, *family]:
            os.kill(process, signal.SIGKILL)
        cluster.remove_node(second, allow_graceful=False)

    thread = when(at_work, cut)
    study = run_study(tmp_path, "table", data, cells, executor=ONE_CPU)
    thread.join()
    assert len(lost) == 1
    assert len(study.rows) == 4
    assert study.errors == {}
    assert {cell.path: states(tmp_path, cell) for cell in cells} == {
        cell.path: ["running", "done"] if cell in lost else ["done"] for cell in cells
    }
    assert "its Ray worker was lost" in capsys.readouterr().err
    undisturbed = train_cell(lost[0], data, tmp_path / "again")
    assert figures(study.rows[lost[0].path]) == figures(undisturbed)


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those they have."""
    parents: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]


def test_a_worker_lost_on_another_machine_is_given_up_when_it_stands_still(
    cluster: Any, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's word alone is not enough: the machine may be alive and writing where Ray does not reach it."""
    cells = table_cells(data, ["source-only"], ["a", "b"], [0], QUICK, standards=["multi-source"])
    begin = time.monotonic()

    def vanish(shared: tuple[Work, Caller, int], item: Item) -> Any:
        place = shared[0].out / "cells" / item.cell.path
        if item.cell.target == "a" and not item.lost:
            attempts.host = lambda: "another machine"  # in a process that ends here
            attempts.take(place)
            os._exit(1)
        return _in_task(shared, item)

    monkeypatch.setattr(on_ray_module, "_in_task", vanish)
    monkeypatch.setattr(attempts, "PATIENCE", 2.0)
    study = run_study(tmp_path, "table", data, cells, executor=ONE_CPU)
    assert time.monotonic() - begin > 2.0
    assert len(study.rows) == 2
    assert [states(tmp_path, cell) for cell in cells] == [["running", "done"], ["done"]]


def test_ctrl_c_saves_where_it_stands(cluster: Any, data: Data, tmp_path: Path) -> None:
    (cell, *_) = cells = table_cells(data, ["mrf"], ["a"], [0], {**LONG, "epochs": 1000})
    metrics = tmp_path / "runs" / cell.path / folder.METRICS
    thread = when(lambda: metrics.is_file() and metrics.stat().st_size, lambda _: _thread.interrupt_main())
    with pytest.raises(KeyboardInterrupt):
        run_study(tmp_path, "table", data, cells, executor=ONE_CPU)
    thread.join()
    assert states(tmp_path, cell) == ["stopped"]
    assert (tmp_path / "runs" / cell.path / folder.CHECKPOINT).is_file()


def test_a_machine_that_is_not_fit(data: Data, tmp_path: Path) -> None:
    (cell,) = table_cells(data, ["mrf"], ["a"], [0], QUICK)
    with pytest.raises(UserError, match=r"has graphmsda .* and this command is of 0\.0; install the same on both"):
        _in_task((Work(tmp_path, data), Caller("0.0", ".", {}), 1), Item(cell))
    from graphmsda import __version__

    with pytest.raises(UserError, match=r"not there on the machine .* give a folder on a file system that all"):
        _in_task((Work(tmp_path, data), Caller(__version__, ".", {}), 1), Item(cell))


def test_a_machine_without_the_folder_ends_the_study(
    cluster: Any, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = table_cells(data, ["mrf"], ["a"], [0], QUICK)
    monkeypatch.setattr("graphmsda.study.on_ray.__version__", "0.0")
    with pytest.raises(UserError, match="install the same on both"):
        run_study(tmp_path, "table", data, cells, executor=ONE_CPU)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--address", "auto"], "--address was given without --executor ray"),
        (["--gpus-per-run", "0.5"], "--gpus-per-run was given without --executor ray"),
        (["--executor", "ray", "--jobs", "2"], "--jobs was given with --executor ray"),
        (["--executor", "ray", "--gpus-per-run", "1.5"], "--gpus-per-run 1.5: out of range"),
        (["--executor", "ray", "--cpus-per-run", "-1"], "--cpus-per-run -1: out of range"),
    ],
)
def test_mistakes_are_one_sentence(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study", "table", "--benchmark", "demo", "--methods", "mrf", "--out", str(tmp_path / "study"), *FLAGS]
    assert said in told(capsys, [*command, *flags])
    assert not (tmp_path / "study").exists()


def test_an_address_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UserError, match=r"--address 127.0.0.1:1: no Ray cluster can be used there \(.*refused"):
        connect("127.0.0.1:1")


def test_the_command_line(cluster: Any, data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from graphmsda.cli import main

    places = [path for _, path in data.places]
    command = ["study", "ablation", "--method", "crf", "--domains", *places, "--targets", "a", "--out", str(tmp_path)]
    flags = ["--executor", "ray", "--address", cluster.address, "--gpus-per-run", "0"]
    assert main([*command, *FLAGS, *flags]) == 0
    assert "Loss terms of CRF-MSDA" in capsys.readouterr().out
    assert len(read_study(tmp_path).rows) == 4
