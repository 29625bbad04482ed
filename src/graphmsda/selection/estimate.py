"""How good is a model on its target, without a single target label? A number, and an interval that says how sure.

Estimators (`estimators.py`) are combined on the logit scale. What the combination is off by is learned where labels are
known, each source in turn playing the target: in rehearsals (whole runs in which it did) where such are given, else
within the run itself, where its labels had a part in training and the result is that much less certain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphmsda.data.named import NamedTask
from graphmsda.domains import Task
from graphmsda.run import Run
from graphmsda.selection.combination import (
    HELD_OUT,
    LEVEL,
    NOBODY,
    REHEARSED,
    TRAINED_ON,
    Off,
    Prior,
    combine,
    interval,
    off_by,
)
from graphmsda.selection.data import RunData, find_data
from graphmsda.selection.evidence import Evidence
from graphmsda.selection.gather import gather
from graphmsda.selection.rehearsed import read_rehearsals
from graphmsda.selection.residuals import Residuals, rehearsal_residuals, source_residuals, target_parts


@dataclass(frozen=True)
class Estimate:
    """A model's accuracy on its target as far as it can be told without labels; accuracies are fractions.

    Attributes:
        accuracy: The estimate.
        low: Lower end of the interval.
        high: Upper end of the interval.
        parts: What each estimator says by itself.
        calibrated_on: What the interval was learned from, for people.
        off: What the estimators together were off by on the sources.
        level: How often such an interval is to hold the truth.
    """

    accuracy: float
    low: float
    high: float
    parts: Mapping[str, float]
    calibrated_on: str
    off: Off = NOBODY
    level: float = LEVEL

    @property
    def told(self) -> str:
        """The sentence for people.

        >>> Estimate(0.871, 0.79, 0.93, {}, "four sources").told
        'estimated accuracy on the target: 87 % (79-93 %)'
        """
        low, high = (f"{100 * end:.0f}" for end in (self.low, self.high))
        return f"estimated accuracy on the target: {100 * self.accuracy:.0f} % ({low}-{high} %)"

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return dataclasses.asdict(self) | {"parts": dict(self.parts), "off": self.off._asdict()}


def estimate(
    run: Run | str | Path,
    task: Task | NamedTask | RunData | None = None,
    *,
    second: Run | Evidence | str | Path | None = None,
    rehearsals: Residuals | str | Path | Sequence[str | Path] = (),
    evidence: Evidence | None = None,
    device: str = "auto",
    **reading: Any,
) -> Estimate:
    """Return a run's accuracy on its target, without labels, with an interval that is to hold the truth 9 times in 10.

    Args:
        run: A run, or its folder.
        task: Its data; by default they are read again from where the run had them.
        second: A run of the same task with another seed, or what `gather` has found of it: whether the two agree tells
            much.
        rehearsals: Folders of ``graphmsda tune``, with runs in which a source played the target. What the estimate is
            off by is then known for models of the same kind, and the interval is the most honest one. Or what
            `rehearsal_residuals` made of them.
        evidence: What `gather` has found of `run`, where that is at hand.
        device: Where to compute, when folders are given.
        **reading: ``data_root``, ``variant``, ``cache``, where the data lie elsewhere now.
    """
    if not isinstance(run, Run):
        run = Run.load(run, device=device)
    data = task
    if evidence is None or not isinstance(second, Evidence | None):
        data = task if isinstance(task, RunData) else find_data(run, task, **reading)
    found = evidence or gather(run, data, mixed=False)
    other = second if isinstance(second, Evidence | None) else gather(second, data, mixed=False, device=device)
    parts = target_parts(found, other)
    own: list[float] = []
    moved: list[float] = []
    weights = None
    prior: Prior = HELD_OUT
    if rehearsals:
        rehearsed = rehearsals
        if not isinstance(rehearsed, Residuals):
            places = [rehearsed] if isinstance(rehearsed, str | Path) else rehearsed
            pairs = other is not None
            rehearsed = rehearsal_residuals(read_rehearsals(places, run, paired=pairs, device=device, **reading))
        own, moved, weights, prior = rehearsed.values, rehearsed.values, rehearsed.weights, REHEARSED
        learned = f"{rehearsed.runs} rehearsals in which {', '.join(rehearsed.players)} played the target"
    elif not found.held_out:
        prior = TRAINED_ON
        learned = "earlier benchmarks alone, since the sources have no samples that training did not see"
    elif len(found.sources) == 1:
        learned = "earlier benchmarks alone, since there is one source"
    else:
        own, moved = source_residuals(found, other)
        names = ", ".join(part.name for part in found.sources)
        learned = f"the held-out parts of {names}, each judged by the others, and earlier benchmarks"
    off = off_by(moved, own)
    accuracy, low, high = interval(combine(parts, weights), off, prior, len(found.target))
    return Estimate(accuracy, low, high, parts, learned, off)
