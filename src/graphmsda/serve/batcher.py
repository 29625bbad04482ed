"""Requests of several clients through the model together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

Work = Callable[[Tensor], tuple[Tensor, ...]]
"""From samples ``(N, ...)`` to tensors of N rows each."""


class _Job(NamedTuple):
    x: Tensor
    done: asyncio.Future[tuple[Tensor, ...]]


class Batcher:
    """Gives a model all samples that wait, whoever sent them, while it is at work on those before.

    Nobody is kept waiting for company: a request that comes alone is taken at once. The model runs in one thread.

    Args:
        work: The model.
        most: Samples from which on no further request joins.
        note: Told the number of samples of each batch.
    """

    def __init__(self, work: Work, *, most: int = 256, note: Callable[[int], None] = lambda count: None) -> None:
        self._work, self._most, self._note = work, most, note
        self._waiting: asyncio.Queue[_Job] = asyncio.Queue()

    async def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return what the model says of some samples."""
        done: asyncio.Future[tuple[Tensor, ...]] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait(_Job(x, done))
        return await done

    async def run(self) -> None:
        """Work until cancelled."""
        self._waiting = asyncio.Queue()  # of this loop
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, "graphmsda-model") as thread:
            while True:
                jobs = self._take(await self._waiting.get())
                if not jobs:
                    continue
                try:
                    found = await loop.run_in_executor(thread, self._answer, [job.x for job in jobs])
                except Exception as error:  # told to those who asked; the next ones may have more luck
                    for job in jobs:
                        if not job.done.done():
                            job.done.set_exception(error)
                    continue
                for job, part in zip(jobs, found, strict=True):
                    if not job.done.done():  # whoever asked may have given up meanwhile
                        job.done.set_result(part)

    def _take(self, first: _Job) -> list[_Job]:
        """Return the first job and those that wait with it, without those that nobody waits for any more."""
        jobs = [first]
        while sum(len(job.x) for job in jobs) < self._most and not self._waiting.empty():
            jobs.append(self._waiting.get_nowait())
        return [job for job in jobs if not job.done.done()]

    def _answer(self, parts: list[Tensor]) -> list[tuple[Tensor, ...]]:
        sizes = [len(part) for part in parts]
        self._note(sum(sizes))
        found = self._work(torch.cat(parts))
        return list(zip(*(torch.split(tensor, sizes) for tensor in found), strict=True))
