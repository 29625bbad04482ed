"""Which steps belong to which stage of a method that is trained in several, one after the other.

A stage is a training of its own: its learning rate runs through the whole schedule, its progress from 0 to 1, and its
optimiser starts without a memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from graphmsda.errors import UserError
from graphmsda.methods.base import Stage


@dataclass(frozen=True)
class Span:
    """A stage's steps, from `first` to `end`, the latter not included, and its share of the run's learning rate."""

    name: str
    first: int
    end: int
    rate: float

    def progress(self, step: int) -> float:
        """Return the share of the stage that is done before a step."""
        return (step - self.first) / (self.end - self.first)


def lay_out(stages: Sequence[Stage], steps: int) -> tuple[Span, ...]:
    """Return which steps of a run each stage takes, at least one.

    A method without stages has one without a name.

    >>> [(span.name, span.first, span.end, span.rate) for span in lay_out((("pretrain", 1), ("adapt", 2, 0.1)), 10)]
    [('pretrain', 0, 3, 1.0), ('adapt', 3, 10, 0.1)]
    >>> lay_out((), 5)
    (Span(name='', first=0, end=5, rate=1.0),)
    """
    stages = stages or (("", 1.0),)
    if steps < len(stages):
        raise UserError(
            f"--epochs: the method is trained in {len(stages)} stages ({', '.join(stage[0] for stage in stages)}), "
            f"but the run has {steps} step; give more --epochs or --steps-per-epoch"
        )
    total = sum(stage[1] for stage in stages)
    spans: list[Span] = []
    first, done = 0, 0.0
    for number, (name, share, *rate) in enumerate(stages, 1):
        done += share
        to_come = len(stages) - number  # each needs a step
        end = min(max(round(steps * done / total), first + 1), steps - to_come)
        spans.append(Span(name, first, end, rate[0] if rate else 1.0))
        first = end
    return tuple(spans)


def stage_at(spans: Sequence[Span], step: int) -> int:
    """Return the number of the stage that a step belongs to; behind the end it is the last.

    >>> spans = lay_out((("pretrain", 1), ("adapt", 2, 0.1)), 10)
    >>> [stage_at(spans, step) for step in (0, 2, 3, 9, 12)]
    [0, 0, 1, 1, 1]
    """
    return sum(step >= span.end for span in spans[:-1])
