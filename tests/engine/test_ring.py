"""Work done ahead by other processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from graphmsda.engine.ring import DEPTH, Ring
from graphmsda.forked import can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="processes are forked on Linux alone")

CPU = torch.device("cpu")


def job(number: int) -> list[torch.Tensor]:
    """Two tensors; the first has fewer rows for odd numbers."""
    return [torch.full((4 - number % 2, 3, 2, 2), number, dtype=torch.uint8), torch.arange(5) + number]


def ring(numbers: range, processes: int = 3, work=job) -> Ring:
    return Ring(work, numbers, [(4, 3, 2, 2), (5,)], [torch.uint8, torch.int64], processes, CPU)


@pytest.mark.parametrize("processes", [1, 3])
def test_results_come_in_order(processes: int) -> None:
    made = ring(range(7, 40), processes)
    found = list(made)
    made.close()
    assert len(found) == 33
    for number, result in zip(range(7, 40), found, strict=True):
        assert all(torch.equal(here, there) for here, there in zip(result, job(number), strict=True))


def test_fewer_numbers_than_processes() -> None:
    made = ring(range(2))
    assert [int(first[0, 0, 0, 0]) for first, _ in made] == [0, 1]
    made.close()


def test_no_more_is_made_ahead_than_there_is_room_for() -> None:
    made = ring(range(sys.maxsize), 2)
    next(iter(made))
    time.sleep(0.5)
    assert int(made.rows.ne(0).any(1).sum()) <= 2 * DEPTH
    made.close()
    assert not any(worker.is_alive() for worker in made.workers)


def test_a_failure_is_told_where_the_result_was_wanted() -> None:
    def fails(number: int) -> list[torch.Tensor]:
        if number == 2:
            raise ValueError("no such picture")
        return job(number)

    made = ring(range(5), 2, fails)
    results = iter(made)
    next(results), next(results)
    with pytest.raises(RuntimeError, match="no such picture"):
        next(results)
    made.close()


def test_a_killed_process_is_noticed() -> None:
    def dies(number: int) -> list[torch.Tensor]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    made = ring(range(5), 2, dies)
    with pytest.raises(RuntimeError, match="ended with code -9"):
        next(iter(made))
    made.close()


def test_processes_end_with_a_killed_trainer() -> None:
    code = (
        "import sys, time, torch\n"
        "from graphmsda.engine.ring import Ring\n"
        "job = lambda number: [torch.zeros(1, dtype=torch.int64)]\n"
        "made = Ring(job, range(sys.maxsize), [(1,)], [torch.int64], 2, torch.device('cpu'))\n"
        "print(*(worker.pid for worker in made.workers), flush=True)\n"
        "time.sleep(600)\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    workers = [int(number) for number in trainer.stdout.readline().split()]
    assert len(workers) == 2
    trainer.kill()
    trainer.wait()
    deadline = time.monotonic() + 60
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(map(alive, workers))


def alive(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"  # the dead may wait to be buried
    except FileNotFoundError:
        return False
