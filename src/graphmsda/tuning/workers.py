"""Training runs side by side in processes of their own, which stop politely when their parent does.

The processes are spawned, not forked, since a forked one cannot use the GPU.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, TypeVar

from graphmsda.errors import UserError
from graphmsda.forked import cores

Input = TypeVar("Input")
Result = TypeVar("Result")

PATIENCE = 60.0  # seconds that an orphan may take to save what it was doing

_stopping = threading.Event()
_busy = threading.Lock()


def map_in_processes(
    job: Callable[[Input], Result], inputs: Sequence[Input], *, jobs: int
) -> Generator[tuple[int, Result]]:
    """Yield the number of each input with ``job(input)``, as they are done; the cores are shared out among the jobs.

    Ctrl-C or a polite kill reaches the processes as a polite kill, upon which `graphmsda.engine.fit.fit` saves where
    it stands; then `KeyboardInterrupt` is raised here.

    Args:
        job: The work; it and the inputs have to be picklable.
        inputs: Handed to it one by one.
        jobs: Number of processes.
    """
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        jobs, multiprocessing.get_context("spawn"), initializer=_settle, initargs=(max(1, cores() // jobs),)
    )
    try:
        with _terminate_as_interrupt():
            futures = {pool.submit(_one, job, item): number for number, item in enumerate(inputs)}
            for future in as_completed(futures):
                yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise UserError(
            f"one of {jobs} processes was killed, perhaps for want of memory; the same command goes on, better with "
            "fewer --jobs"
        ) from error
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        raise
    finally:
        try:
            pool.shutdown(wait=True, cancel_futures=True)
        except KeyboardInterrupt:  # a second Ctrl-C: what is not saved by now is not wanted
            for child in set(multiprocessing.active_children()) - before:
                child.kill()
            raise


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """Make a polite kill what Ctrl-C is."""
    if threading.current_thread() is not threading.main_thread():  # only it hears signals
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _settle(threads: int) -> None:
    """Make a process hear its parent alone, follow it when it dies, and keep to its share of the cores."""
    import torch

    from graphmsda.data import encoded, images

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "setsid"):
        os.setsid()  # Ctrl-C goes to all processes of a terminal: the parent passes it on, once
    signal.signal(signal.SIGTERM, _stop)
    threads = min(threads, torch.get_num_threads())  # which a user's OMP_NUM_THREADS may have set lower
    torch.set_num_threads(threads)
    images.THREADS = encoded.THREADS = threads
    threading.Thread(target=_follow_parent, daemon=True).start()


def _stop(number: int, frame: object) -> None:
    """Leave the work at hand, such as reading data; training answers the signal itself and saves first."""
    _stopping.set()
    if _busy.locked():
        raise KeyboardInterrupt


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        _busy.acquire(timeout=PATIENCE)
        os._exit(1)


def _one(job: Callable[[Any], Any], item: Any) -> Any:
    with _busy:
        if _stopping.is_set():  # handed out before the parent changed its mind
            raise KeyboardInterrupt
        try:
            return job(item)
        except KeyboardInterrupt:
            _stopping.set()
            raise
