"""RTN: each source's classifier is the target's plus a residual, and fused layers are matched."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.graphs.constraints import target_entropy
from graphmsda.losses.mmd import tensor_mmd
from graphmsda.methods.base import Phase, require
from graphmsda.methods.matching import Layers, Matching


class Residual(nn.Sequential):
    r"""What a source's class scores are more than the target's, :math:`\Delta f(f_T(x))`: ``(B, K) -> (B, K)``.

    Two layers of as many units as there are classes. The last one starts at zero: the classifiers begin as one.
    """

    def __init__(self, classes: int) -> None:
        last = nn.Linear(classes, classes)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        super().__init__(nn.Linear(classes, classes), nn.ReLU(), last)


class RTN(Matching):
    r"""RTN: Long et al., "Unsupervised Domain Adaptation with Residual Transfer Networks" (NIPS 2016), eqs. 2-5.

    .. math:: L = L_{cls}(f_T + \Delta f_m(f_T)) + \gamma E_{q \in T} H(\operatorname{softmax} f_T(x_q))
              + \frac{\lambda}{M} \sum_m D_{\mathcal L}(S_m, T)

    The classifier of source m is the target's, :math:`f_T`, plus a residual of its own; the target is predicted by
    :math:`f_T`. D is the tensor maximum mean discrepancy of the embedding and the predicted probabilities, the
    unbiased estimate where the paper prints the biased one, with the mean squared distance as bandwidth where the
    paper takes the median.

    Args:
        weight: Weight λ of the discrepancy.
        entropy_weight: Weight γ of the entropy of target predictions.
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        weight: float = 0.3,
        entropy_weight: float = 0.3,
    ) -> None:
        super().__init__(backbone, classes, domains, weight=weight)
        require(entropy_weight >= 0, "entropy_weight", entropy_weight, "a number not below 0")
        self.entropy_weight = entropy_weight
        self.residuals = nn.ModuleList(Residual(classes) for _ in range(domains - 1))

    def classify_source(self, scores: Tensor, source: int) -> Tensor:
        """The target's scores and the source's residual (eq. 3)."""
        residual: Tensor = self.residuals[source](scores)
        return scores + residual

    def losses(self, batch: Batch) -> Phase:
        """Source risk, discrepancy, and the entropy of what the target's classifier says of the target (eq. 4)."""
        terms, target_scores = self.terms(batch)
        entropy = target_entropy(F.log_softmax(target_scores, dim=1))
        return Phase({**terms, "entropy": self.entropy_weight * entropy})

    def discrepancy(self, source: Layers, target: Layers) -> Tensor:
        """Discrepancy of embeddings fused with probabilities."""
        (x, scores), (target_x, target_scores) = source, target
        return tensor_mmd([x, scores.softmax(1)], [target_x, target_scores.softmax(1)])
