"""TensorBoard and MLflow get what metrics.jsonl gets, by the same names, in one place however often a run resumes."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from graphmsda.cli import main
from graphmsda.engine import folder, sinks
from graphmsda.engine.fit import fit
from graphmsda.errors import UserError
from tests.conftest import QUICK, feature_task

pytest.importorskip("tensorboard")
pytest.importorskip("mlflow")

BOTH = ("tensorboard", "mlflow")
Points = dict[str, list[tuple[int, float]]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database of MLflow's, whose tables are made once: that takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)


def in_tensorboard(path: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(path / "tensorboard"))
    found.Reload()
    return {name: [(e.step, e.value) for e in found.Scalars(name)] for name in found.Tags()["scalars"]}


def mlflow_run(path: Path) -> tuple[Any, Any]:
    from mlflow import MlflowClient

    about = json.loads((path / "mlflow.json").read_text())
    client = MlflowClient(about["tracking_uri"])
    return client, client.get_run(about["run_id"])


def in_mlflow(path: Path) -> Points:
    client, run = mlflow_run(path)
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: sorted((m.step, m.value) for m in found) for name, found in histories.items()}


def in_file(path: Path) -> Points:
    found: Points = {}
    for row in folder.read_metrics(path / folder.METRICS):
        for name, value in row.items():
            if name != "step":
                found.setdefault(name, []).append((row["step"], value))
    return found


def same(a: Points, b: Points) -> bool:
    """Whether both hold the same; TensorBoard keeps four bytes of a number."""
    assert a.keys() == b.keys()
    return all(
        [step for step, _ in a[name]] == [step for step, _ in b[name]]
        and [value for _, value in a[name]] == pytest.approx([value for _, value in b[name]], rel=1e-5)
        for name in a
    )


def run_folder(path: Path, rows: Sequence[dict[str, Any]] = ()) -> Path:
    """A run directory with a configuration and some metrics."""
    folder.write_config(path, {"data": {"domains": ["a", "b"], "fingerprint": "x"}, "settings": {"epochs": 4}})
    metrics = folder.Metrics(path / folder.METRICS, 0)
    for row in rows:
        metrics.write(row)
    return path


def rows(*steps: int) -> list[dict[str, Any]]:
    return [{"step": step, "epoch": step / 10, "source": 1 / step} for step in steps]


def test_a_run_and_its_continuation_are_one(tmp_path: Path) -> None:
    out, task = tmp_path / "run", feature_task()
    fit(task, "mrf", out=out, log=BOTH, **QUICK)
    assert len(in_file(out)["source"]) == 2
    assert same(in_tensorboard(out), in_file(out))
    assert same(in_mlflow(out), in_file(out))
    _, before = mlflow_run(out)
    fit(task, "mrf", out=out, log=BOTH, extend=True, **QUICK | {"epochs": 4})
    sinks.log_result(BOTH, out, {"accuracy": 0.75})
    expected = in_file(out) | {"accuracy": [(12, 0.75)]}
    assert len(expected["source"]) == 4
    assert same(in_tensorboard(out), expected)
    assert same(in_mlflow(out), expected)
    _, after = mlflow_run(out)
    assert after.info.run_id == before.info.run_id
    assert after.info.status == "FINISHED"
    assert after.data.params["parameters.tau"] == "0.2"
    assert after.data.params["batch_size"] == "6"
    assert after.data.params["sources"] == "source-0 source-1"
    assert (after.data.params["epochs"], after.data.tags["graphmsda.epochs"]) == ("2", "4")


def test_rows_past_the_checkpoint_are_not_there_twice(tmp_path: Path) -> None:
    out = run_folder(tmp_path / "run")
    with sinks.open_sinks(BOTH, out, 0) as opened:
        metrics = folder.Metrics(out / folder.METRICS, 0, opened)
        for row in rows(10, 20, 30):
            metrics.write(row)
    with sinks.open_sinks(BOTH, out, 20) as opened:
        metrics = folder.Metrics(out / folder.METRICS, 20, opened)
        for row in rows(30, 40):
            metrics.write(row)
    assert [step for step, _ in in_file(out)["source"]] == [10, 20, 30, 40]
    assert same(in_tensorboard(out), in_file(out))
    assert same(in_mlflow(out), in_file(out))


def test_a_log_that_is_asked_for_later_has_the_beginning_too(tmp_path: Path) -> None:
    out = run_folder(tmp_path / "run", rows(10, 20))
    sinks.log_result(BOTH, out, {})
    assert same(in_tensorboard(out), in_file(out))
    assert same(in_mlflow(out), in_file(out))


def test_what_is_not_a_number_is_left_out() -> None:
    row = {"step": 3, "a": 1, "b": float("nan"), "c": "word", "d": float("inf"), "e": None}
    assert sinks.numbers(row) == {"a": 1.0}


def test_tensorboard_shows_hyperparameters(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = run_folder(tmp_path / "run", rows(10))
    sinks.log_result(["tensorboard"], out, {"accuracy": 0.5})
    found = EventAccumulator(str(out / "tensorboard"))
    found.Reload()
    assert found.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    assert b"epochs: 4" in found.Tensors("config/text_summary")[0].tensor_proto.string_val[0]


def test_names_that_mlflow_refuses(tmp_path: Path) -> None:
    out = run_folder(tmp_path / "run", [{"step": 1, "epoch": 0.1, "loss (a)": 2.0}])
    sinks.log_result(["mlflow"], out, {"accuracy/my source": 0.5})
    assert in_mlflow(out) == {"epoch": [(1, 0.1)], "loss _a_": [(1, 2.0)], "accuracy/my source": [(1, 0.5)]}


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt, "KILLED"), (ValueError, "FAILED"), (UserError, "FAILED")]
)
def test_how_a_run_ended(tmp_path: Path, error: type[BaseException], status: str) -> None:
    out = run_folder(tmp_path / "run")
    with pytest.raises(error), sinks.open_sinks(["mlflow"], out, 0):
        raise error
    assert mlflow_run(out)[1].info.status == status


def test_a_store_that_goes_away_does_not_stop_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    out = run_folder(tmp_path / "run")
    usual = MlflowClient.log_batch

    def gone(*_: object, metrics: Sequence[Any] = (), **more: Any) -> None:
        if metrics:
            raise MlflowException("connection refused.\nand more")
        usual(*_, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", gone)
        with sinks.open_sinks(["mlflow"], out, 0) as opened:
            metrics = folder.Metrics(out / folder.METRICS, 0, opened)
            for row in rows(10, 20):
                metrics.write(row)
    told = capsys.readouterr().err
    assert told.count("the store does not answer any more (connection refused); the run goes on") == 1
    sinks.log_result(["mlflow"], out, {})
    assert same(in_mlflow(out), in_file(out))
    assert len(in_file(out)["source"]) == 2


def test_a_store_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://nowhere")
    with pytest.raises(UserError, match=r"--log mlflow: the store cannot be used") as caught:
        fit(feature_task(), out=tmp_path / "run", log=["mlflow"], **QUICK)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there_is_told_of_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_TIMEOUT

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # what a user has set is kept
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT", raising=False)
    place = run_folder(tmp_path / "run")
    with pytest.raises(UserError, match="the store cannot be used"), sinks.open_sinks(["mlflow"], place, 0):
        pass
    assert MLFLOW_HTTP_REQUEST_TIMEOUT.get() == 20
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"


@pytest.mark.parametrize("name", BOTH)
def test_a_missing_package_is_told_before_any_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["fit", "--task", "demo:neon", "--out", str(tmp_path / "run"), "--log", name]) == 2
    error = capsys.readouterr().err
    assert error == f"graphmsda: --log {name}: the package {name} is missing; pip install 'graphmsda[{name}]'\n"
    assert not (tmp_path / "run").exists()


def test_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--log wandb: there is no such place; give tensorboard or mlflow"):
        fit(feature_task(), out=tmp_path / "run", log=["wandb"], **QUICK)
