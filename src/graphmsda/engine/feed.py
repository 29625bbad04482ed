"""Samples to where training happens: kept there, or fetched ahead of time by other processes or threads.

Which rows a step needs is known from its number alone (`graphmsda.data.sampler`), so fetching ahead needs no queue
whose place would have to be saved: it asks for the rows of the next steps before those steps come.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from graphmsda import parallel
from graphmsda.data.encoded import Encoded
from graphmsda.data.sampler import Stream
from graphmsda.domains import Samples
from graphmsda.engine.ring import DEPTH, Job, Ring
from graphmsda.forked import can_fork, cores
from graphmsda.streaming import chunk_size

AHEAD = 4  # steps that threads fetch in advance
CHUNK = 256
SHARE = 4  # data stay on a GPU when they take less than this part of its free memory
MOST_PROCESSES = 16
MOST_SHARED = 2**30  # bytes of memory shared with them


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
        self._ring: Ring | None = None
        self._next = 0

    def take(self, rows: Tensor) -> list[Tensor]:
        """Return samples of each domain that are `ready`, by their rows on the device, ``(D, B)``."""
        return [take_rows(x, some) for x, some in zip(self.samples, rows, strict=True)]

    def fetch(self, step: int) -> list[Tensor]:
        """Return this process's samples of each domain in a step, on the device, where they are not `ready`."""
        if self._coming is None or step != self._next:
            self.close()
            largest = [(stream.batch, *x.shape[1:]) for x, stream in zip(self.samples, self.streams, strict=True)]
            self._coming = self._fetch(self._step, range(step, sys.maxsize), largest)
        self._next = step + 1
        return next(self._coming)

    def chunks(self, number: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield all samples of a domain in order, a chunk at a time, on the device, with the rows they are."""
        self.close()
        x = self.samples[number]
        size = chunk_size(x.shape[1:], self.device)
        parts = [slice(start, min(start + size, len(x))) for start in range(0, len(x), size)]
        if self.ready:
            yield from ((part, x[part]) for part in parts)
            return
        chunks = self._fetch(lambda place: [x[parts[place]]], range(len(parts)), [(size, *x.shape[1:])])
        for part, (found,) in zip(parts, chunks, strict=True):
            yield part, found
        self.close()

    def close(self) -> None:
        """Stop fetching."""
        self._coming = None
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def _step(self, step: int) -> list[Tensor]:
        rows = [parallel.local_part(stream.batches(range(step, step + 1))[0]) for stream in self.streams]
        return [take_rows(x, some) for x, some in zip(self.samples, rows, strict=True)]

    def _fetch(self, job: Job, numbers: range, largest: Sequence[Sequence[int]]) -> Iterator[list[Tensor]]:
        """Yield ``job(number)`` on the device; only decoding is work enough for processes of its own."""
        kind = self.samples[0].dtype
        size = kind.itemsize * sum(int(torch.Size(shape).numel()) for shape in largest)
        processes = _processes(size) if any(isinstance(x, Encoded) for x in self.samples) else 0
        if not processes:
            return _in_threads(job, numbers, self.device)
        self._ring = Ring(job, numbers, largest, [kind] * len(largest), processes, self.device)
        return iter(self._ring)


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
    """Return how many processes decode results of `size` bytes: what cores and a share of memory allow, if any may."""
    if not can_fork():
        return 0
    share = cores() // parallel.world_size()
    return max(1, min(MOST_PROCESSES, share, MOST_SHARED // (DEPTH * size)))


def _in_threads(job: Job, numbers: range, device: torch.device) -> Iterator[list[Tensor]]:
    """Yield ``job(number)`` on the device, made a few numbers ahead."""

    def fetch(number: int) -> list[Tensor]:
        found = job(number)
        return [x.pin_memory() for x in found] if device.type == "cuda" else found

    coming: deque[Future[list[Tensor]]] = deque()
    with ThreadPoolExecutor(AHEAD, "graphmsda-feed") as threads:
        try:
            for number in numbers:
                coming.append(threads.submit(fetch, number))
                if len(coming) == AHEAD:
                    yield [x.to(device, non_blocking=True) for x in coming.popleft().result()]
            while coming:
                yield [x.to(device, non_blocking=True) for x in coming.popleft().result()]
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
