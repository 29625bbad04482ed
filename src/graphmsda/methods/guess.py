"""Pseudo-labels of the target, as both graphical models use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from graphmsda.graphs import pseudo
from graphmsda.methods.base import Embedded

Rule = Literal["entropy", "confidence", "accuracy"]


@torch.no_grad()
def guess_target(
    predict: Callable[[Tensor], Tensor], embedded: Embedded, *, rule: Rule, threshold: float
) -> tuple[Tensor, Tensor]:
    """Return a label for each target sample and whether to believe it (1 or 0), each ``(B,)``."""
    predictions = predict(embedded.target)
    if rule == "accuracy":
        x, y, _ = embedded.flat()
        return pseudo.by_accuracy(predictions, (predict(x).argmax(1) == y).to(x.dtype).mean())
    if rule == "entropy":
        return pseudo.by_entropy(predictions, threshold=threshold)
    return pseudo.by_confidence(predictions, threshold=threshold)
