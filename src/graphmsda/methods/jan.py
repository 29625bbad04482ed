"""JAN: the joint distribution of embeddings and predictions of sources and target matched."""

from __future__ import annotations

from torch import Tensor

from graphmsda.backbones import Backbone
from graphmsda.losses.adversarial import warm_up
from graphmsda.losses.mmd import joint_mmd
from graphmsda.methods.base import require
from graphmsda.methods.matching import Layers, Matching


class JAN(Matching):
    r"""JAN: Long et al., "Deep Transfer Learning with Joint Adaptation Networks" (ICML 2017), Secs. 3.1 and 3.2.

    .. math:: L = L_{cls} + \frac{\lambda_p}{M} \sum_m D_{\mathcal L}(S_m, T), \quad
              \lambda_p = \lambda \left( \frac{2}{1 + e^{-10 p}} - 1 \right)

    D is the joint maximum mean discrepancy of the embedding and the predicted probabilities, p the progress of the
    training. It is the unbiased quadratic estimate, where the paper prints the biased one and trains with a linear
    one; bandwidths are the authors' code's. The paper's variant with an adversary (JAN-A) is not here.

    Args:
        weight: Weight λ of the discrepancy, in the end.
        kernels: Number of Gaussian kernels on embeddings, each twice as wide as the one before.
        bandwidth: Bandwidth of the one kernel on probabilities, in units of their squared distances (0: their mean).
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        weight: float = 1.0,
        kernels: int = 5,
        bandwidth: float = 1.68,
    ) -> None:
        super().__init__(backbone, classes, domains, weight=weight)
        require(kernels >= 1, "kernels", kernels, "a whole number from 1")
        require(bandwidth >= 0, "bandwidth", bandwidth, "a number not below 0")
        self.kernels, self.bandwidth = kernels, bandwidth

    def strength(self, progress: Tensor) -> Tensor:
        """The weight, growing from 0."""
        return self.weight * warm_up(progress)

    def discrepancy(self, source: Layers, target: Layers) -> Tensor:
        """Joint discrepancy of embeddings and probabilities."""
        (x, scores), (target_x, target_scores) = source, target
        return joint_mmd(
            [x, scores.softmax(1)],
            [target_x, target_scores.softmax(1)],
            kernels=[self.kernels, 1],
            bandwidths=[0.0, self.bandwidth],
        )
