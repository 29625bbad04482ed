"""Classifiers of several sources and their vote."""

from __future__ import annotations

import torch

from graphmsda.methods.voting import SourceHeads, accuracy_elsewhere, own_predictions, vote


def test_heads_are_one_linear_classifier_for_each_source() -> None:
    torch.manual_seed(0)
    heads, x = SourceHeads(5, 3, 4).double(), torch.randn(7, 5, dtype=torch.float64)
    assert torch.equal(heads(x)[:, 0], heads(x)[:, 2])  # they start alike
    torch.nn.init.normal_(heads.weight)
    torch.nn.init.normal_(heads.bias)
    found = heads(x)
    assert found.shape == (7, 3, 4)
    for m in range(3):
        logits = x @ heads.weight[4 * m : 4 * (m + 1)].T + heads.bias[4 * m : 4 * (m + 1)]
        torch.testing.assert_close(found[:, m], logits.log_softmax(1))
    own = own_predictions(found, [2, 4, 1])
    assert torch.equal(own[0], found[:2, 0])
    assert torch.equal(own[1], found[2:6, 1])
    assert torch.equal(own[2], found[6:, 2])


def test_a_vote_is_the_weighted_mean_of_probabilities() -> None:
    generator = torch.Generator().manual_seed(0)
    log_probabilities = torch.randn(5, 3, 4, generator=generator).log_softmax(2)
    weights = torch.rand(5, 3, generator=generator)
    weights = weights / weights.sum(1, keepdim=True)
    for given in (weights, weights[0]):
        found = vote(log_probabilities, given)
        for i in range(5):
            share = given[i] if given.ndim == 2 else given
            torch.testing.assert_close(found[i].exp(), sum(share[m] * log_probabilities[i, m].exp() for m in range(3)))


def test_accuracy_is_counted_on_other_sources() -> None:
    # Classifier 0 always says class 0, classifier 1 always class 1.
    says = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]).log().expand(6, 2, 2)
    labels = [torch.tensor([0, 0]), torch.tensor([0, 1, 1, 1])]
    assert accuracy_elsewhere(says, labels).tolist() == [0.25, 0.0]
    alone = accuracy_elsewhere(says[:4, :1], [torch.tensor([0, 0, 0, 1])])
    assert alone.tolist() == [0.75]
