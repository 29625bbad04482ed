"""The batcher gives everybody their own rows, whatever happens to the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch
from torch import Tensor

from graphmsda.serve.batcher import Batcher


def working(work: Callable[[Tensor], tuple[Tensor, ...]], body: Callable[[Batcher], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine beside a batcher."""

    async def both() -> Any:
        batcher = Batcher(work, most=8)
        task = asyncio.create_task(batcher.run())
        await asyncio.sleep(0)
        try:
            return await body(batcher)
        finally:
            task.cancel()

    return asyncio.run(both())


def test_those_who_wait_go_together_and_get_their_own_rows() -> None:
    sizes: list[int] = []
    entered, go = threading.Event(), threading.Event()

    def work(x: Tensor) -> tuple[Tensor, ...]:
        sizes.append(len(x))
        entered.set()
        go.wait(5)
        return 2 * x, x + 1

    async def body(batcher: Batcher) -> list[tuple[Tensor, ...]]:
        first = asyncio.create_task(batcher(torch.tensor([0])))
        await asyncio.to_thread(entered.wait, 5)
        others = [asyncio.create_task(batcher(torch.full((n,), n))) for n in (1, 2, 3, 4)]
        await asyncio.sleep(0.05)
        go.set()
        return await asyncio.gather(first, *others)

    found = working(work, body)
    assert sizes == [1, 10]  # of at most 8 only a request that came before the limit may pass it
    for n, (double, more) in zip((0, 1, 2, 3, 4), found, strict=True):
        assert double.tolist() == [2 * n] * max(1, n)
        assert more.tolist() == [n + 1] * max(1, n)


def test_a_failure_is_told_to_those_it_concerns() -> None:
    def work(x: Tensor) -> tuple[Tensor, ...]:
        if (x < 0).any():
            raise ValueError("negative")
        return (x,)

    async def body(batcher: Batcher) -> list[int]:
        with pytest.raises(ValueError, match="negative"):
            await batcher(torch.tensor([-1]))
        return (await batcher(torch.tensor([3])))[0].tolist()

    assert working(work, body) == [3]


def test_nobody_works_for_those_who_have_given_up() -> None:
    seen: list[list[int]] = []
    entered, go = threading.Event(), threading.Event()

    def work(x: Tensor) -> tuple[Tensor, ...]:
        seen.append(x.tolist())
        entered.set()
        go.wait(5)
        return (x,)

    async def body(batcher: Batcher) -> None:
        first = asyncio.create_task(batcher(torch.tensor([1])))
        await asyncio.to_thread(entered.wait, 5)
        second = asyncio.create_task(batcher(torch.tensor([2])))
        await asyncio.sleep(0.05)
        first.cancel()
        second.cancel()
        go.set()
        assert (await batcher(torch.tensor([3])))[0].tolist() == [3]

    working(work, body)
    assert seen == [[1], [3]]
