"""Who has a cell: one of many, until it ends or vanishes."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from graphmsda.study import attempts
from graphmsda.study.attempts import DONE, FAILED, RUNNING, STOPPED, Watch, newest, take

FORK = multiprocessing.get_context("fork")


def contend(place: Path, ready: Any, won: Any) -> None:
    ready.wait()
    if take(place) is not None:
        with won.get_lock():
            won.value += 1
    time.sleep(0.5)  # so that nobody is gone before all have tried


def test_one_of_many_processes_gets_a_cell(tmp_path: Path) -> None:
    for number in range(3):
        place = tmp_path / str(number)
        ready, won = FORK.Barrier(6), FORK.Value("i", 0)
        processes = [FORK.Process(target=contend, args=(place, ready, won)) for _ in range(6)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert won.value == 1
        assert newest(place)[0] == 1


def test_one_of_many_threads_gets_a_cell_that_was_given_up(tmp_path: Path) -> None:
    place = tmp_path / "cell"
    other(place)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: take(place, lost=1), range(8)))
    assert sum(attempt is not None for attempt in found) == 1
    assert newest(place)[0] == 2


def other(place: Path, **more: Any) -> None:
    """Write an attempt of another machine."""
    place.mkdir(parents=True, exist_ok=True)
    about = {"state": RUNNING, "host": "elsewhere", "pid": 1, "started": "1", "beat": 0, **more}
    (place / f"attempt-{newest(place)[0] + 1}.json").write_text(json.dumps(about))


def test_how_it_ends_is_kept(tmp_path: Path) -> None:
    first = take(tmp_path)
    assert first is not None
    assert take(tmp_path) is None
    first.end(FAILED, "no luck")
    second = take(tmp_path)
    assert second is not None
    assert second.number == 2
    assert not first.is_mine()
    second.end(STOPPED)
    third = take(tmp_path)
    assert third is not None
    third.end(FAILED, "again")
    assert attempts.errors(tmp_path) == ["no luck", "again"]
    assert newest(tmp_path)[1]["state"] == FAILED
    fourth = take(tmp_path)
    assert fourth is not None
    fourth.end(DONE)
    assert not list(tmp_path.glob(".*"))


def hold(place: Path, held: Any) -> None:
    take(place)
    held.set()
    time.sleep(60)


def test_a_killed_process_of_this_machine_is_noticed_at_once(tmp_path: Path) -> None:
    held = FORK.Event()
    process = FORK.Process(target=hold, args=(tmp_path, held))
    process.start()
    held.wait()
    assert Watch().look(tmp_path) == (True, 0)
    assert take(tmp_path) is None
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    for _ in range(100):  # it need not be waited for: a zombie is gone too
        if Watch().look(tmp_path) == (False, 0):
            break
        time.sleep(0.05)
    assert take(tmp_path) is not None
    process.join()


def test_a_number_used_by_another_process_does_not_count(tmp_path: Path) -> None:
    other(tmp_path, host=attempts.host(), pid=os.getpid(), started="0")
    assert Watch().look(tmp_path) == (False, 0)


def test_another_machine_is_given_up_when_it_stands_still(tmp_path: Path) -> None:
    watch = Watch(patience=0.2)
    other(tmp_path)
    assert watch.look(tmp_path) == (True, 0)
    time.sleep(0.15)
    other_beats = json.loads((tmp_path / "attempt-1.json").read_text()) | {"beat": 1}
    (tmp_path / "attempt-1.json").write_text(json.dumps(other_beats))
    assert watch.look(tmp_path) == (True, 0)
    time.sleep(0.15)
    assert watch.look(tmp_path) == (True, 0)  # less than its patience since the last sign of life
    time.sleep(0.15)
    assert watch.look(tmp_path) == (False, 1)
    assert take(tmp_path) is None
    taken = take(tmp_path, lost=1)
    assert taken is not None
    assert taken.number == 2
    assert take(tmp_path, lost=1) is None  # whoever gave up the first has not given up the second


def test_signs_of_life_come_by_themselves_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "BEAT", 0.02)
    attempt = take(tmp_path)
    assert attempt is not None
    for _ in range(200):
        if newest(tmp_path)[1].get("beat", 0) >= 2:
            break
        time.sleep(0.02)
    assert newest(tmp_path)[1]["beat"] >= 2
    attempt.end(DONE)
    before = newest(tmp_path)[1]
    time.sleep(0.1)
    assert newest(tmp_path)[1] == before
    assert before["state"] == DONE


def test_an_unfinished_file_counts_as_running(tmp_path: Path) -> None:
    (tmp_path / "attempt-1.json").write_text("")
    assert take(tmp_path) is None
    assert Watch().look(tmp_path) == (True, 0)
    assert Watch(patience=0.0).look(tmp_path) == (False, 1)
