"""Work done ahead of time by other processes, handed over in memory that all of them share.

A training loop keeps the interpreter busy with launching kernels, so whatever else runs in its process, threads that
decode or receive results included, makes both wait for each other. Here the loop's process only waits for a semaphore
and starts a copy: results lie in anonymous shared memory made before the processes were forked, locked into place for
the GPU to read while the loop goes on.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from graphmsda.forked import quiet_forks, settle

DEPTH = 2  # results that a process makes before it waits for the first to be taken
PATIENCE = 2.0  # seconds between two looks at whether the others are still alive

Job = Callable[[int], list[Tensor]]


class Ring:
    """The results of ``job(number)`` for consecutive numbers, in order, on a device.

    Args:
        job: Makes the tensors of one number; it runs in forked processes.
        numbers: What to make.
        shapes: Of each tensor of a result at its largest; fewer rows are fine.
        dtypes: Of each tensor.
        processes: How many work side by side.
        device: Where results go.
    """

    def __init__(
        self,
        job: Job,
        numbers: range,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[torch.dtype],
        processes: int,
        device: torch.device,
    ) -> None:
        self.job, self.numbers, self.processes, self.device = job, numbers, processes, device
        self.count = DEPTH * processes
        self.slots = [_shared((self.count, *shape), dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        self.rows = _shared((self.count, len(shapes)), torch.int64)
        context = multiprocessing.get_context("fork")  # nothing has to be sent there
        self.free = [context.Semaphore(1) for _ in range(self.count)]
        self.full = [context.Semaphore(0) for _ in range(self.count)]
        self.errors = context.SimpleQueue()
        parent = os.getpid()
        self.workers = [
            context.Process(target=self._work, args=(number, parent), daemon=True) for number in range(processes)
        ]
        with quiet_forks():
            for worker in self.workers:
                worker.start()
        self.pinned = device.type == "cuda" and all(_pin(slot) for slot in self.slots)
        self.taken: deque[tuple[int, torch.cuda.Event]] = deque()

    def __iter__(self) -> Iterator[list[Tensor]]:
        for turn in range(len(self.numbers)):
            slot = turn % self.count
            while not self.full[slot].acquire(timeout=PATIENCE):
                self._check(self.workers[turn % self.processes])
            rows = self.rows[slot].tolist()
            if rows[0] < 0:
                raise RuntimeError(f"a process that fetches samples failed:\n{self.errors.get()}")
            # Copies: the slot will be written again.
            result = [
                x[slot, :count].to(self.device, non_blocking=self.pinned, copy=True)
                for x, count in zip(self.slots, rows, strict=True)
            ]
            self._release(slot)
            yield result

    def close(self) -> None:
        """End the processes and give back the memory."""
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.join()
        if self.pinned:
            torch.cuda.synchronize(self.device)  # no copy may be on its way
            for slot in self.slots:
                torch.cuda.cudart().cudaHostUnregister(slot.data_ptr())  # type: ignore[no-untyped-call]
            self.pinned = False

    def _release(self, slot: int) -> None:
        """Let a slot be written again, once the copy out of it has been made."""
        if not self.pinned:
            self.free[slot].release()
            return
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self.taken.append((slot, event))
        while len(self.taken) > self.processes or (self.taken and self.taken[0][1].query()):  # type: ignore[no-untyped-call]
            slot, event = self.taken.popleft()
            event.synchronize()
            self.free[slot].release()

    def _check(self, worker: Any) -> None:
        if not worker.is_alive():
            raise RuntimeError(
                f"a process that fetches samples ended with code {worker.exitcode}, perhaps for want of memory"
            )

    def _work(self, number: int, parent: int) -> None:
        settle()
        for turn in range(number, len(self.numbers), self.processes):
            slot = turn % self.count
            while not self.free[slot].acquire(timeout=PATIENCE):
                if os.getppid() != parent:  # the trainer was killed
                    os._exit(1)
            try:
                for place, x in enumerate(self.job(self.numbers[turn])):
                    self.slots[place][slot, : len(x)] = x
                    self.rows[slot, place] = len(x)
            except Exception:
                self.errors.put(traceback.format_exc())
                self.rows[slot, 0] = -1
            self.full[slot].release()


def _shared(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros in memory that forks share; unlike /dev/shm it is not short in containers.

    The channels of images ``(..., 3, H, W)`` lie last in memory, as decoders give them.
    """
    images = len(shape) == 5
    if images:
        shape = (*shape[:2], *shape[3:], shape[2])
    size = torch.Size(shape).numel()
    x = torch.frombuffer(mmap.mmap(-1, max(1, size * dtype.itemsize)), dtype=dtype, count=size).view(tuple(shape))
    return x.permute(0, 1, 4, 2, 3) if images else x


def _pin(x: Tensor) -> bool:
    """Lock memory into place, so that a GPU can read it by itself; return whether that went well."""
    return int(torch.cuda.cudart().cudaHostRegister(x.data_ptr(), x.numel() * x.element_size(), 0)) == 0  # type: ignore[no-untyped-call]
