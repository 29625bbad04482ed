"""How long training and inference take (the paper's Table 8): 100 iterations each, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from graphmsda.engine import accelerate
from graphmsda.engine.fit import Tally, take_step
from graphmsda.engine.optim import EVERY
from graphmsda.engine.settings import Settings
from graphmsda.engine.stages import Span
from graphmsda.engine.training import Training
from graphmsda.study.cells import Cell, Row
from graphmsda.study.data import Data, load
from graphmsda.study.work import staged

RUN = {"epochs": 100, "steps_per_epoch": 195}  # a run as long as the paper's: worth compiling


def time_cell(cell: Cell, data: Data) -> Row:
    """Return the seconds of so many iterations, once for each repeat.

    A training iteration is a step with a batch of every domain, an inference iteration the prediction of a batch of the
    target, copied to the device. Of a method with stages each is timed, and counts by its share of the run. What
    happens once in a run (compiling, capturing) comes before the clock starts.
    """
    named = load(data, cell.target)
    task, settings = staged(cell, named)
    resolved = Settings(**{**RUN, **{name: value for name, value in settings.items() if value}}).resolved(task)
    device = torch.device(resolved.device)
    iterations, repeats = int(cell.varied["iterations"]), int(cell.varied["repeats"])
    with torch.random.fork_rng():
        training = Training(task, resolved, device)
        try:
            trained = [0.0] * repeats
            for span in training.stages:
                step = _stepper(training, span)
                for _ in range(max(accelerate.WARM_UP, EVERY) + 3 if device.type == "cuda" else 2):
                    step()
                share = (span.end - span.first) / resolved.steps
                trained = [before + share * _seconds(step, iterations, device) for before in trained]
        finally:
            training.feed.close()
            training.put_back()
        predict = _predictor(training)
        predict()
        predicted = [_seconds(predict, iterations, device) for _ in range(repeats)]
    return {
        "benchmark": data.benchmark,
        **cell.named(),
        "training": [round(value, 6) for value in trained],
        "inference": [round(value, 6) for value in predicted],
        "backbone": resolved.backbone,
        "batch_size": resolved.batch_size,
        "precision": resolved.precision,
    }


def _stepper(training: Training, span: Span) -> Callable[[], None]:
    """Return a function that takes the next step of a stage, over and over, as `graphmsda.engine.fit.train` does."""
    training.step = span.first
    training.enter_stage()
    tally = Tally()
    step = accelerate.stepper(training, lambda: take_step(training, tally))
    training.method.train()

    def advance() -> None:
        training.prepare()
        step()
        training.step = training.step + 1 if training.step + 1 < span.end else span.first
        if training.settings.is_read(training.step):
            tally.read()
            training.snapshot()

    return advance


def _predictor(training: Training) -> Callable[[], None]:
    method, size = training.method.eval(), training.settings.batch_size
    x = training.task.target.x[:size]
    with torch.inference_mode():
        predictor = method.predictor()

    def predict() -> None:
        with torch.inference_mode():
            predictor(method.embed(x.to(training.device)))

    return predict


def _seconds(work: Callable[[], None], times: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    for _ in range(times):
        work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin
