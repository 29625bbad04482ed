"""A captured training step must not read a value back: both models run here on tensors that have no values."""

import memory_at_size as models
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode

from graphmsda.graphs import prototypes, pseudo, relation

CLASSES, DOMAINS, SIZE, BATCH = 5, 3, 8, 6


def make_inputs():
    embedding = torch.randn(BATCH, SIZE, requires_grad=True)
    c = torch.randn(DOMAINS, CLASSES, SIZE, requires_grad=True)
    return embedding, c, torch.zeros(BATCH, dtype=torch.int64), torch.zeros(BATCH, dtype=torch.int64)


def make_layers():
    shapes = [(SIZE, SIZE), (SIZE,), (SIZE, SIZE), (SIZE,), (SIZE, CLASSES), (CLASSES,)]
    return relation.Layers(*(torch.randn(shape, requires_grad=True) for shape in shapes))


@pytest.mark.parametrize("normalise", relation.NORMALISATIONS)
def test_crf_reads_no_value(normalise):
    with FakeTensorMode():
        embedding, c, labels, domain = make_inputs()
        seen = torch.ones(DOMAINS, CLASSES, dtype=torch.bool)
        models.crf(embedding, c, seen, labels, domain, make_layers(), normalise).backward()
        assert embedding.grad.shape == embedding.shape
        assert c.grad.shape == c.shape


def test_mrf_reads_no_value():
    with FakeTensorMode():
        embedding, c, labels, domain = make_inputs()
        models.mrf(embedding, c, labels, domain, seed=torch.tensor(0)).backward()
        assert embedding.grad.shape == embedding.shape
        assert c.grad.shape == c.shape


def test_prototypes_read_no_value():
    with FakeTensorMode():
        embedding, c, _, _ = make_inputs()
        rows = torch.randn(BATCH, CLASSES).log_softmax(1)
        for labels, weight in (
            pseudo.by_entropy(rows, threshold=0.5),
            pseudo.by_accuracy(rows, torch.zeros(())),
            pseudo.by_confidence(rows, threshold=0.5),
        ):
            means, mass = prototypes.class_means(embedding, prototypes.one_hot(labels, CLASSES, weight))
            new, seen = prototypes.moving_average(c[0], mass > 0, means, mass, beta=0.7)
            new.sum().backward()
            assert prototypes.distance_scale(c, seen.expand(DOMAINS, -1), reading="relative").shape == ()


def test_such_tensors_do_object_to_reading():
    with FakeTensorMode(), pytest.raises((DataDependentOutputException, DynamicOutputShapeException)):
        torch.zeros(3)[torch.ones(3, dtype=torch.bool)].sum().item()
