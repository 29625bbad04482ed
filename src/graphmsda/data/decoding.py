"""A whole listing through all cores, in order."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import torch

from graphmsda.data import images
from graphmsda.data.images import Decoded
from graphmsda.data.listing import Listing
from graphmsda.errors import UserError

CHUNK = 128  # pictures handed to a process at a time
FEW = 1_000  # pictures below which starting processes costs more than it saves

Pack = Callable[[Decoded], list[bytes]]
Chunk = tuple[int, list[bytes], list[tuple[int, str]], int]  # first item, samples, failures, number of items

_job: tuple[Listing, int, Pack] | None = None  # what forked processes find in their copy of the memory


def decode_in_order(listing: Listing, image_size: int, pack: Pack) -> Iterator[Chunk]:
    """Decode a listing chunk by chunk, each sample packed into bytes, with as many processes as there are cores.

    Small pictures keep the interpreter busier than the decoder, so threads would not do. Processes are forked, which
    needs no importable main module; where that is not possible or not worth it this process does all.
    """
    starts = range(0, len(listing), CHUNK)
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, len(starts))
    if len(listing) < FEW or workers < 2 or sys.platform != "linux" or multiprocessing.current_process().daemon:
        for start in starts:
            yield _decode(listing, start, image_size, pack)
        return
    global _job
    _job = (listing, image_size, pack)
    waiting: deque[Future[Chunk]] = deque()
    with warnings.catch_warnings():
        # Newer Pythons warn of forking with other threads alive; ours only draw the progress bar.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
        pool = ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), initializer=_alone)
        try:
            for start in starts:  # a few in advance, so that memory does not grow with the listing
                waiting.append(pool.submit(_decode_job, start))
                if len(waiting) > 3 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise UserError(
                f"{listing.origin}: a process that decoded its pictures was killed, perhaps for want of memory; "
                "run the same command again, or with more memory"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            _job = None


def _alone() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
    images.THREADS = 1
    torch.set_num_threads(1)  # a fork must not enter the parent's thread pool


def _decode_job(start: int) -> Chunk:
    assert _job is not None
    return _decode(_job[0], start, *_job[1:])


def _decode(listing: Listing, start: int, image_size: int, pack: Pack) -> Chunk:
    indices = range(start, min(start + CHUNK, len(listing)))
    decoded = listing.read(indices, image_size)
    return start, pack(decoded), decoded.failures, len(indices)
