"""Deep CORAL: covariances of sources and target matched."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from graphmsda.backbones import Backbone
from graphmsda.losses.covariance import coral
from graphmsda.methods.matching import Layers, Matching


class DeepCORAL(Matching):
    r"""Deep CORAL: Sun and Saenko, "Deep CORAL: Correlation Alignment for Deep Domain Adaptation" (ECCVW 2016).

    European Conference on Computer Vision, workshops; eqs. 1 to 6:

    .. math:: L = L_{cls} + \frac{\lambda}{M} \sum_m \frac{1}{4 d^2} \lVert C_{S_m} - C_T \rVert_F^2

    Args:
        weight: Weight λ of the discrepancy; the paper's is one that leaves both terms about the same in the end.
        layer: Layer whose covariances are matched: the class scores, as in the paper, or the embedding.
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        weight: float = 1.0,
        layer: Literal["scores", "embedding"] = "scores",
    ) -> None:
        super().__init__(backbone, classes, domains, weight=weight)
        self.layer = {"embedding": 0, "scores": 1}[layer]

    def discrepancy(self, source: Layers, target: Layers) -> Tensor:
        """The CORAL loss of the layer."""
        return coral(source[self.layer], target[self.layer])
