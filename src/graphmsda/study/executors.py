"""Where cells are worked on: in this process, or in several.

An executor is a function of items. It calls `work_on` for each of them, in any order and anywhere, and yields what
comes of them. It may end early, as when a process is killed: the study looks which cells are unfinished and asks
again. All state is in the study's folder, so an executor keeps none; one for a cluster is a function as short as these.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial
from typing import Protocol

from graphmsda.errors import UserError
from graphmsda.study.work import Item, Outcome, Work, work_on
from graphmsda.tuning.workers import map_in_processes


class Executor(Protocol):
    """Does ``work_on(work, item)``, which can be pickled, for each item; closing it stops what is under way."""

    def __call__(self, work: Work, items: Sequence[Item]) -> Generator[Outcome]:
        """Yield what came of items, as they are done."""


def here(work: Work, items: Sequence[Item]) -> Generator[Outcome]:
    """Do everything in this process."""
    for item in items:
        yield work_on(work, item)


def in_processes(work: Work, items: Sequence[Item], *, jobs: int) -> Generator[Outcome]:
    """Spread the items over local processes, each with a GPU of its own where there are several."""
    try:
        with closing(map_in_processes(partial(_apart, work), items, jobs=min(jobs, len(items)))) as done:
            for _, outcome in done:
                yield outcome
    except UserError:  # a process was killed, and the others with it: whoever called asks for the rest again
        print("graphmsda: a process was killed, perhaps for want of memory; going on without it", file=sys.stderr)


def choose_executor(jobs: int) -> Executor:
    """Return the executor for so many local processes."""
    if jobs < 1:
        raise UserError(f"--jobs {jobs}: out of range; give a whole number from 1")
    return here if jobs == 1 else partial(in_processes, jobs=jobs)


def visible_gpus() -> tuple[str, ...]:
    """Return the names of this machine's GPUs as ``CUDA_VISIBLE_DEVICES`` has them."""
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return tuple(name.strip() for name in given.split(",") if name.strip())
    return tuple(str(number) for number in range(torch.cuda.device_count()))


def _apart(work: Work, item: Item) -> Outcome:
    """Work in a process of a pool, whose number tells its GPU."""
    numbers = multiprocessing.current_process()._identity
    if numbers and len(work.gpus) > 1:  # before CUDA is met, which a fresh process has not
        os.environ["CUDA_VISIBLE_DEVICES"] = work.gpus[(numbers[0] - 1) % len(work.gpus)]
    return work_on(work, item)
