"""Random numbers as a function of a seed that lives on the device.

A generator keeps its state on the host, where a captured or compiled step cannot reach it, and gives other numbers on
another kind of device. These numbers are made by mixing a seed with their place, in integers, so they are the same on
every device and process, and a step that is replayed with another seed draws others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def integers(high: int, shape: Sequence[int], seed: Tensor) -> Tensor:
    """Draw integers from 0 to below `high`, each place of the result by itself (the finaliser of splitmix64).

    Seeds that differ by one give the same numbers one place apart: use mixed ones, such as
    `graphmsda.data.sampler.seed_of` makes. The numbers are biased by at most ``high / 2**63``.

    Shapes: seed int64 0-dim -> int64 of the shape given.

    >>> integers(6, (4,), torch.tensor(1))
    tensor([0, 5, 4, 4])
    """
    place = torch.arange(torch.Size(shape).numel(), device=seed.device)
    mixed: Tensor = seed + place  # integers wrap around, as they must here
    mixed = (mixed ^ _shift(mixed, 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ _shift(mixed, 27)) * _signed(0x94D049BB133111EB)
    mixed = mixed ^ _shift(mixed, 31)
    return (_shift(mixed, 1) % high).view(torch.Size(shape))


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift to the right as if the integers had no sign: the copies of the sign that come in are taken out."""
    shifted: Tensor = (x >> bits) & (2 ** (64 - bits) - 1)
    return shifted


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
