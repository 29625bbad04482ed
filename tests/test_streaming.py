"""Parts of a long input keep their order and their errors while the next is read during the work on this one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from graphmsda.streaming import MOST, chunk_size, one_behind, overlap, pieces, to_host

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_results_come_in_order() -> None:
    for count in (0, 1, 2, 7):
        assert list(overlap(lambda n: n * n, lambda n: n + 1, range(count))) == [n * n + 1 for n in range(count)]


def test_the_next_part_is_read_by_another_thread_during_the_work() -> None:
    reading = [threading.Event() for _ in range(4)]
    readers = set()

    def read(number: int) -> int:
        readers.add(threading.current_thread())
        reading[number].set()
        return number

    def work(number: int) -> int:
        if number < 3:
            assert reading[number + 1].wait(30)  # would never come if reading waited for the work
        return number

    assert list(overlap(read, work, range(4))) == [0, 1, 2, 3]
    assert len(readers) == 1
    assert threading.current_thread() not in readers


def test_no_more_than_the_next_part_is_read_and_nothing_during_the_answer() -> None:
    done: list[str] = []
    parts = overlap(lambda n: done.append(f"read {n}") or n, lambda n: done.append(f"work {n}") or n, range(5))
    assert done == []
    assert next(parts) == 0
    assert sorted(done) == ["read 0", "read 1", "work 0"]
    assert next(parts) == 1
    assert sorted(done) == ["read 0", "read 1", "read 2", "work 0", "work 1"]
    parts.close()
    assert len(done) == 5


def test_what_reading_raises_is_raised_in_its_turn() -> None:
    def read(number: int) -> int:
        if number == 2:
            raise ValueError("no such part")
        return number

    parts = overlap(read, lambda n: n, range(5))
    assert [next(parts), next(parts)] == [0, 1]
    with pytest.raises(ValueError, match="no such part"):
        next(parts)


def test_one_behind() -> None:
    begun: list[int] = []

    def results(count: int) -> Iterator[int]:
        for number in range(count):
            begun.append(number)
            yield number

    for count in (0, 1, 2, 5):
        assert list(one_behind(results(count))) == list(range(count))
    begun.clear()
    late = one_behind(results(5))
    assert next(late) == 0
    assert begun == [0, 1]


def test_copies_on_the_host() -> None:
    a, b = torch.arange(3), torch.rand(2, 2)
    found = to_host(a, b)()
    assert torch.equal(found[0], a)
    assert torch.equal(found[1], b)


@pytest.mark.parametrize("shape", [(1,), (5,), (100_000,), (3, 8, 8), (3, 32, 32), (3, 224, 224), (3, 1024, 768)])
def test_sizes_are_sane_for_any_shape(shape: tuple[int, ...]) -> None:
    assert chunk_size(shape, CPU) == 256
    assert 256 <= chunk_size(shape, GPU) <= MOST
    x = torch.empty(256, *shape, device="meta")
    parts = pieces(x)
    assert sum(map(len, parts)) == 256
    assert 8 <= max(map(len, parts)) <= 64
    assert [len(part) for part in pieces(x[:0])] == [0]


@pytest.mark.parametrize(("side", "threads", "expected"), [(32, 1, 64), (32, 96, 96), (224, 2, 8), (224, 16, 16)])
def test_pieces_suit_a_cache_and_give_each_thread_a_sample(
    side: int, threads: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert len(pieces(torch.empty(256, 3, side, side, device="meta"))[0]) == expected
