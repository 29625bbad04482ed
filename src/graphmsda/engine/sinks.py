"""Where the rows of ``metrics.jsonl`` go besides: TensorBoard and MLflow, by the same names.

TensorBoard's files lie in the run directory, in ``tensorboard/``. MLflow's run is in the store that MLflow itself would
take (``$MLFLOW_TRACKING_URI``, else its default in the present folder), and ``mlflow.json`` in the run directory says
which one it is. So a run that resumes goes on in the same place.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import yaml

from graphmsda.engine import folder
from graphmsda.errors import UserError
from graphmsda.files import explain_write_errors, write_text

SINKS = ("tensorboard", "mlflow")
TENSORBOARD, MLFLOW = "tensorboard", "mlflow.json"
EXPERIMENT = "graphmsda"
# By default MLflow tries for several minutes, in which nothing is trained and nobody is told why.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}

Row = Mapping[str, Any]


class Sink(Protocol):
    """Takes rows as `folder.Metrics` does, and the figures that are known at the end."""

    def write(self, row: Row) -> None:
        """Take in a row."""

    def result(self, figures: Mapping[str, float]) -> None:
        """Take in what came of the run."""


def check_sinks(names: Sequence[str]) -> None:
    """Refuse names that are not known and packages that are not there, before any work."""
    for name in names:
        if name not in SINKS:
            raise UserError(f"--log {name}: there is no such place; give {' or '.join(SINKS)}")
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--log {name}: the package {name} is missing; pip install 'graphmsda[{name}]'")


@contextmanager
def open_sinks(names: Sequence[str], path: Path, step: int | None = None) -> Iterator[list[Sink]]:
    """Yield the sinks of the run in a folder, closed at the end; how it was left is told to MLflow.

    Args:
        names: Some of `SINKS`.
        path: The run directory, with its ``config.yaml``.
        step: Where training stands; what was written beyond is forgotten, where that can be done, and what of
            ``metrics.jsonl`` a sink has not seen is written first. None where no further row comes.
    """
    check_sinks(names)
    with ExitStack() as stack:
        sinks: list[Sink] = []
        if names:
            config = folder.read_config(path)
            rows = [row for row in folder.read_metrics(path / folder.METRICS) if step is None or row["step"] <= step]
            opening = {"tensorboard": tensorboard, "mlflow": mlflow}
            sinks += [stack.enter_context(opening[name](path, config, rows)) for name in dict.fromkeys(names)]
        yield sinks


def log_result(names: Sequence[str], path: Path, figures: Mapping[str, float]) -> None:
    """Add what came of a finished run, such as its accuracy on the target, to where its rows are."""
    with open_sinks(names, path) as sinks:
        for sink in sinks:
            sink.result(figures)


def hyperparameters(config: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Return all that decides a run, flat: settings by name, those of the method as ``parameters.NAME``.

    >>> hyperparameters({"settings": {"lr": 0.1, "preset": None, "parameters": {"tau": 0.2}},
    ...                  "data": {"domains": ["a", "b", "c"]}})
    {'lr': 0.1, 'parameters.tau': 0.2, 'sources': 'a b', 'target': 'c'}
    """
    settings = dict(config["settings"])
    own = {f"parameters.{name}": value for name, value in (settings.pop("parameters", None) or {}).items()}
    *sources, target = config["data"]["domains"]
    flat = settings | own | {"sources": " ".join(sources), "target": target}
    return {
        name: value if isinstance(value, str | int | float) else str(value)
        for name, value in flat.items()
        if value is not None
    }


def numbers(row: Row) -> dict[str, float]:
    """Return a row's finite numbers but for the step."""
    return {
        name: float(value)
        for name, value in row.items()
        if name != "step" and isinstance(value, int | float) and math.isfinite(value)
    }


@contextmanager
def tensorboard(path: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[Sink]:
    """Write event files into the run directory."""
    from torch.utils.tensorboard import SummaryWriter, summary

    place = path / TENSORBOARD
    last = rows[-1]["step"] if rows else 0
    new = not place.is_dir()
    with explain_write_errors(place):
        # Rows past the checkpoint, which the resumed run writes again, are hidden by `purge_step`.
        writer: Any = SummaryWriter(str(place), purge_step=None if new else last + 1)

    # Without a list of metrics TensorBoard's table of runs shows all of them.
    make_summaries: Any = summary.hparams
    _, begun, ended = make_summaries(hyperparameters(config), {})

    class TensorBoard:
        def write(self, row: Row) -> None:
            for name, value in numbers(row).items():
                writer.add_scalar(name, value, row["step"])

        def result(self, figures: Mapping[str, float]) -> None:
            for name, value in figures.items():
                writer.add_scalar(name, value, last)
            writer.file_writer.add_summary(ended)

    sink = TensorBoard()
    try:
        if new:
            text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
            writer.add_text("config", f"```\n{text}```")
            writer.file_writer.add_summary(begun)
            for row in rows:
                sink.write(row)
        yield sink
    finally:
        writer.close()


@contextmanager
def mlflow(path: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> Iterator[Sink]:
    """Log into a run of MLflow's: that of ``mlflow.json`` if there is one, else a new one."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException

    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    file = path / MLFLOW
    try:
        if file.is_file():
            before = json.loads(file.read_text(encoding="utf-8"))
            client = MlflowClient(before["tracking_uri"])
            run = client.get_run(before["run_id"])
            client.update_run(run.info.run_id, status="RUNNING")
        else:
            client = MlflowClient()
            found = client.get_experiment_by_name(EXPERIMENT)
            experiment = client.create_experiment(EXPERIMENT) if found is None else found.experiment_id
            run = client.create_run(experiment, run_name=path.name, tags={"graphmsda.out": str(path)})
            write_text(file, json.dumps({"tracking_uri": client.tracking_uri, "run_id": run.info.run_id}) + "\n")
        number = run.info.run_id
        wanted = {name: str(value) for name, value in hyperparameters(config).items()}
        client.log_batch(number, params=[Param(*pair) for pair in wanted.items() if pair[0] not in run.data.params])
        for name, value in run.data.params.items():
            if name in wanted and wanted[name] != value:  # MLflow never changes one: epochs that were raised go beside
                client.set_tag(number, f"graphmsda.{name}", wanted[name])
        seen = max((metric.step for metric in client.get_metric_history(number, "epoch")), default=0)
    except (MlflowException, OSError, ValueError, KeyError) as error:
        raise UserError(
            f"--log mlflow: the store cannot be used ({_reason(error)}); see to $MLFLOW_TRACKING_URI, or remove "
            f"{file} for a new run there"
        ) from error

    class MLflow:
        broken = False

        def write(self, row: Row) -> None:
            if row["step"] > seen:  # what came after the checkpoint of a run that was stopped is there already
                self._log(numbers(row), row["step"])

        def result(self, figures: Mapping[str, float]) -> None:
            self._log(figures, rows[-1]["step"] if rows else 0)

        def _log(self, values: Mapping[str, float], step: int) -> None:
            now = int(1000 * time.time())
            metrics = [Metric(re.sub(r"[^\w. /-]", "_", name), value, now, step) for name, value in values.items()]
            self.attempt(lambda: client.log_batch(number, metrics=metrics))

        def attempt(self, act: Callable[[], object]) -> None:
            """Tell MLflow something; a server that is gone is no reason to stop the training."""
            if self.broken:
                return
            try:
                act()
            except (MlflowException, OSError) as error:
                self.broken = True
                gone = f"graphmsda: --log mlflow: the store does not answer any more ({_reason(error)})"
                further = f"the run goes on, and the same command adds what is missing from {folder.METRICS}"
                print(f"{gone}; {further}", file=sys.stderr)

    sink = MLflow()
    status = "FAILED"
    try:
        for row in rows:
            sink.write(row)
        yield sink
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        sink.attempt(lambda: client.set_terminated(number, status))


def _reason(error: Exception) -> str:
    """Return what an error of MLflow says first: the rest are pages of advice."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return first[:200].rstrip(".")
