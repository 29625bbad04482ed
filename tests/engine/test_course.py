"""The numbers of each step lie on the device ahead of time, and are those that streams and formulas give."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from graphmsda import parallel
from graphmsda.data.sampler import Stream, seed_of
from graphmsda.engine import course
from graphmsda.engine.course import SHARED, WINDOW, Course, Moment
from graphmsda.engine.optim import learning_rate
from graphmsda.engine.settings import Settings
from tests.conftest import feature_task

CPU = torch.device("cpu")
BATCH = 7


def make(**given: Any) -> tuple[Settings, list[Stream], Course]:
    options = {"epochs": 3, "steps_per_epoch": 200, "batch_size": BATCH, "seed": 5, "lr": 0.1, "device": "cpu"}
    settings = Settings(**(options | given)).resolved(feature_task())
    streams = [Stream(size, BATCH, seed) for seed, size in enumerate((20, 33, 5))]
    return settings, streams, Course(settings, streams, CPU)


def assert_is_step(found: Moment, step: int, settings: Settings, streams: list[Stream]) -> None:
    rows = torch.stack([stream.batches(range(step, step + 1))[0] for stream in streams])
    assert torch.equal(found.rows, rows)
    assert found.rows.dtype == found.seed.dtype == torch.int64
    assert float(found.rate) == pytest.approx(learning_rate(settings, step / settings.steps), rel=1e-6)
    assert float(found.progress) == pytest.approx(step / settings.steps, rel=1e-6)
    assert int(found.seed) == seed_of(settings.seed, SHARED, step)
    assert all(x.shape == () for x in (found.rate, found.progress, found.seed))


@pytest.mark.parametrize("given", [{}, {"schedule": "constant", "seed": 6}])
def test_every_step_has_its_numbers(given: dict[str, Any]) -> None:
    settings, streams, numbers = make(**given)
    for step in range(2 * WINDOW + 2):  # over two borders of the tables
        numbers.prepare(step)
        found = numbers.read()
        if step < 3 or min(step % WINDOW, -step % WINDOW) < 3:
            assert_is_step(found, step, settings, streams)


@pytest.mark.parametrize("first", [1, WINDOW - 1, WINDOW, 577, 599])
def test_a_run_goes_on_anywhere(first: int) -> None:
    settings, streams, numbers = make()
    for step in range(first, first + 3):  # the last of these lies behind the end of the run, where tables may reach
        numbers.prepare(step)
        assert_is_step(numbers.read(), step, settings, streams)


def test_jumps_and_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "WINDOW", 4)
    settings, streams, numbers = make()
    for step in (0, 1, 1, 1, 2, 9, 10, 11, 12, 13, 3, 4, 4, 0, 0, 4, 8):
        numbers.prepare(step)
        assert_is_step(numbers.read(), step, settings, streams)


def test_a_step_prepared_twice_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when an attempt fails before it reads, and the step is taken anew."""
    monkeypatch.setattr(course, "WINDOW", 4)
    settings, streams, numbers = make()
    for step in range(10):
        numbers.prepare(step)
        numbers.prepare(step)
        assert_is_step(numbers.read(), step, settings, streams)


def test_reading_moves_on_without_the_host() -> None:
    settings, streams, numbers = make()
    numbers.prepare(40)
    for step in range(40, 45):
        assert_is_step(numbers.read(), step, settings, streams)


def test_tables_are_filled_once_a_window_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "WINDOW", 4)
    _, _, numbers = make()
    filled: list[range] = []
    tables = numbers._tables
    monkeypatch.setattr(numbers, "_tables", lambda steps: filled.append(steps) or tables(steps))
    places = {name: x.data_ptr() for name, x in vars(numbers).items() if isinstance(x, torch.Tensor)}
    for step in range(10):
        numbers.prepare(step)
        numbers.read()
    assert filled == [range(4), range(4, 8), range(8, 12)]
    assert len(places) == 4
    # A captured step reads where the tables lay when it was captured.
    assert places == {name: x.data_ptr() for name, x in vars(numbers).items() if isinstance(x, torch.Tensor)}


def test_numbers_once_read_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "WINDOW", 2)
    settings, streams, numbers = make()
    numbers.prepare(0)
    first = numbers.read()
    for step in range(1, 6):
        numbers.prepare(step)
        numbers.read()
    assert_is_step(first, 0, settings, streams)


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_a_batch(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, streams, whole = make()
    monkeypatch.setattr(course, "WINDOW", 4)
    monkeypatch.setattr(parallel, "world_size", lambda: processes)
    found: list[list[Moment]] = []
    for rank in range(processes):
        monkeypatch.setattr(parallel, "rank", lambda rank=rank: rank)
        numbers = Course(settings, streams, CPU)
        found.append([])
        for step in range(6):
            numbers.prepare(step)
            found[-1].append(numbers.read())
    monkeypatch.undo()
    for step, parts in enumerate(zip(*found, strict=True)):
        whole.prepare(step)
        expected = whole.read()
        assert torch.equal(torch.cat([part.rows for part in parts], dim=1), expected.rows)
        widths = [part.rows.shape[1] for part in parts]
        assert max(widths) - min(widths) <= 1
        for part in parts:
            joint = dataclasses.replace(part, rows=expected.rows)
            assert_is_step(joint, step, settings, streams)
