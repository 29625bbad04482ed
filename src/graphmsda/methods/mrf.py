"""MRF-MSDA: energies over Markov networks; labels by summing joint likelihoods over domains."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.domains import Batch
from graphmsda.graphs import markov
from graphmsda.graphs.constraints import class_imbalance, source_risk, target_entropy
from graphmsda.graphs.many_classes import entropy_share
from graphmsda.graphs.prototypes import class_means, distance_scale, one_hot
from graphmsda.methods.base import BatchStatistics, Method, Phase, Predictor, ramped, require
from graphmsda.methods.guess import Rule, guess_target

FAR = 1e4  # an energy whose likelihood is zero in any precision, and which is still a number


class MRF(Method):
    r"""MRF-MSDA: Xu, Wang and Ni, "Graphical Modeling for Multi-Source Domain Adaptation" (TPAMI 2022), Sec. 4.

    .. math:: \min_{f,\mathbb C} L_{cls} + \alpha L_{MLE} \qquad (23)

    Prototypes of all classes of all domains are parameters. A network that links the query to the prototype of class
    k in domain m has an energy (eq. 17); its likelihood gives the joint posterior of class and domain (eqs. 18-19),
    and the sum over domains the class (eq. 20). docs/fidelity.md says where this departs from the printed paper.

    Args:
        tau: Temperature of the energies, in units of `scale`.
        scale: Squared distances are divided by the mean squared distance between prototypes (relative), by the number
            of dimensions (mean) or by nothing (sum, as printed).
        alpha: Weight of the likelihood objective, eq. 22.
        likelihood: Reading of eq. 22: log-ratio of the positive network to all (log), as printed (verbatim), as printed
            with the mean over the cliques' edges (mean-clique), or binary noise-contrastive estimation (logistic).
        clique_weight: Weight of the mean clique energy, which aligns a class's prototypes across domains; only for the
            log reading, in which the cliques cancel.
        classification_weight: Weight of the sources' classification, eq. 8; 0 leaves it out, for ablations.
        wrong_edges: Negative networks by a wrong edge between prototypes, N_2 of Sec. 5.1; the K - 1 that link the
            query to another class are always taken.
        entropy_weight: Weight of the target's entropy, eq. 9.
        entropy_per_class: Divide that entropy by the number of classes, by ten at most.
        balance_weight: Weight of the imbalance of classes among the target's predictions, which is not in the paper:
            entropy alone is as low where one class takes everything. Divided like the entropy.
        pseudo_labels: Keep a target prediction as a label by its entropy (below the threshold, nats), by its
            confidence (above the threshold) or by the cited rule (confidence above 1/(1+exp(-3A)), A the accuracy on
            the sources).
        threshold: Threshold of the rule.
        ramp: Share of the training over which the target's entropy and pseudo-labels come in, from 0 to full weight.
        start: Where prototypes start: at the first class mean seen (mean) or at small random numbers (normal).
        batch_statistics: Whether each domain is normalised by its own (own); so in training, and read with the mean of
            all domains' (mean), as a batch norm has it that meets them in turn; or all of a batch by its (common).
    """

    presets: ClassVar = {
        "paper": {
            "tau": 0.1,
            "scale": "sum",
            "alpha": 1.0,
            "likelihood": "verbatim",
            "wrong_edges": 6,
            "entropy_weight": 1.0,
            "entropy_per_class": False,
            "balance_weight": 0.0,
            "pseudo_labels": "accuracy",
            "ramp": 0.0,
            "start": "normal",
        }
    }
    seen: Tensor
    shares: Tensor

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        tau: float = 0.2,
        scale: Literal["relative", "mean", "sum"] = "relative",
        alpha: float = 0.3,
        likelihood: Literal["log", "verbatim", "mean-clique", "logistic"] = "log",
        clique_weight: float = 1.0,
        classification_weight: float = 1.0,
        wrong_edges: int = 6,
        entropy_weight: float = 1.0,
        entropy_per_class: bool = True,
        balance_weight: float = 1.0,
        pseudo_labels: Rule = "entropy",
        threshold: float = 0.5,
        ramp: float = 0.2,
        start: Literal["mean", "normal"] = "mean",
        batch_statistics: BatchStatistics = "own",
    ) -> None:
        super().__init__(backbone, classes, domains)
        self.batch_statistics = batch_statistics
        require(tau > 0, "tau", tau, "a positive number")
        require(wrong_edges >= 0, "wrong_edges", wrong_edges, "a whole number not below 0")
        require(threshold >= 0, "threshold", threshold, "a number not below 0")
        require(0 <= ramp <= 1, "ramp", ramp, "a number from 0 to 1")
        self.ramp = ramp
        weights = {"alpha": alpha, "clique_weight": clique_weight, "entropy_weight": entropy_weight}
        weights |= {"classification_weight": classification_weight, "balance_weight": balance_weight}
        for name, value in weights.items():
            require(value >= 0, name, value, "a number not below 0")
        self.tau, self.scale, self.alpha, self.likelihood = tau, scale, alpha, likelihood
        self.clique_weight, self.wrong_edges = clique_weight, wrong_edges
        self.classification_weight = classification_weight
        share = entropy_share(classes) if entropy_per_class else 1.0
        self.entropy_weight, self.balance_weight = share * entropy_weight, share * balance_weight
        self.pseudo_labels, self.threshold, self.start = pseudo_labels, threshold, start
        self.prototypes = nn.Parameter(torch.randn(domains, classes, backbone.features) * 0.0128)
        self.register_buffer("seen", torch.zeros(domains, classes, dtype=torch.bool))
        if balance_weight > 0:
            self.register_buffer("shares", torch.full((classes,), 1 / classes))  # of each class in predictions

    def losses(self, batch: Batch) -> Phase:
        """Eq. 23, the target's positive networks by pseudo-labels."""
        embedded = self.embed_batch(batch)
        target_label, guessed = guess_target(self.predict, embedded, rule=self.pseudo_labels, threshold=self.threshold)
        target_weight = guessed * self.seen.any()  # with no prototype met yet, nothing is believed
        x, label, domain = embedded.flat(target_label)
        sizes = [len(part.y) for part in embedded.sources]
        ramp = ramped(batch.progress, self.ramp)
        weight = torch.cat([target_weight.new_ones(sum(sizes)), ramp * target_weight])
        self.meet(x, label, domain, weight)

        pairs = self.wrong_pairs(len(label), batch.seed)
        energies, wrong = markov.network_energies(x, self.prototypes, pairs, temperature=self.temperature())
        posterior = markov.label_posterior(markov.log_joint(energies, self.seen.clone()))
        *source_predictions, target_predictions = torch.split(posterior, [*sizes, len(target_label)])
        terms = {
            "source": self.classification_weight
            * source_risk(source_predictions, [part.y for part in embedded.sources]),
            "entropy": ramp * self.entropy_weight * target_entropy(target_predictions),
        }
        balance, state = self.balance_term(target_predictions, ramp)
        # Not `|=`: PyTorch 2.6 cannot compile it for dictionaries.
        terms.update(balance)
        terms.update(self.likelihood_terms(energies, wrong, pairs, label, domain, weight))
        return Phase(terms, shown={"pseudo-labelled": target_weight.mean()}, state=state)

    def predict(self, embedding: Tensor) -> Tensor:
        """Eq. 20 in log space: ``(B, d) -> (B, K)``."""
        return markov.label_posterior(self.log_joint(embedding))

    def log_joint(self, embedding: Tensor) -> Tensor:
        """Return eqs. 18-19, log p(domain, class | query): ``(B, d) -> (B, D, K)``."""
        return markov.log_joint(self.energies(embedding), self.seen)

    def source_scores(self, embedding: Tensor) -> Tensor:
        """Log-posterior over the sources, eq. 18 summed over classes: ``(B, d) -> (B, M)``."""
        return markov.domain_posterior(self.log_joint(embedding))[:, :-1]

    def predictor(self) -> Predictor:
        """Return `predict` and `source_scores` in one: the same energies, and a temperature computed once."""
        temperature = self.temperature()

        def read(embedding: Tensor) -> tuple[Tensor, Tensor]:
            energies = markov.energies(embedding, self.prototypes, temperature=temperature)
            joint = markov.log_joint(energies, self.seen)
            return markov.label_posterior(joint), markov.domain_posterior(joint)[:, :-1]

        return read

    def temperature(self) -> Tensor:
        """Return tau in the units in which distances are read."""
        return self.tau * distance_scale(self.prototypes, self.seen, reading=self.scale)

    def energies(self, embedding: Tensor) -> Tensor:
        """Eq. 17 of the edge from each query to each prototype: ``(B, d) -> (B, D, K)``."""
        return markov.energies(embedding, self.prototypes, temperature=self.temperature())

    def wrong_pairs(self, queries: int, seed: Tensor) -> Tensor:
        """Draw the wrong edges of each query's networks: ``(B, N, 2)``."""
        return markov.sample_wrong_edges(
            queries, self.wrong_edges, domains=self.domains, classes=self.classes, seed=seed
        )

    def balance_term(self, predictions: Tensor, ramp: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the term that keeps one class from taking all target samples, and its new state; without weight none.

        Args:
            predictions: Log-probabilities of the target's samples, ``(B, K)``.
            ramp: How far the target's terms have come in.
        """
        if self.balance_weight == 0:
            return {}, {}
        imbalance, shares = class_imbalance(predictions, self.shares)
        return {"balance": ramp * self.balance_weight * imbalance}, {"shares": shares}

    def likelihood_terms(
        self, energies: Tensor, wrong: Tensor, pairs: Tensor, label: Tensor, domain: Tensor, weight: Tensor
    ) -> dict[str, Tensor]:
        """Eq. 22 in the chosen reading; with the log-ratio, the cliques that cancel get a term of their own."""
        total, edges = markov.clique_edges(self.prototypes, temperature=self.temperature(), seen=self.seen.clone())
        mean = total / edges.clamp(min=1)
        # A network that links a prototype never met has no likelihood: its place is arbitrary.
        unmet = ~self.seen.flatten()[pairs].all(dim=2)
        loss = markov.likelihood(
            energies.masked_fill(~self.seen, FAR),
            domain,
            label,
            weight,
            clique=mean if self.likelihood == "mean-clique" else total,
            wrong=wrong.masked_fill(unmet, FAR),
            reading="verbatim" if self.likelihood == "mean-clique" else self.likelihood,
        )
        terms = {"likelihood": self.alpha * loss}
        if self.likelihood == "log":
            terms["clique"] = self.alpha * self.clique_weight * mean
        return terms

    @torch.no_grad()
    def meet(self, x: Tensor, label: Tensor, domain: Tensor, weight: Tensor) -> None:
        """Mark the prototypes that have met a sample; one that meets its first starts at the class mean, if so set."""
        members = one_hot(domain * self.classes + label, self.domains * self.classes, weight, dtype=x.dtype)
        means, mass = class_means(x, members)
        met = mass.view_as(self.seen) > 0
        if self.start == "mean":
            first = (met & ~self.seen)[..., None]
            self.prototypes.copy_(torch.where(first, means.view_as(self.prototypes), self.prototypes))
        self.seen |= met
