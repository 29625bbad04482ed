"""Samples to where training happens: kept there, or fetched ahead of time by other processes or threads.

Which rows a step needs is known from its number alone (`graphmsda.data.sampler`), so fetching ahead needs no queue
whose place would have to be saved: it asks for the rows of the next steps before those steps come.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from graphmsda import parallel
from graphmsda.data import encoded
from graphmsda.data.encoded import Encoded
from graphmsda.data.sampler import Stream
from graphmsda.domains import Samples

AHEAD = 4  # steps that threads fetch in advance
CHUNK = 256
SHARE = 4  # data stay on a GPU when they take less than this part of its free memory
MOST_PROCESSES = 16

Job = Callable[[int], list[Tensor]]


class Feed:
    """The samples of all domains, step by step, on the training device.

    Args:
        samples: Of each domain.
        streams: The rows of each domain in each step.
        device: Where training happens.
        resident: ``yes`` keeps the data on the device, ``no`` fetches every batch, ``auto`` keeps what fits well.
    """

    def __init__(
        self, samples: Sequence[Samples], streams: Sequence[Stream], device: torch.device, resident: str = "auto"
    ) -> None:
        self.streams, self.device = streams, device
        self.samples = list(samples)
        if resident == "yes" or (resident == "auto" and _fits(samples, device)):
            self.samples = [_move(x, device) for x in samples]
        # A tensor on the device, or mapped into the memory it computes from, needs no fetching.
        self.ready = all(isinstance(x, Tensor) and x.device.type == device.type for x in self.samples)
        self._coming: Iterator[list[Tensor]] | None = None
        self._next = 0

    def rows(self, step: int, device: torch.device | str = "cpu") -> list[Tensor]:
        """Return the rows that this process takes of each domain in a step, int64."""
        return [parallel.local_part(stream.indices(step, device)) for stream in self.streams]

    def batch(self, step: int) -> list[Tensor]:
        """Return this process's samples of each domain in a step, on the device."""
        if self.ready:
            return [take_rows(x, rows) for x, rows in zip(self.samples, self.rows(step, self.device), strict=True)]
        if self._coming is None or step != self._next:
            self._coming = self._fetch(self._step, range(step, sys.maxsize))
        self._next = step + 1
        return [x.to(self.device, non_blocking=True) for x in next(self._coming)]

    def chunks(self, number: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield all samples of a domain in order, a chunk at a time, on the device, with the rows they are."""
        self.close()
        x = self.samples[number]
        parts = [slice(start, min(start + CHUNK, len(x))) for start in range(0, len(x), CHUNK)]
        if self.ready:
            yield from ((part, x[part]) for part in parts)
            return
        chunks = self._fetch(lambda place: [x[parts[place]]], range(len(parts)))
        for part, (found,) in zip(parts, chunks, strict=True):
            yield part, found.to(self.device, non_blocking=True)

    def close(self) -> None:
        """Stop fetching."""
        self._coming = None

    def _step(self, step: int) -> list[Tensor]:
        return [take_rows(x, rows) for x, rows in zip(self.samples, self.rows(step), strict=True)]

    def _fetch(self, job: Job, numbers: range) -> Iterator[list[Tensor]]:
        pin = self.device.type == "cuda"
        size = sum(int(torch.Size(x.shape[1:]).numel()) * max(CHUNK, stream.batch)
                   for x, stream in zip(self.samples, self.streams, strict=True))  # fmt: skip
        processes = _processes(size) if any(isinstance(x, Encoded) for x in self.samples) else 0
        return _in_processes(job, numbers, processes, pin) if processes else _in_threads(job, numbers, pin)


def take_rows(x: Samples, rows: Tensor) -> Tensor:
    """Return rows by their numbers; for tensors by the call that copies whole rows, many times as fast on a CPU."""
    return torch.index_select(x, 0, rows) if isinstance(x, Tensor) else x[rows]


def size_in_bytes(x: Samples) -> int:
    """Return what samples take in memory, all decoded."""
    return int(torch.Size(x.shape).numel()) * x.dtype.itemsize


def _fits(samples: Sequence[Samples], device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return SHARE * sum(size_in_bytes(x) for x in samples) < free


def _move(x: Samples, device: torch.device) -> Tensor:
    if isinstance(x, Tensor):
        return x.to(device)
    result = torch.empty(tuple(x.shape), dtype=x.dtype, device=device)
    for start in range(0, len(x), CHUNK):
        result[start : start + CHUNK] = x[start : start + CHUNK].to(device)
    return result


def _processes(size: int) -> int:
    """Return how many processes may decode: none where they cannot fork or lack shared memory for their results."""
    if sys.platform != "linux" or not os.path.isdir("/dev/shm"):
        return 0
    room = shutil.disk_usage("/dev/shm").free // (6 * size)  # each holds up to three results; leave as much again
    return min(MOST_PROCESSES, len(os.sched_getaffinity(0)), room)


class _Jobs(torch.utils.data.Dataset[list[Tensor]]):
    def __init__(self, job: Job) -> None:
        self.job = job

    def __getitem__(self, number: int) -> list[Tensor]:
        return self.job(number)


def _in_processes(job: Job, numbers: range, processes: int, pin: bool) -> Iterator[list[Tensor]]:
    """Yield results in order; decoding holds the interpreter often enough to slow down a training loop beside it."""
    loader: torch.utils.data.DataLoader[list[Tensor]] = torch.utils.data.DataLoader(
        _Jobs(job),
        batch_size=None,
        sampler=numbers,
        num_workers=processes,
        pin_memory=pin,
        worker_init_fn=_alone,
        multiprocessing_context="fork",  # nothing has to be sent there
        generator=torch.Generator(),  # leaves the random numbers of the run alone
    )
    yield from loader


def _alone(number: int) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer to answer
    encoded.THREADS = 1


def _in_threads(job: Job, numbers: range, pin: bool) -> Iterator[list[Tensor]]:
    def fetch(number: int) -> list[Tensor]:
        found = job(number)
        return [x.pin_memory() for x in found] if pin else found

    coming: deque[Future[list[Tensor]]] = deque()
    with ThreadPoolExecutor(AHEAD, "graphmsda-feed") as threads:
        try:
            for number in numbers:
                coming.append(threads.submit(fetch, number))
                if len(coming) == AHEAD:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
