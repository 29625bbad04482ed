"""The one training loop: from a task and settings to a run directory with a model in it.

Reads top to bottom: `fit` prepares, `train` loops, `take_step` does one batch, `finish` writes the model.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from graphmsda import __version__, parallel
from graphmsda.domains import EvalSet, Task
from graphmsda.engine import folder
from graphmsda.engine.accelerate import is_compiled, stepper
from graphmsda.engine.devices import start
from graphmsda.engine.memory import freed_memory_kept
from graphmsda.engine.progress import progress_bar
from graphmsda.engine.saving import Saver
from graphmsda.engine.settings import INTERVAL as INTERVAL
from graphmsda.engine.settings import Settings
from graphmsda.engine.signals import stop_on_signal
from graphmsda.engine.sinks import Sink, check_sinks, open_sinks
from graphmsda.engine.training import Training
from graphmsda.engine.watch import COLUMN as WATCHED
from graphmsda.engine.watch import Watcher
from graphmsda.environment import environment
from graphmsda.errors import UserError
from graphmsda.files import write_tensors, write_text
from graphmsda.methods import Method, Phase

if TYPE_CHECKING:
    from graphmsda.run import Run

UNKNOWN = -1.0  # a gradient's norm that was not measured


def fit(
    task: Task,
    method: str = "mrf",
    *,
    out: str | Path,
    extend: bool = False,
    progress: bool = False,
    origin: Mapping[str, Any] | None = None,
    data_root: str | Path | None = None,
    log: Sequence[str] = (),
    watch: EvalSet | None = None,
    **settings: Any,
) -> Run:
    """Train a method on a task and return the finished run.

    The same call on the same `out` resumes a run that was stopped, or returns it if it is finished.

    Args:
        task: Labelled sources and an unlabelled target.
        method: Name of the method.
        out: The run directory.
        extend: Allow more `epochs` than the run at `out` was begun with.
        progress: Show a progress bar on standard error.
        origin: Where the data came from, for the record (default: what the task says of it).
        data_root: Folder below which ``weights/`` may hold pretrained ones (default: ``$GRAPHMSDA_DATA``).
        log: Where metrics go besides ``metrics.jsonl``: ``tensorboard``, ``mlflow`` or both.
        watch: Labelled target samples whose accuracy is written to the metrics now and then, and used for nothing.
        **settings: Fields of `Settings`.
    """
    from graphmsda.run import Run

    path = Path(out)
    check_sinks(log)
    if settings.get("precision", "auto") == "auto":
        settings["precision"] = folder.precision_of(path)  # what another kind of machine began goes on as it was
    chosen = Settings(method=method, **settings).resolved(task, data_root)
    config = folder.describe(task, chosen, task.origin if origin is None else origin)
    folder.open_folder(path, config, extend=extend)
    device, wait_for_others = start(chosen)
    main = parallel.rank() == 0
    memory = freed_memory_kept() if device.type == "cpu" else nullcontext()
    with memory, torch.random.fork_rng():  # which leaves the caller's random numbers alone
        training = Training(task, chosen, device)
        refuse_longer_stages(training, path)
        # Whatever can be wrong with what was asked has been told by now: only here is the first file written.
        with folder.locked(path) if main else nullcontext():
            if main:
                folder.write_config(path, config)
            training.resume(path)
            if training.step < chosen.steps or not (path / folder.MODEL_ABOUT).is_file():
                for note in notes(training) if progress and main else ():
                    print(f"graphmsda: {note}", file=sys.stderr)
                others = open_sinks(log if main else (), path, training.step)
                with closing(training.feed), Saver(path / folder.CHECKPOINT) as saver, others as sinks:
                    watcher = Watcher(training, watch) if watch is not None and main else None
                    train(training, path, saver, show=progress and main, sinks=sinks, watcher=watcher)
                    finish(training, path)
        del training  # within `memory`, which then gives back what it took
    wait_for_others()
    return Run.load(path, device=chosen.device)


def refuse_longer_stages(training: Training, path: Path) -> None:
    """Refuse more epochs than a run was begun with where that would change what has already been trained."""
    if len(training.stages) == 1 or not (path / folder.CONFIG).is_file():
        return
    before, now = folder.read_config(path)["settings"].get("epochs"), training.settings.epochs
    if before != now:
        raise UserError(
            f"--extend: {training.settings.method} is trained in stages, each a share of the run, so {path} cannot go "
            f"on from {before} to {now} epochs; choose another --out"
        )


def notes(training: Training) -> Iterator[str]:
    """Yield what a user should know before the first step."""
    if training.step == 0:
        yield from training.method.backbone.notes
    if is_compiled(training.settings):
        yield "the step is compiled before the first one is taken: about a minute the first time, later seconds"


def train(
    training: Training,
    path: Path,
    saver: Saver,
    *,
    show: bool,
    sinks: Sequence[Sink] = (),
    watcher: Watcher | None = None,
) -> None:
    """Take all steps that are left, writing metrics and checkpoints as they come."""
    settings, main = training.settings, parallel.rank() == 0
    metrics = folder.Metrics(path / folder.METRICS, training.step, sinks) if main else None
    tally = Tally()

    def take() -> None:
        take_step(training, tally)

    step = stepper(training, take)
    good, saved, begin = training.snapshot(), time.monotonic(), time.monotonic()
    title = f"{settings.method} -> {training.task.target.name}"
    training.method.train()
    with progress_bar(settings.steps, training.step, title, enabled=show) as tell, stop_on_signal() as stopped:
        while training.step < settings.steps:
            if training.enter_stage():  # what was compiled and captured of the last one is of no use
                step, good = stepper(training, take), training.snapshot()
            training.prepare()
            step()
            training.step += 1
            tell(training.step)
            last = training.step == settings.steps
            due = training.is_read(training.step)
            # Alone, a run can stop after any step; several processes must agree on one.
            stop = stopped() if parallel.world_size() == 1 else due and parallel.any_process(stopped(), training.device)
            if not (due or stop):
                continue
            row = tally.read()
            if not row.pop("finite"):
                if main:
                    saver.save(*good)
                raise UserError(_not_finite(row, good[1], training, path))
            tell(training.step, row)
            if watcher is not None and watcher.due(training.step):
                row[WATCHED] = watcher.read()
            if metrics is not None:
                epoch = training.step / settings.steps_per_epoch
                elapsed = round(time.monotonic() - begin, 3)
                rate, _ = training.course.numbers(training.step - 1)
                metrics.write({"step": training.step, "epoch": round(epoch, 3), "seconds": elapsed, "lr": rate} | row)
            good = training.snapshot()
            if main and (last or stop or time.monotonic() - saved >= settings.checkpoint_seconds):
                saver.save(*good)
                saved = time.monotonic()
            if stop and not last:
                raise KeyboardInterrupt


def take_step(training: Training, tally: Tally) -> None:
    """Draw the batch that was prepared and take the optimiser step of each of the method's phases.

    All of this happens on the device: no value is read, no shape depends on one.
    """
    method, descent = training.method, training.descent
    tally.begin_step()
    batch, now = training.batch()
    for group in training.optimiser.param_groups:
        group["lr"].copy_(now.rate * group["factor"])
    for phase in method.phases(batch):
        loss = torch.stack(list(phase.terms.values())).sum()
        parameters = [p for p in updated_parameters(method, phase.updates) if p.requires_grad]
        gradients = torch.autograd.grad(loss, descent.leaves(parameters), allow_unused=True)
        parallel.average_gradients(gradients)
        tally.add(phase, descent.step(parameters, gradients, measured=training.measured))
    tally.end_step()


def updated_parameters(method: Method, names: tuple[str, ...]) -> list[nn.Parameter]:
    """Return the parameters of the attributes named, or all."""
    if not names:
        return list(method.parameters())
    parts = [getattr(method, name) for name in names]
    return [p for part in parts for p in ([part] if isinstance(part, nn.Parameter) else part.parameters())]


class Tally:
    """Loss terms summed on the device, so that reading them costs one wait per interval, not one per step."""

    def __init__(self) -> None:
        self._step: dict[str, list[Tensor]] = {}
        self._norms: list[Tensor] = []
        self._names: dict[str, int] = {}  # with how many phases of a step give each
        self._sums = self._gradient = torch.empty(0)

    def add(self, phase: Phase, norm: Tensor | None) -> None:
        """Take in one phase: its terms, what it shows and, where that was measured, its gradients' norm."""
        for name, value in {**(phase.shown or {}), **phase.terms}.items():
            self._step.setdefault(name, []).append(value.detach())
        self._norms += [] if norm is None else [norm]

    def begin_step(self) -> None:
        """Forget what a step that broke off has left."""
        self._step, self._norms = {}, []

    def end_step(self) -> None:
        """Add the step's values to the sums, the last of which counts steps, and keep the newest norm.

        Where the values have other names than before, as in a new stage, the sums begin anew.
        """
        several = [found[0] if len(found) == 1 else torch.stack(found).sum() for found in self._step.values()]
        values = torch.stack([value.float() for value in several])
        values = torch.cat([values, torch.ones_like(values[:1])])
        names = {name: len(found) for name, found in self._step.items()}
        if names != self._names:
            self._names = names
            self._sums, self._gradient = torch.zeros_like(values), torch.full_like(values[0], UNKNOWN)
        self._sums += values
        if self._norms:
            self._gradient.copy_(torch.stack(self._norms).mean())
        self.begin_step()

    def read(self) -> dict[str, float]:
        """Return the terms' means since the last reading, the last norm, and whether all of it was finite."""
        if not self._names:
            return {"finite": 1.0}
        *sums, steps, norm = torch.cat([self._sums, self._gradient[None]]).tolist()
        self._sums.zero_()
        self._gradient.fill_(UNKNOWN)
        row = {name: total / (count * steps) for (name, count), total in zip(self._names.items(), sums, strict=True)}
        row |= {} if norm == UNKNOWN else {"gradient": norm}
        return row | {"finite": float(all(map(math.isfinite, row.values())))}


@torch.no_grad()
def finish(training: Training, path: Path) -> None:
    """Write the model that predicts: the averaged weights where they are kept, with the sources' class means."""
    method, task, settings = training.method, training.task, training.settings
    training.put_back()
    training.take_average()
    if training.average is not None:
        method.load_state_dict(training.average.state)
    method.eval()
    for number, source in enumerate(task.sources):
        y, chunks = source.y.to(training.device), training.feed.chunks(number)
        method.remember_source(number, ((method.embed(x, number), y[rows]) for rows, x in chunks))
    if parallel.rank() != 0:
        return
    about = {
        "format": 1,
        "graphmsda": __version__,
        "method": settings.method,
        "method_version": method.version,
        "parameters": dict(settings.parameters),
        "backbone": settings.backbone,
        "dropout": settings.dropout,
        "shape": list(task.target.x.shape[1:]),
        "classes": list(task.classes),
        "domains": list(task.domains),
        "feature_names": None if task.feature_names is None else list(task.feature_names),
        "steps": training.step,
        "environment": environment(),
    }
    state = {k: v.float() if v.is_floating_point() else v for k, v in method.state_dict().items()}
    write_tensors(path / folder.MODEL, state)
    write_text(path / folder.MODEL_ABOUT, json.dumps(about, indent=2, ensure_ascii=False) + "\n")


def _not_finite(row: Mapping[str, float], good: int, training: Training, path: Path) -> str:
    bad = [name for name, value in row.items() if value != value or abs(value) == float("inf")]
    return (
        f"training stopped: {' and '.join(bad) or 'a loss term'} became infinite or not a number between steps {good} "
        f"and {training.step}; the last good state (step {good}) is kept in {path / folder.CHECKPOINT}; "
        f"begin again with a smaller --lr (it was {training.settings.lr:g}) or with --clip 1"
    )
