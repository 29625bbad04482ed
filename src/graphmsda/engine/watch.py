"""The accuracy on labelled samples of the target while a run trains: for curves and for the oracle column.

It is read, written down and used for nothing: no weight, no schedule and no choice depends on it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import torch

from graphmsda.data.images import Decoded
from graphmsda.domains import EvalSet
from graphmsda.engine import folder
from graphmsda.engine.training import Training
from graphmsda.errors import UserError
from graphmsda.streaming import answer, split_rows

COLUMN = "watched accuracy"  # in metrics.jsonl
READINGS = 40  # of a run, about


class Watcher:
    """Reads a run's accuracy as it would be if the run ended now: with the averaged weights, where they are kept."""

    def __init__(self, training: Training, watched: EvalSet) -> None:
        classes, shape = training.method.classes, training.task.target.x.shape[1:]
        known = len(watched.y) == len(watched.x) > 0 and 0 <= int(watched.y.min()) <= int(watched.y.max()) < classes
        if watched.x.shape[1:] != shape or not known:
            raise UserError(f"watch {watched.name}: its samples or labels are not like those of the task; give its own")
        self.training, self.watched = training, watched
        # A copy of its own: whatever the accelerated step holds of the method stays as it is.
        self.method = copy.deepcopy(training.method).eval()
        self.method.teacher = None
        steps, interval = training.settings.steps, training.settings.interval
        self.every = interval * max(1, round(steps / READINGS / interval))

    def due(self, step: int) -> bool:
        """Whether the accuracy is read after so many steps."""
        return step % self.every == 0 or step == self.training.settings.steps

    @torch.inference_mode()
    def read(self) -> float:
        """Return the accuracy now, a fraction."""
        training, watched = self.training, self.watched
        live = training.method.state_dict() if training.average is None else training.average.state
        for name, tensor in self.method.state_dict().items():
            tensor.copy_(live[name])
        self.method.stage = training.method.stage

        def some(rows: range) -> Decoded:
            return Decoded(watched.x[rows.start : rows.stop], list(range(len(rows))), [])

        parts = split_rows(len(watched.x), watched.x.shape[1:], training.device)
        found = answer(self.method, self.method.predictor(), training.device, some, parts)
        right = sum(int((part.best == watched.y[part.rows.start : part.rows.stop].cpu()).sum()) for part in found)
        return right / len(watched.y)


def oracle_accuracy(run: str | Path, others: Sequence[float] = ()) -> float | None:
    """Return the best accuracy that was read while a run trained, or that is given here; None where nobody watched.

    Args:
        run: The run directory.
        others: More readings of the same run, such as that of the finished model.
    """
    read = [row[COLUMN] for row in folder.read_metrics(Path(run) / folder.METRICS) if COLUMN in row]
    return round(max([*read, *others]), 6) if read else None
