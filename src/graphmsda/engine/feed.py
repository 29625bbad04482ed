"""Samples to where training happens: kept there, or fetched ahead of time by other threads.

Which rows a step needs is known from its number alone (`graphmsda.data.sampler`), so fetching ahead needs no queue
whose place would have to be saved: it asks for the rows of the next steps before those steps come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from graphmsda import parallel
from graphmsda.data.sampler import Stream
from graphmsda.domains import Samples

AHEAD = 4  # steps fetched in advance
CHUNK = 256
SHARE = 4  # data stay on a GPU when they take less than this part of its free memory


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
        self._threads = None if self.ready else ThreadPoolExecutor(len(self.samples), "graphmsda-feed")
        self._coming: dict[int, list[Future[Tensor]]] = {}

    def rows(self, step: int) -> list[Tensor]:
        """Return the rows that this process takes of each domain in a step, int64 on the CPU."""
        return [parallel.local_part(stream.indices(step)) for stream in self.streams]

    def batch(self, step: int) -> list[Tensor]:
        """Return this process's samples of each domain in a step, on the device."""
        if self._threads is None:
            return [take_rows(x, rows.to(self.device)) for x, rows in zip(self.samples, self.rows(step), strict=True)]
        for coming in range(step, step + AHEAD):
            if coming not in self._coming:
                self._coming[coming] = [
                    self._threads.submit(self._fetch, x, rows)
                    for x, rows in zip(self.samples, self.rows(coming), strict=True)
                ]
        for past in [number for number in self._coming if number < step]:
            del self._coming[past]
        return [self._arrive(future) for future in self._coming.pop(step)]

    def chunks(self, number: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield all samples of a domain in order, a chunk at a time, on the device, with the rows they are."""
        x = self.samples[number]
        parts = [slice(start, min(start + CHUNK, len(x))) for start in range(0, len(x), CHUNK)]
        if self._threads is None:
            yield from ((part, x[part]) for part in parts)
            return
        coming: list[Future[Tensor]] = []
        for place, part in enumerate(parts):
            while len(coming) < min(place + AHEAD, len(parts)):
                coming.append(self._threads.submit(self._fetch, x, parts[len(coming)]))
            yield part, self._arrive(coming[place])
            coming[place] = Future()  # the samples may go

    def close(self) -> None:
        """Stop fetching."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, x: Samples, rows: Tensor | slice) -> Tensor:
        found = take_rows(x, rows) if isinstance(rows, Tensor) else x[rows]
        return found.pin_memory() if self.device.type == "cuda" else found

    def _arrive(self, future: Future[Tensor]) -> Tensor:
        return future.result().to(self.device, non_blocking=True)


def take_rows(x: Samples, rows: Tensor) -> Tensor:
    """Return rows by their numbers; for tensors by the call that copies whole rows, many times as fast on a CPU."""
    return torch.index_select(x, 0, rows) if isinstance(x, Tensor) else x[rows]


def _fits(samples: Sequence[Samples], device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return SHARE * sum(size_in_bytes(x) for x in samples) < free


def size_in_bytes(x: Samples) -> int:
    """Return what samples take in memory, all decoded."""
    return int(torch.Size(x.shape).numel()) * x.dtype.itemsize


def _move(x: Samples, device: torch.device) -> Tensor:
    if isinstance(x, Tensor):
        return x.to(device)
    result = torch.empty(tuple(x.shape), dtype=x.dtype, device=device)
    for start in range(0, len(x), CHUNK):
        result[start : start + CHUNK] = x[start : start + CHUNK].to(device)
    return result
