"""DAN: embeddings and class scores of sources and target matched by their multi-kernel maximum mean discrepancy."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from graphmsda.backbones import Backbone
from graphmsda.losses.mmd import mmd
from graphmsda.methods.base import require
from graphmsda.methods.matching import Layers, Matching


class DAN(Matching):
    r"""DAN: Long et al., "Learning Transferable Features with Deep Adaptation Networks" (ICML 2015), eqs. 1-4.

    .. math:: L = L_{cls} + \frac{\lambda}{M} \sum_m \sum_{l} d_k^2(S_m^l, T^l)

    over the layers l that belong to the task: the embedding and the class scores. The discrepancy is the unbiased
    quadratic estimate, where the paper takes the linear one to save time; the kernels count alike, as in the authors'
    later code, where the paper weighs them by a quadratic program; their scale is the mean squared distance of the
    batch, where the paper takes the median.

    Args:
        weight: Weight λ of the discrepancy.
        kernels: Number of Gaussian kernels.
        factor: What a kernel's bandwidth is of the one before it.
        layers: Layers to match: embedding, scores, or both.
    """

    presets: ClassVar = {"paper": {"kernels": 33, "factor": 2**0.5}}

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        weight: float = 1.0,
        kernels: int = 5,
        factor: float = 2.0,
        layers: Literal["both", "embedding", "scores"] = "both",
    ) -> None:
        super().__init__(backbone, classes, domains, weight=weight)
        require(kernels >= 1, "kernels", kernels, "a whole number from 1")
        require(factor > 1, "factor", factor, "a number above 1")
        self.kernels, self.factor = kernels, factor
        self.layers = {"both": (0, 1), "embedding": (0,), "scores": (1,)}[layers]

    def discrepancy(self, source: Layers, target: Layers) -> Tensor:
        """Sum of the layers' discrepancies."""
        found = [mmd(source[i], target[i], kernels=self.kernels, factor=self.factor) for i in self.layers]
        return torch.stack(found).sum()
