"""Two processes with parts of a batch do what one process does with all of it."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from graphmsda import parallel
from graphmsda.norm import DomainBatchNorm, Layout

# Rows of each chunk (a domain each) on each process, over two steps: unequal, empty, single and wholly absent parts.
CASES = [
    [[3, 2, 4], [2, 5, 1]],
    [[3, 0, 4], [2, 5, 0]],
    [[1, 4, 0], [0, 1, 0]],
    [[4, 3, 1], [0, 0, 0]],
]
DOMAINS, CHANNELS, CLASSES = 3, 2, 3
EXACT = {"rtol": 1e-12, "atol": 1e-12}


class Network(nn.Module):
    """A layer before the norm, which each process uses on its own rows, and a head after the gather."""

    def __init__(self, images: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, CHANNELS, 1) if images else nn.Linear(3, CHANNELS)
        self.norm = DomainBatchNorm(CHANNELS, DOMAINS, Layout())
        self.head = nn.Linear(CHANNELS * (6 if images else 1), CLASSES)
        self.double()

    def forward(self, x: Tensor, sizes: list[list[int]]) -> tuple[Tensor, Tensor]:
        layout = self.norm.layout
        layout.sizes = tuple(sizes[parallel.rank()])
        layout.totals = tuple(sum(column) for column in zip(*sizes, strict=True))
        layout.domains = tuple(range(DOMAINS))
        embedding = parallel.gather_chunks(self.norm(self.first(x)).flatten(1), sizes)
        return embedding, self.head(embedding)


def whole_batch(sizes: list[list[int]], images: bool, step: int) -> tuple[Tensor, Tensor]:
    """All rows in the order of one process, and the process each belongs to."""
    owners = [[process] * n for chunk in zip(*sizes, strict=True) for process, n in enumerate(chunk)]
    owner = torch.tensor([process for rows in owners for process in rows])
    generator = torch.Generator().manual_seed(step)
    x = torch.randn((len(owner), 3, *((2, 3) if images else ())), generator=generator, dtype=torch.float64)
    return x * 2 + 1, owner


def loss_of(logits: Tensor) -> Tensor:
    """A loss in which every row matters to every other."""
    return (logits.softmax(1).mean(0).log() * torch.arange(CLASSES)).sum() + logits.pow(2).sum(0).sqrt().sum()


def outcome(case: list[list[int]], images: bool, share: bool) -> list[Tensor]:
    """Embeddings, gradients and statistics of two steps; of the whole batch unless `share`."""
    network = Network(images)
    result: list[Tensor] = []
    for step in range(2):
        x, owner = whole_batch(case, images, step)
        sizes = case if share else [[sum(column) for column in zip(*case, strict=True)]]
        x = (x[owner == parallel.rank()] if share else x).requires_grad_()
        embedding, logits = network(x, sizes)
        gradients = list(torch.autograd.grad(loss_of(logits), [*network.parameters(), x]))
        parallel.average_gradients(gradients[:-1])
        result += [embedding.detach(), *gradients]
    return result + [buffer.clone() for buffer in network.norm.buffers()]


def work(process: int, path: str) -> None:
    torch.set_num_threads(1)
    expected = {(n, images): outcome(case, images, False) for n, case in enumerate(CASES) for images in (False, True)}
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=process, world_size=2)
    assert (parallel.rank(), parallel.world_size()) == (process, 2)
    total = parallel.all_sum(torch.tensor([1.0 + process]))
    assert total.tolist() == [3.0]
    assert parallel.all_sizes(CASES[0][process], torch.device("cpu")) == CASES[0]
    parts = [parallel.local_part(torch.arange(n)).tolist() for n in (5, 1)]
    assert parts == ([[0, 1, 2], [0]] if process == 0 else [[3, 4], []])
    labels = torch.tensor([10, 11, 20]) + 100 * process
    assert parallel.gather_chunks(labels, [[2, 1], [2, 1]]).tolist() == [10, 11, 110, 111, 20, 120]

    gradient = torch.full((2, 2), float(process))
    parallel.average_gradients([None, gradient, torch.zeros(1)])
    assert gradient.tolist() == [[0.5, 0.5], [0.5, 0.5]]

    for (number, images), whole in expected.items():
        case = CASES[number]
        mine = outcome(case, images, True)
        per_step = (len(mine) - 5) // 2
        for place, (a, b) in enumerate(zip(mine, whole, strict=True)):
            if place < 2 * per_step and place % per_step == per_step - 1:  # gradient of this process's own rows
                owner = whole_batch(case, images, place // per_step)[1]
                a, b = a / 2, b[owner == process]  # of two equal losses
            torch.testing.assert_close(
                a, b, **EXACT, msg=lambda text, at=(process, number, images, place): f"{at}: {text}"
            )
    dist.destroy_process_group()
    Path(f"{path}-{process}").touch()


def test_two_processes_are_one(tmp_path: Path) -> None:
    """The comparisons are in `work`; a process that fails one raises here and leaves no mark."""
    mp.spawn(work, args=(str(tmp_path / "meeting"),), nprocs=2)
    assert all((tmp_path / f"meeting-{process}").is_file() for process in (0, 1))


def test_one_process_alone() -> None:
    x = torch.randn(3, 2)
    assert (parallel.rank(), parallel.world_size()) == (0, 1)
    assert parallel.all_sum(x) is x
    assert parallel.gather_chunks(x, [[1, 2]]) is x
    assert parallel.all_sizes((1, 2), x.device) == [[1, 2]]
    assert torch.equal(parallel.local_part(x), x)
    before = x.clone()
    parallel.average_gradients([x, None])
    assert torch.equal(x, before)
