"""What several processes must agree on: sums and gathers through which gradients flow.

Each process computes the same loss on the *global* batch, because prototypes, adjacency and batch statistics belong to
it. Backward passes of these collectives add up the gradients of all processes' (equal) losses, so the engine divides
by the number of processes once, at the parameters. With one process every function here is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return this process's number among them."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total


def all_sum(x: Tensor) -> Tensor:
    """Sum over processes; the gradient is summed over processes too."""
    if world_size() == 1:
        return x
    return _Sum.apply(x)  # type: ignore[no-any-return]


def all_sizes(sizes: Sequence[int], device: torch.device) -> list[list[int]]:
    """Return every process's sizes: ``[process][chunk]``."""
    if world_size() == 1:
        return [list(sizes)]
    table = torch.zeros(world_size(), len(sizes), dtype=torch.int64, device=device)
    table[rank()] = torch.tensor(sizes, device=device)
    dist.all_reduce(table)
    return [[int(n) for n in row] for row in table.tolist()]


def gather_chunks(local: Tensor, sizes: list[list[int]]) -> Tensor:
    """Concatenate all processes' rows, chunk by chunk and within a chunk in the order of processes.

    ``local`` holds this process's chunks one after the other; ``sizes`` is `all_sizes` of them. The rows come out in
    the order in which one process with the whole batch would hold them. Chunks may be unequal and even empty, so the
    rows are placed into zeros and summed rather than gathered.
    """
    if world_size() == 1:
        return local
    chunks = range(len(sizes[0]))
    starts, offset = [], 0
    for chunk in chunks:
        before = sum(row[chunk] for row in sizes[: rank()])
        starts.append(offset + before)
        offset += sum(row[chunk] for row in sizes)
    places = [torch.arange(starts[c], starts[c] + sizes[rank()][c], device=local.device) for c in chunks]
    whole = local.new_zeros((offset, *local.shape[1:]))
    return all_sum(whole.index_copy(0, torch.cat(places), local))


def any_process(flag: bool, device: torch.device) -> bool:
    """Return whether the flag is set on any process; all of them must ask at the same time."""
    if world_size() == 1:
        return flag
    raised = torch.tensor(int(flag), device=device)
    dist.all_reduce(raised)
    return bool(raised)


def local_part(indices: Tensor) -> Tensor:
    """Return this process's share of global batches ``(..., B)``: neighbours, sizes differing by at most one."""
    return indices.tensor_split(world_size(), dim=-1)[rank()]


def average_gradients(gradients: Sequence[Tensor | None]) -> None:
    """Divide the sum over processes by their number, in place, as one message."""
    present = [g for g in gradients if g is not None]
    if world_size() == 1 or not present:
        return
    flat = torch.cat([g.reshape(-1) for g in present])
    dist.all_reduce(flat)
    flat /= world_size()
    for g, part in zip(present, torch.split(flat, [g.numel() for g in present]), strict=True):
        g.copy_(part.view_as(g))
