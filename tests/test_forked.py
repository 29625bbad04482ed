"""Work spread over processes."""

from __future__ import annotations

import os
import signal

import pytest

from graphmsda import forked
from graphmsda.errors import UserError
from graphmsda.forked import can_fork, map_in_order


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
