import math

import pytest
import torch
import transcription as slow
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmsda.graphs import constraints as fast

small = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31 - 10)


@small
@given(seeds, st.integers(2, 12), st.integers(2, 7))
def test_prototype_risk_is_eq_7(seed, count, classes):
    logits, labels = slow.make(seed, count, classes), slow.make_integers(seed, classes, count)
    for seen in (slow.make_mask(seed, count), torch.ones(count, dtype=torch.bool)):
        assert float(fast.prototype_risk(logits, labels, seen)) == pytest.approx(
            slow.prototype_risk(logits, labels, seen), abs=1e-10
        )


@small
@given(seeds, st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any), st.integers(2, 7))
def test_source_risk_is_eq_8(seed, batches, classes):
    rows = [slow.make(seed + i, b, classes).log_softmax(1) for i, b in enumerate(batches)]
    labels = [slow.make_integers(seed + i, classes, b) for i, b in enumerate(batches)]
    assert float(fast.source_risk(rows, labels)) == pytest.approx(slow.source_risk(rows, labels), abs=1e-10)


def test_source_risk_without_any_sample_is_zero():
    rows = torch.zeros(0, 3, requires_grad=True)
    risk = fast.source_risk([rows, rows], [torch.zeros(0, dtype=torch.int64)] * 2)
    risk.backward()
    assert risk == 0


@small
@given(seeds, st.integers(1, 6), st.integers(2, 7))
def test_target_entropy_is_eq_9(seed, batch, classes):
    rows = slow.make(seed, batch, classes, spread=3.0).log_softmax(1)
    expected = sum(slow.entropy(row) for row in rows.exp()) / batch
    assert float(fast.target_entropy(rows)) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_target_entropy_of_certainty(dtype):
    rows = torch.tensor([[0.0, -math.inf], [-1e30, 0.0]], dtype=dtype, requires_grad=True)
    entropy = fast.target_entropy(rows)
    (1e6 * entropy).backward()
    assert entropy == 0
    assert torch.isfinite(rows.grad).all()
    assert rows.grad[0, 1] == rows.grad[1, 0] == 0
    assert fast.target_entropy(rows[:0]) == 0


@small
@given(seeds, st.integers(1, 4), st.integers(2, 5), st.booleans())
def test_global_alignment_is_eq_13(seed, domains, classes, partly):
    graph = slow.make(seed, domains * classes, domains * classes)
    everything = torch.ones(domains, classes, dtype=torch.bool)
    seen = slow.make_mask(seed + 1, domains, classes) if partly else everything
    expected = pytest.approx(slow.global_alignment(graph, domains, seen), abs=1e-10)
    assert float(fast.global_alignment(graph, domains, seen=seen)) == expected
    if not partly:
        assert float(fast.global_alignment(graph, domains)) == expected


def test_global_alignment_in_chunks(monkeypatch):
    graph = slow.make(0, 9, 9).requires_grad_()
    seen = slow.make_mask(1, 3, 3)
    whole = fast.global_alignment(graph, 3, seen=seen)
    (slope,) = torch.autograd.grad(whole, graph)
    monkeypatch.setattr(fast, "ELEMENTS", 200)
    parts = fast.global_alignment(graph, 3, seen=seen)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(torch.autograd.grad(parts, graph)[0], slope)


def test_global_alignment_gradients():
    graph = slow.make(0, 6, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: fast.global_alignment(x, 3), graph)
    seen = torch.tensor([[True, False], [True, True], [True, True]])
    assert torch.autograd.gradcheck(lambda x: fast.global_alignment(x, 3, seen=seen), graph)


def test_global_alignment_of_equal_blocks_has_zero_gradient():
    graph = slow.make(0, 3, 3).repeat(2, 2).requires_grad_()
    loss = fast.global_alignment(graph, 2)
    loss.backward()
    assert loss == 0
    assert not graph.grad.any()


def test_global_alignment_of_nearly_equal_blocks_keeps_its_digits_in_float32():
    block = torch.rand(5, 5, generator=torch.Generator().manual_seed(0))
    graph = (block.repeat(2, 2) + 1e-5 * slow.make(1, 10, 10).float()).requires_grad_()
    exact = graph.detach().double().requires_grad_()
    loss, truth = fast.global_alignment(graph, 2), fast.global_alignment(exact, 2)
    torch.testing.assert_close(loss.double(), truth, rtol=1e-6, atol=0)
    loss.backward()
    truth.backward()
    torch.testing.assert_close(graph.grad.double(), exact.grad, rtol=1e-4, atol=1e-7)


@small
@given(seeds, st.integers(2, 7), st.integers(1, 4), st.lists(st.integers(1, 3), min_size=2, max_size=6))
def test_local_alignment_is_eq_14(seed, classes, size, batches):
    """Eq. 14 sums over classes and domains; the fast form takes each sample's own prototype."""
    domains = len(batches)
    prototypes = slow.make(seed, domains, classes, size)
    samples, own, weights, total = [], [], [], 0.0
    for m, batch in enumerate(batches):
        z, y = slow.make(seed + 1 + m, batch, size), slow.make_integers(seed + 1 + m, classes, batch)
        trusted = torch.ones(batch, dtype=torch.bool) if m < domains - 1 else slow.make_mask(seed, batch)
        for k in range(classes):
            members = [i for i in range(batch) if y[i] == k and trusted[i]]
            total += sum(float(slow.squared(z[i], prototypes[m, k])) for i in members)
        samples.append(z)
        own.append(prototypes[m, y])
        weights.append(trusted.double())
    loss = fast.local_alignment(torch.cat(samples), torch.cat(own), torch.cat(weights))
    assert float(loss) == pytest.approx(total / sum(batches), abs=1e-10)


def test_gradients():
    logits = slow.make(0, 5, 3).requires_grad_()
    labels, seen = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([True, True, False, True, False])
    assert torch.autograd.gradcheck(lambda x: fast.prototype_risk(x, labels, seen), logits)
    assert torch.autograd.gradcheck(lambda x: fast.source_risk([x.log_softmax(1)], [labels]), logits)
    assert torch.autograd.gradcheck(lambda x: fast.target_entropy(x.log_softmax(1)), logits)
    weight = seen.double()
    assert torch.autograd.gradcheck(
        lambda z, c: fast.local_alignment(z, c, weight), (logits, slow.make(1, 5, 3).requires_grad_())
    )
