"""Cells as tasks of a Ray cluster, each with its share of CPUs and GPUs.

Ray decides where a cell is worked on, and tells of workers and machines that are lost. Who has a cell is still decided
in the study's folder alone, so Ray may run a task anywhere and at any time, and other commands may work on the same
folder. The folder lies on a file system that all machines of the cluster share, under the same path.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from graphmsda import __version__
from graphmsda.engine.signals import stop_on_signal
from graphmsda.errors import UserError
from graphmsda.study import attempts
from graphmsda.study.cells import STUDY
from graphmsda.study.executors import Executor
from graphmsda.study.work import MOST_LOST, Item, Outcome, Work, work_on

POLL = 1.0  # seconds between two looks at cells whose worker is lost
PATIENCE = 60.0  # seconds that tasks may take to save what they were doing
PASSED_ON = ("GRAPHMSDA_DATA", "GRAPHMSDA_CACHE")  # what a machine of the cluster does not say itself


@dataclass(frozen=True)
class Caller:
    """What a task has to know of the process that asks: its version, working folder and part of its environment."""

    version: str
    folder: str
    environment: Mapping[str, str]


def choose_ray(address: str | None, cpus: float | None, gpus: float | None, device: str) -> tuple[Executor, int]:
    """Connect to a cluster and return the executor, and how many cells fit on the cluster at a time.

    Args:
        address: Of the cluster; by default ``$RAY_ADDRESS``, and without that one of this machine alone is started.
        cpus: CPUs of each cell; by default 1.
        gpus: GPUs of each cell, such as 0.25; by default 1 where the cluster has any.
        device: ``cpu`` where no GPU is wanted.
    """
    for name, given in (("cpus", cpus), ("gpus", gpus)):
        if given is not None and not (0 <= given < float("inf") and (given < 1 or given == int(given))):
            raise UserError(f"--{name}-per-run {given:g}: out of range; give a fraction below 1 or a whole number")
    connect(address)
    import ray

    if gpus is None:
        gpus = 1.0 if device != "cpu" and ray.cluster_resources().get("GPU") else 0.0
    cpus = 1.0 if cpus is None else cpus
    fitting = capacity(cpus, gpus)
    if not fitting:
        print(
            f"graphmsda: no machine of the Ray cluster has {cpus:g} CPUs and {gpus:g} GPUs; cells wait until one joins",
            file=sys.stderr,
        )
    return partial(on_ray, cpus=cpus, gpus=gpus), max(1, fitting)


def connect(address: str | None) -> None:
    """Connect to a cluster, unless this process is connected."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--executor ray: Ray is not installed; run pip install 'graphmsda[ray]'") from error
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a study tells nobody of itself
    try:
        host, _, port = (address or "").rpartition(":")
        if host and port.isdigit() and "/" not in host:  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())[:300]
        raise UserError(
            f"--address {address}: no Ray cluster can be used there ({said}); give HOST:PORT of its head, or auto on a "
            "machine of the cluster"
        ) from error


def capacity(cpus: float, gpus: float) -> int:
    """Return how many tasks with such shares fit on the cluster at a time."""
    import ray

    wanted = {"CPU": cpus, "GPU": gpus}
    found = 0
    for node in ray.nodes():
        has = node["Resources"] if node["Alive"] else {}
        found += min((int(has.get(name, 0) / share) for name, share in wanted.items() if share), default=1)
    return found


def on_ray(work: Work, items: Sequence[Item], *, cpus: float, gpus: float) -> Generator[Outcome]:
    """Hand all items to Ray and yield what comes of them; those of lost workers are handed out again.

    Ray's own retries are off: only here is it known whether a lost worker's attempt may be given up. One on this
    machine is, as soon as its process is gone. One elsewhere has to stand still for a while, for a machine that Ray
    does not reach may be alive and writing.
    """
    import ray

    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_in_task)
    caller = Caller(__version__, os.getcwd(), {name: os.environ[name] for name in PASSED_ON if name in os.environ})
    shared = (replace(work, gpus=()), caller, max(1, int(cpus)))
    pending: dict[Any, Item] = {}
    orphans: dict[Path, tuple[Item, int]] = {}
    losses: Counter[str] = Counter()
    watch = attempts.Watch()

    def submit(item: Item) -> None:
        pending[task.remote(shared, item)] = item

    try:
        # Ray's own remarks belong to standard error, as standard output is for tables. An interrupt that its calls hear
        # may be lost in them, so that this loop asks for it.
        with redirect_stdout(sys.stderr), stop_on_signal() as stopped:
            for item in items:
                submit(item)
            while pending or orphans:
                if stopped():
                    raise KeyboardInterrupt
                if not pending:
                    time.sleep(POLL)
                for ref in ray.wait(list(pending), timeout=POLL)[0] if pending else ():
                    item = pending.pop(ref)
                    outcome, lost = _result(ray, ref)
                    if outcome is not None:
                        yield outcome
                        continue
                    losses[item.cell.path] += 1
                    if losses[item.cell.path] <= MOST_LOST:  # beyond that the study decides
                        place = work.out / "cells" / item.cell.path
                        orphans[place] = item, attempts.newest(place)[0]
                        print(f"graphmsda: {item.cell.label}: {lost}; another takes it over", file=sys.stderr)
                for place, (item, number) in list(orphans.items()):
                    alive, given_up = watch.look(place)
                    if not alive:
                        submit(replace(item, lost=given_up))
                    if not alive or attempts.newest(place)[0] > number:  # else another command has it by now
                        del orphans[place]
    finally:
        for ref in pending:
            ray.cancel(ref, force=False)  # as Ctrl-C: training saves where it stands
        if pending:
            ray.wait(list(pending), num_returns=len(pending), timeout=PATIENCE)


def _result(ray: Any, ref: Any) -> tuple[Outcome | None, str]:
    """Return what a task gave, or how it was lost."""
    try:
        return ray.get(ref), ""
    except ray.exceptions.TaskCancelledError as error:
        raise KeyboardInterrupt from error
    except ray.exceptions.RayTaskError as error:  # `work_on` raises nothing: the machine is not fit for any cell
        cause = getattr(error, "cause", None)
        told = str(cause) if isinstance(cause, UserError) else f"Ray cannot run cells: {str(error).split(chr(10))[-1]}"
        raise UserError(told) from error
    except ray.exceptions.OutOfMemoryError:
        return None, "Ray ended its worker for want of memory"
    except ray.exceptions.RayError as error:
        return None, f"its Ray worker was lost ({type(error).__name__})"


def _in_task(shared: tuple[Work, Caller, int], item: Item) -> Outcome:
    """Work on a cell in a process of the cluster."""
    import torch

    from graphmsda.data import encoded, images

    (work, caller, threads), node = shared, socket.gethostname()
    if caller.version != __version__:
        raise UserError(
            f"--executor ray: the machine {node} has graphmsda {__version__} and this command is of {caller.version}; "
            "install the same on both"
        )
    with suppress(OSError):
        os.chdir(caller.folder)  # to which paths may relate
    if not (work.out / STUDY).is_file():
        raise UserError(
            f"--out {work.out}: not there on the machine {node} of the Ray cluster; give a folder on a file system "
            "that all its machines share"
        )
    for name, value in caller.environment.items():
        os.environ.setdefault(name, value)
    torch.set_num_threads(threads)
    images.THREADS = encoded.THREADS = threads
    return work_on(work, item)
