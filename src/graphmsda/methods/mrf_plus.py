"""MRF+: the Markov networks' joint likelihood as teacher and student."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.graphs import markov
from graphmsda.graphs.constraints import source_risk
from graphmsda.graphs.prototypes import distance_scale
from graphmsda.graphs.pseudo import by_confidence, class_thresholds
from graphmsda.methods.base import Phase, ramped, require
from graphmsda.methods.mrf import MRF


class MRFPlus(MRF):
    r"""MRF+: MRF-MSDA taught by its own average, after Mean Teacher (NeurIPS 2017) and FixMatch (NeurIPS 2020).

    .. math:: \min_{f,\mathbb C} L_{cls} + \alpha L_{MLE}(r w) + \frac{u \, r}{|B_T|} \sum_{q \in B_T} w_q \,
              \bigl(- \log p(y = \hat y_q \mid \text{strong view of } q) \bigr) + \frac{v \, r}{\min(K, 10)} L_{balance}

    The teacher is the moving average of the model. Its joint likelihood, summed over domains (eq. 20), reads a weak
    view of each target image and gives the label :math:`\hat y_q` and, above a confidence, the weight
    :math:`w_q = 1`. The student learns it on a strong view: by eq. 20 as a classifier and as the positive Markov
    network of eq. 22. The last term, `graphmsda.graphs.constraints.class_imbalance` of its predictions, keeps classes
    from being predicted too often. The ramp r grows from 0 to 1. Each part has a switch; docs/lab.md tells what was
    tried.

    Args:
        tau: Temperature of the energies, in units of `scale`.
        scale: Squared distances are divided by the mean squared distance between prototypes (relative), by the number
            of dimensions (mean) or by nothing (sum).
        alpha: Weight of the likelihood objective, eq. 22.
        likelihood: Reading of eq. 22, as in MRF.
        clique_weight: Weight of the mean clique energy; only for the log reading.
        wrong_edges: Negative networks by a wrong edge between prototypes.
        start: Where prototypes start: at the first class mean seen (mean) or at small random numbers (normal).
        target_weight: Weight u of the target's pseudo-labels; with it and `balance_weight` 0, nothing is learnt from
            the target at all.
        confidence: Least probability of a pseudo-label that is believed.
        balance: Whether classes of which few are believed have a lower threshold (FlexMatch; NeurIPS 2021).
        balance_weight: Weight v of the imbalance of classes among the target's predictions.
        ramp: Share of the training after which pseudo-labels count in full.
        average_teaches: Whether the averaged model gives the pseudo-labels, or the model itself.
        strong_views: Whether the student sees strong views of the target, or the teacher's weak ones.
    """

    presets: ClassVar = {}
    views = True
    believed: Tensor

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        tau: float = 0.15,
        scale: Literal["relative", "mean", "sum"] = "relative",
        alpha: float = 0.3,
        likelihood: Literal["log", "verbatim", "mean-clique", "logistic"] = "log",
        clique_weight: float = 1.0,
        wrong_edges: int = 6,
        start: Literal["mean", "normal"] = "mean",
        target_weight: float = 2.0,
        confidence: float = 0.8,
        balance: bool = False,
        balance_weight: float = 3.0,
        ramp: float = 0.1,
        average_teaches: bool = True,
        strong_views: bool = True,
    ) -> None:
        super().__init__(
            backbone,
            classes,
            domains,
            tau=tau,
            scale=scale,
            alpha=alpha,
            likelihood=likelihood,
            clique_weight=clique_weight,
            wrong_edges=wrong_edges,
            entropy_weight=0.0,
            balance_weight=balance_weight,
            ramp=ramp,
            start=start,
        )
        require(target_weight >= 0, "target_weight", target_weight, "a number not below 0")
        require(0 <= confidence < 1, "confidence", confidence, "a number from 0 to below 1")
        self.target_weight, self.confidence, self.balance = target_weight, confidence, balance
        self.average_teaches, self.strong_views = average_teaches, strong_views
        self.register_buffer("believed", torch.zeros(classes))  # share of each class among those believed

    def losses(self, batch: Batch) -> Phase:
        """The teacher labels the target's weak view, the student learns from the strong one."""
        target_label, believed, shares = self.teach(batch)
        embedded = self.embed_batch(batch, strong=self.strong_views)
        x, label, domain = embedded.flat(target_label)
        sizes = [len(part.y) for part in embedded.sources]
        ones = believed.new_ones(sum(sizes))
        self.meet(x, label, domain, torch.cat([ones, believed]))

        pairs = self.wrong_pairs(len(label), batch.seed)
        energies, wrong = markov.network_energies(x, self.prototypes, pairs, temperature=self.temperature())
        posterior = markov.label_posterior(markov.log_joint(energies, self.seen.clone()))
        *source_predictions, target_predictions = torch.split(posterior, [*sizes, len(target_label)])
        likelihoods = target_predictions.gather(1, target_label[:, None]).squeeze(1)
        ramp = ramped(batch.progress, self.ramp)
        weight = ramp * believed
        terms = {
            "source": source_risk(source_predictions, [part.y for part in embedded.sources]),
            "target": -self.target_weight * torch.where(weight > 0, weight * likelihoods, 0).mean(),
        }
        balance, state = self.balance_term(target_predictions, ramp)
        # Not `|=`: PyTorch 2.6 cannot compile it for dictionaries.
        terms.update(balance)
        terms.update(self.likelihood_terms(energies, wrong, pairs, label, domain, torch.cat([ones, weight])))
        return Phase(terms, shown={"pseudo-labelled": believed.mean()}, state={"believed": shares, **state})

    @torch.no_grad()
    def teach(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return a label for each target sample, whether it is believed (1 or 0), and the new shares of the classes."""
        teacher = self.teacher if self.average_teaches and self.teacher is not None else {}
        prototypes = teacher.get("prototypes", self.prototypes)
        seen = teacher.get("seen", self.seen)
        temperature = self.tau * distance_scale(prototypes, seen, reading=self.scale)
        embedding = self.observe_target(batch, teacher)
        energies = markov.energies(embedding, prototypes, temperature=temperature)
        posterior = markov.label_posterior(markov.log_joint(energies, seen.clone()))
        threshold = class_thresholds(self.believed, self.confidence) if self.balance else self.confidence
        label, believed = by_confidence(posterior, threshold=threshold)
        # With no prototype met yet, nothing is believed.
        believed = believed * (seen.any() & (self.target_weight > 0)).to(believed.dtype)
        sure = (posterior.amax(1).exp() > self.confidence).to(posterior.dtype)
        now = torch.zeros_like(self.believed).index_add(0, label, sure / max(1, len(label)))
        return label, believed, torch.lerp(self.believed, now, 0.01)
