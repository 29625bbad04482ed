"""What changes from step to step, on the device ahead of time: rows, learning rate, progress and seeds.

A step that is captured once and replayed cannot be told a number by the host. It reads its numbers from tables at a
place that it moves on by itself; the host fills the tables for many steps at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphmsda import parallel
from graphmsda.data.sampler import Stream, seed_of
from graphmsda.engine.optim import learning_rate
from graphmsda.engine.settings import Settings
from graphmsda.engine.stages import Span, lay_out, stage_at

SHARED = 2  # what a seed is for: numbers that all processes draw alike
WINDOW = 256  # steps in the tables


@dataclass(frozen=True)
class Moment:
    """The numbers of one step, each a tensor on the device.

    Attributes:
        rows: Rows that this process takes of each domain, int64 ``(D, B)``.
        rate: Learning rate.
        progress: Share of the training that is done, of its stage where there are several.
        seed: Seed of what all processes draw alike, int64.
    """

    rows: Tensor
    rate: Tensor
    progress: Tensor
    seed: Tensor


class Course:
    """The numbers of all steps, `WINDOW` of them at a time."""

    def __init__(
        self, settings: Settings, streams: Sequence[Stream], device: torch.device, stages: Sequence[Span] = ()
    ) -> None:
        self.settings, self.streams = settings, streams
        self.stages = stages or lay_out((), settings.steps)
        self._next = self._end = -1
        rows, numbers, seeds = self._tables(range(1))
        self._rows = rows.new_zeros((WINDOW, *rows.shape[1:]), device=device)
        self._numbers = numbers.new_zeros((WINDOW, *numbers.shape[1:]), device=device)
        self._seeds = seeds.new_zeros(WINDOW, device=device)
        self._place = torch.zeros(1, dtype=torch.int64, device=device)

    def prepare(self, step: int) -> None:
        """See to it that the next `read`, or the next replay of one, gives the numbers of this step."""
        if step != self._next or step == self._end:
            tables = self._tables(range(step, step + WINDOW))
            for here, there in zip((self._rows, self._numbers, self._seeds), tables, strict=True):
                # From pinned memory the copy waits its turn behind earlier steps, and the host does not wait for it.
                here.copy_(there.pin_memory() if here.is_cuda else there, non_blocking=True)
            self._place.zero_()
            self._end = step + WINDOW
        self._next = step + 1

    def read(self) -> Moment:
        """Return the numbers of the step prepared, and move on."""
        rows, numbers, seeds = (
            table.index_select(0, self._place)[0] for table in (self._rows, self._numbers, self._seeds)
        )
        self._place += 1
        rate, progress = numbers.unbind()
        return Moment(rows, rate, progress, seeds)

    def numbers(self, step: int) -> tuple[float, float]:
        """Return learning rate and progress of a step; each stage runs through all of both."""
        stage = self.stages[stage_at(self.stages, step)]
        progress = stage.progress(step)
        return stage.rate * learning_rate(self.settings, progress), progress

    def _tables(self, steps: range) -> tuple[Tensor, Tensor, Tensor]:
        settings = self.settings
        rows = torch.stack([stream.batches(steps) for stream in self.streams], dim=1)
        numbers = [self.numbers(step) for step in steps]
        seeds = [seed_of(settings.seed, SHARED, step) for step in steps]
        return parallel.local_part(rows).contiguous(), torch.tensor(numbers), torch.tensor(seeds)
