import math

import torch
import transcription as slow
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmsda.graphs import pseudo

small = settings(deadline=None, max_examples=25)


@small
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(2, 7), st.floats(0, 2), st.floats(0, 1))
def test_rules_are_what_they_say(seed, batch, classes, threshold, accuracy):
    rows = slow.make(seed, batch, classes, spread=3.0).log_softmax(1)
    by_entropy = pseudo.by_entropy(rows, threshold=threshold)
    by_accuracy = pseudo.by_accuracy(rows, torch.tensor(accuracy, dtype=torch.float64))
    by_confidence = pseudo.by_confidence(rows, threshold=accuracy)
    for q, row in enumerate(rows.exp()):
        best = max(range(classes), key=lambda k, row=row: row[k])
        assert by_entropy[0][q] == by_accuracy[0][q] == by_confidence[0][q] == best
        assert by_entropy[1][q] == (slow.entropy(row) < threshold)
        assert by_accuracy[1][q] == (row[best] > 1 / (1 + math.exp(-3 * accuracy)))
        assert by_confidence[1][q] == (row[best] > accuracy)


def test_very_confident_rows_are_kept():
    rows = torch.tensor([[0.0, -math.inf, -math.inf], [-200.0, 0.0, -200.0]])
    for labels, weight in (
        pseudo.by_entropy(rows, threshold=0.5),
        pseudo.by_accuracy(rows, torch.tensor(1.0)),
        pseudo.by_confidence(rows, threshold=0.95),
    ):
        assert labels.tolist() == [0, 1]
        assert weight.tolist() == [1, 1]


def test_no_gradient_passes():
    rows = torch.randn(3, 4, requires_grad=True).log_softmax(1)
    assert not pseudo.by_entropy(rows, threshold=1.0)[1].requires_grad
    assert not pseudo.by_accuracy(rows, torch.tensor(0.5))[1].requires_grad
    assert not pseudo.by_confidence(rows, threshold=0.5)[1].requires_grad


def test_empty_batch():
    labels, weight = pseudo.by_confidence(torch.zeros(0, 3), threshold=0.5)
    assert labels.shape == weight.shape == (0,)
