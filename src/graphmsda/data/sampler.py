"""Endless shuffled streams of indices whose place is a function of seed and step alone.

Nothing here has a state that could be lost: the batch of step 1,000 is the same whether 999 steps came before it in
this process, in another, or in a run that was killed and resumed.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


def seed_of(*numbers: int) -> int:
    """Mix numbers into one 63-bit seed (the finaliser of splitmix64, folded over the numbers).

    >>> seed_of(0, 1) != seed_of(1, 0)
    True
    """
    mixed = 0
    for number in numbers:
        mixed = (mixed + number + 0x9E3779B97F4A7C15) % 2**64
        mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return mixed >> 1


class Stream:
    """Batches of indices into one domain: pass after pass over a fresh permutation, wrapping around.

    >>> stream = Stream(size=5, batch=2, seed=0)
    >>> sorted(stream.batches(range(5)).flatten().tolist())
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    """

    def __init__(self, size: int, batch: int, seed: int) -> None:
        self.size, self.batch, self.seed = size, batch, seed
        self._permutation = lru_cache(maxsize=4)(self._draw)

    def batches(self, steps: range) -> Tensor:
        """Return the indices of steps that follow each other, int64 ``(steps, batch)``."""
        first, last = steps.start * self.batch, steps.stop * self.batch
        parts = []
        while first < last:
            number, start = divmod(first, self.size)
            parts.append(self._permutation(number)[start : start + last - first])
            first += len(parts[-1])
        return torch.cat(parts).view(-1, self.batch)

    def _draw(self, number: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed_of(self.seed, number))
        return torch.randperm(self.size, generator=generator)
