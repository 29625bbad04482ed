"""Parts of a long input keep their order and their errors while the next is read during the work on this one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from graphmsda.streaming import (
    LEAST_PIECE,
    MOST,
    MOST_PIECE,
    chunk_size,
    one_behind,
    overlap,
    pieces,
    split_rows,
    to_device,
    to_host,
)

CPU, GPU = torch.device("cpu"), torch.device("cuda")
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


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


def test_to_the_cpu_nothing_is_copied() -> None:
    x = torch.arange(6)
    assert to_device(x, CPU)() is x


@gpu
def test_copies_on_a_gpu_are_as_on_the_host_whatever_their_layout() -> None:
    x = torch.randint(0, 256, (5, 4, 6, 3), dtype=torch.uint8)
    for given in (x, x.permute(0, 3, 1, 2), x[:, 1:3], x[..., :1].expand(-1, -1, -1, 3), x.pin_memory(), x.to(GPU)):
        found = to_device(given, GPU)()
        assert found.is_cuda
        assert torch.equal(found.cpu(), given.cpu())
    assert to_device(x.permute(0, 3, 1, 2), GPU)().is_contiguous(memory_format=torch.channels_last)


@gpu
def test_work_on_a_gpu_sees_the_chunk_it_is_meant_to() -> None:
    """Each chunk's memory is taken again for a later one, on the host and on the GPU: neither too early."""
    count, size = 40, 2**22

    def work(arrived: Callable[[], Tensor]) -> Callable[[], tuple[Tensor, ...]]:
        x = arrived()
        torch.cuda._sleep(2_000_000)  # the copies of the next chunks overtake this one's work
        return to_host(x.amin(), x.amax())

    begun = overlap(lambda n: to_device(torch.full((size,), n, dtype=torch.uint8), GPU), work, range(count))
    found = [(int(low), int(high)) for low, high in (finished() for finished in one_behind(begun))]
    assert found == [(n, n) for n in range(count)]


@gpu
def test_chunks_take_no_new_memory_of_a_gpu_in_the_long_run() -> None:
    taken = []
    for _ in range(6):
        work = overlap(lambda n: to_device(torch.zeros(2**20), GPU), lambda arrived: float(arrived().sum()), range(4))
        assert list(work) == [0.0] * 4
        taken.append(torch.cuda.memory_reserved())
    assert taken[-1] == taken[1]


@pytest.mark.parametrize("shape", [(1,), (5,), (100_000,), (3, 8, 8), (3, 32, 32), (3, 224, 224), (3, 1024, 768)])
def test_sizes_are_sane_for_any_shape(shape: tuple[int, ...]) -> None:
    assert chunk_size(shape, CPU) == 256
    assert 256 <= chunk_size(shape, GPU) <= MOST
    for device in (CPU, GPU):
        for count in (0, 1, 64, 65, 256, 257, 10_000):
            rows = [row for part in split_rows(count, shape, device) for row in part]
            assert rows == list(range(count))
            assert all(0 < len(part) <= chunk_size(shape, device) for part in split_rows(count, shape, device))
    x = torch.empty(256, *shape, device="meta")
    parts = pieces(x)
    assert sum(map(len, parts)) == 256
    assert LEAST_PIECE <= max(map(len, parts)) <= MOST_PIECE
    assert [len(part) for part in pieces(x[:0])] == [0]


@pytest.mark.parametrize(("side", "threads", "expected"), [(32, 1, 256), (64, 1, 170), (224, 2, 16), (224, 96, 96)])
def test_pieces_suit_a_cache_and_give_each_thread_a_sample(
    side: int, threads: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert len(pieces(torch.empty(256, 3, side, side, device="meta"))[0]) == expected
