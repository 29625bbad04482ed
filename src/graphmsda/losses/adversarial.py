"""Parts of adversarial methods: discriminators of domains, and gradients that turn back on their way to the network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def reverse_gradient(x: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    r"""Return x itself, with a gradient that is multiplied by minus `weight` on its way back.

    Ganin et al., "Domain-Adversarial Training of Neural Networks" (JMLR 2016), eqs. 16-17: :math:`R(x) = x`,
    :math:`dR/dx = -\lambda I`.

    >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> torch.autograd.grad(reverse_gradient(x, 0.5).sum(), x)
    (tensor([-0.5000, -0.5000]),)
    """
    return x - (1 + weight) * (x - x.detach())


def warm_up(progress: Tensor, gamma: float = 10.0) -> Tensor:
    r"""Return the weight of the adversary at a progress from 0 to 1: :math:`\frac{2}{1 + e^{-\gamma p}} - 1`.

    The schedule of Ganin et al. (JMLR 2016), Sec. 5.2.2: from 0 towards 1, so that early noise does no harm.

    >>> warm_up(torch.tensor([0.0, 0.5, 1.0]))
    tensor([0.0000, 0.9866, 0.9999])
    """
    return 2 / (1 + torch.exp(-gamma * progress)) - 1


def domain_risk(sources: Sequence[Tensor], target: Tensor) -> Tensor:
    r"""Cross-entropy of telling sources from the target, every source counting alike and all of them as the target.

    .. math:: - \frac{1}{M} \sum_m \mathbb{E}_{x \in S_m} \log D(x) - \mathbb{E}_{x \in T} \log (1 - D(x))

    The domain classifier's loss of Ganin et al. (JMLR 2016), eq. 9, and of Tzeng et al., "Adversarial Discriminative
    Domain Adaptation" (CVPR 2017), eq. 2; D is the probability of a source, the sigmoid of a logit.

    Shapes: logits (B_m, 1) for each source and (B, 1) -> 0-dim.

    >>> round(float(domain_risk([torch.zeros(3, 1)], torch.zeros(2, 1))), 4)  # 2 log 2: nothing is known
    1.3863
    """
    known = [F.softplus(-logits).mean() for logits in sources if len(logits) > 0]
    return torch.stack([*known, target.new_zeros(())]).sum() / max(1, len(known)) + F.softplus(target).mean()


def inverted_risk(target: Tensor) -> Tensor:
    r"""Cross-entropy of target samples against the wrong label, which whoever wants to pass for a source lessens.

    .. math:: - \mathbb{E}_{x \in T} \log D(x)

    Tzeng et al. (CVPR 2017), eq. 7. Unlike minus `domain_risk`, its gradient is large where the discriminator is sure.

    Shapes: logits (B, 1) -> 0-dim.
    """
    return F.softplus(-target).mean()


class Discriminator(nn.Sequential):
    """Tells domains apart by their embeddings: two hidden layers, ``(B, d) -> (B, outputs)`` logits."""

    def __init__(self, features: int, outputs: int = 1, hidden: int = 256) -> None:
        super().__init__(
            nn.Linear(features, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, outputs),
        )
