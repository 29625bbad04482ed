"""Work spread over forked processes, which find what they work on in their copy of the memory.

Nothing has to be pickled but results, and unlike spawned processes they need no importable main module. Where forking
is not to be had, threads share the work.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from graphmsda.errors import UserError

Input = TypeVar("Input")
Result = TypeVar("Result")

AHEAD = 3  # inputs handed out in advance to each process, so that memory does not grow with their number

_job: Callable[[Any], Any] | None = None
_awaited: list[threading.Thread] = []


def can_fork() -> bool:
    """Whether this process may start others that share its memory."""
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_in_order(
    job: Callable[[Input], Result], inputs: Sequence[Input], *, what: str, processes: int | None = None
) -> Iterator[Result]:
    """Yield ``job(input)`` for each of the inputs, in order, made by as many processes as there are cores.

    Args:
        job: The work. Processes run it with one thread.
        inputs: Handed to it one by one.
        what: What the work is done for, for the sentence on a process that was killed.
        processes: How many at most; 1 does everything here.
    """
    global _job
    workers = min(cores() if processes is None else processes, len(inputs))
    if workers < 2 or multiprocessing.current_process().daemon:
        yield from map(job, inputs)
        return
    fork = can_fork()
    _job = job
    waiting: deque[Future[Result]] = deque()
    with quiet_forks():
        pool: Executor = (
            ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), initializer=settle)
            if fork
            else ThreadPoolExecutor(workers)
        )
        try:
            for one in inputs:
                waiting.append(pool.submit(_run, one) if fork else pool.submit(job, one))
                if len(waiting) > AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise UserError(
                f"{what}: a process that worked on it was killed, perhaps for want of memory; "
                "run the same command again, or with more memory"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            _job = None


def wait_before_forks(thread: threading.Thread) -> None:
    """Have forks wait for a thread that imports: a process forked in the middle of that could never import the same.

    Those of this package wait before Python prepares to fork, so that what is imported meanwhile may prepare, too.
    """
    _awaited.append(thread)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=partial(_wait_for, thread))


def _wait_for(thread: threading.Thread) -> None:
    if thread is not threading.current_thread():
        thread.join()


@contextmanager
def quiet_forks() -> Iterator[None]:
    """Silence newer Pythons on forking beside threads: our children touch nothing that those may hold."""
    while _awaited:
        _wait_for(_awaited.pop())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
        yield


def settle() -> None:
    """Make a forked process leave signals to its parent and keep to one thread."""
    import torch

    from graphmsda.data import encoded, images

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to answer
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)  # a fork must not enter the parent's thread pool
    images.THREADS = encoded.THREADS = 1


def _run(one: Any) -> Any:
    assert _job is not None
    return _job(one)
