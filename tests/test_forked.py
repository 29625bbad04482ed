"""Work spread over processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from graphmsda import forked
from graphmsda.errors import UserError
from graphmsda.forked import can_fork, map_in_order, quiet_forks, wait_before_forks


@pytest.mark.parametrize("fork", [True, False])
@pytest.mark.parametrize("processes", [1, 3, 100])
def test_results_come_in_order(monkeypatch: pytest.MonkeyPatch, processes: int, fork: bool) -> None:
    monkeypatch.setattr(forked, "can_fork", lambda: fork and can_fork())
    offset = 7  # a function made here cannot be pickled, and need not be
    found = list(map_in_order(lambda number: number + offset, range(50), what="it", processes=processes))
    assert found == list(range(7, 57))


def test_others_do_the_work() -> None:
    if not can_fork():
        pytest.skip("processes are forked on Linux alone")
    assert os.getpid() not in map_in_order(lambda _: os.getpid(), range(4), what="it", processes=2)
    assert {os.getpid()} == set(map_in_order(lambda _: os.getpid(), range(4), what="it", processes=1))


def test_no_inputs() -> None:
    assert list(map_in_order(str, [], what="it")) == []


def test_a_few_in_advance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "can_fork", lambda: False)
    begun: list[int] = []
    results = map_in_order(begun.append, range(1000), what="it", processes=2)
    next(results)
    assert len(begun) <= 2 * forked.AHEAD + 1
    results.close()


def test_errors_and_deaths() -> None:
    def fails(number: int) -> None:
        raise ValueError("seven")

    with pytest.raises(ValueError, match="seven"):
        list(map_in_order(fails, range(3), what="it", processes=2))
    if can_fork():
        with pytest.raises(UserError, match="it: a process that worked on it was killed"):
            list(map_in_order(lambda _: os.kill(os.getpid(), signal.SIGKILL), range(3), what="it", processes=2))


def test_threads_that_import_are_waited_for_before_anything_is_forked() -> None:
    thread = threading.Thread(target=time.sleep, args=(0.2,))
    thread.start()
    wait_before_forks(thread)
    with quiet_forks():
        assert not thread.is_alive()


def test_what_is_imported_while_a_fork_waits_may_prepare_for_it_too() -> None:
    """A package that registers work around forks must not find the second half of it called without the first."""
    text = """
import os, threading, time
from graphmsda.forked import map_in_order, wait_before_forks
ready = []
def work():
    time.sleep(0.3)
    os.register_at_fork(before=lambda: ready.append(1), after_in_parent=lambda: ready.pop())
thread = threading.Thread(target=work)
thread.start()
wait_before_forks(thread)
print(list(map_in_order(abs, [-1, -2, -3], what="it", processes=2)), ready)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[1, 2, 3] []\n", "")
