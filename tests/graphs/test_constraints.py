import math

import pytest
import torch
import transcription as slow
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from graphmsda.graphs import constraints as fast
from graphmsda.graphs.prototypes import one_hot, squared_distances

small = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31 - 10)
shares = st.sampled_from([0.0, 0.3, 0.7, 1.0])
slices = st.sampled_from([1, 60, 2**18])
both_forms = pytest.mark.parametrize("form", ["direct", "products"])


def use(form, patch, numbers=2**18):
    """Let eq. 13 take this form at any size, with so many numbers to a slice."""
    patch.setattr(fast, "DIRECT", math.inf if form == "direct" else 0)
    patch.setattr(fast, "CPU_SLICE", numbers)


def align(form, graph, domains, seen=None, numbers=2**18):
    """Value and gradient of eq. 13 in this form."""
    graph = graph.detach().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        use(form, patch, numbers)
        loss = fast.global_alignment(graph, domains, seen=seen)
        (slope,) = torch.autograd.grad(loss, graph)
    return loss.detach(), slope


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
@given(seeds, st.integers(1, 12), st.integers(2, 7))
def test_class_imbalance_is_its_formula(seed, batch, classes):
    logits, before = (
        slow.make(seed, batch, classes, spread=3.0).requires_grad_(),
        slow.make(seed + 1, classes).softmax(0),
    )
    loss, after = fast.class_imbalance(logits.log_softmax(1), before)
    rows = logits.detach().softmax(1).tolist()
    mean = [sum(row[k] for row in rows) / batch for k in range(classes)]
    pace = batch / (batch + 10 * classes)
    shares = [float(before[k]) + pace * (mean[k] - float(before[k])) for k in range(classes)]
    assert after.tolist() == pytest.approx(shares, abs=1e-12)
    assert not after.requires_grad
    expected = sum(p * math.log(classes * s) for p, s in zip(mean, shares, strict=True))
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-10)
    # Its slope is that of log K - H(s), but for how far a batch moves s.
    (slope,) = torch.autograd.grad(loss, logits)
    moved = torch.lerp(before, logits.softmax(1).mean(0), pace)
    (truth,) = torch.autograd.grad((moved * moved.log()).sum(), logits)
    torch.testing.assert_close(pace * slope, truth)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_class_imbalance_where_a_class_is_never_predicted(dtype):
    rows = torch.tensor([[0.0, -math.inf], [0.0, -math.inf]], dtype=dtype, requires_grad=True)
    loss, shares = fast.class_imbalance(rows, torch.tensor([1.0, 0.0], dtype=dtype))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(math.log(2))
    assert shares.tolist() == [1, 0]
    assert torch.isfinite(rows.grad).all()
    nothing, same = fast.class_imbalance(rows[:0].detach(), shares)
    assert nothing == 0
    assert torch.equal(same, shares)


def make_graph(seed, size):
    """Entries that coincide exactly or are well apart: the norm of a difference bends sharply in between."""
    return slow.make_integers(seed, 64, size, size).double() / 8


@both_forms
@small
@given(seeds, st.integers(1, 4), st.integers(2, 5), shares, slices)
def test_global_alignment_is_eq_13(form, seed, domains, classes, share, numbers):
    graph = make_graph(seed, domains * classes)
    seen = slow.make_mask(seed + 1, domains, classes, share=share)
    expected = pytest.approx(slow.global_alignment(graph, domains, seen), abs=1e-10)
    assert float(align(form, graph, domains, seen, numbers)[0]) == expected
    if seen.all():
        assert float(align(form, graph, domains, None, numbers)[0]) == expected


@small
@given(seeds, st.integers(1, 6), st.integers(1, 8), shares, slices)
def test_both_forms_of_global_alignment_agree(seed, domains, classes, share, numbers):
    graph = make_graph(seed, domains * classes)
    seen = slow.make_mask(seed + 1, domains, classes, share=share)
    products, direct = align("products", graph, domains, seen, numbers), align("direct", graph, domains, seen)
    torch.testing.assert_close(products, direct, rtol=1e-10, atol=1e-12)


@both_forms
@pytest.mark.parametrize("numbers", [1, 2**18])
def test_global_alignment_gradients(form, numbers, monkeypatch):
    use(form, monkeypatch, numbers)
    graph = slow.make(0, 6, 6).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: fast.global_alignment(x, 3), graph)
    seen = torch.tensor([[True, False], [True, True], [True, True]])
    assert torch.autograd.gradcheck(lambda x: fast.global_alignment(x, 3, seen=seen), graph)


@both_forms
@pytest.mark.parametrize("partly", [False, True])
@pytest.mark.parametrize("apart", [1e-1, 1e-3, 1e-5, 1e-7])
def test_global_alignment_of_nearly_equal_blocks_keeps_its_digits_in_float32(form, partly, apart):
    domains, classes = 4, 20
    block = torch.rand(classes, classes, generator=torch.Generator().manual_seed(0))
    graph = block.repeat(domains, domains) + apart * slow.make(1, 80, 80).float()
    seen = slow.make_mask(2, domains, classes) if partly else None
    loss, slope = align(form, graph, domains, seen)
    truth, true_slope = align("direct", graph.double(), domains, seen)
    torch.testing.assert_close(loss.double(), truth, rtol=1e-6, atol=0)
    torch.testing.assert_close(slope.double(), true_slope, rtol=1e-5, atol=1e-6 * float(true_slope.abs().max()))


@pytest.mark.parametrize("apart", [1e-1, 1e-3, 1e-5, 1e-9])
def test_one_block_far_away_hides_no_difference_between_the_others(apart):
    """Products lose digits where two blocks are much closer to each other than to the mean block, but not many."""
    graph = slow.make(0, 20, 20).repeat(4, 4) + apart * slow.make(1, 80, 80)
    graph[:20, :20] = slow.make(2, 20, 20)
    loss, slope = align("products", graph, 4)
    truth, true_slope = align("direct", graph, 4)
    torch.testing.assert_close(loss, truth, rtol=1e-7, atol=0)
    if apart > 1e-6:  # what is below rounding has no direction
        torch.testing.assert_close(slope, true_slope, rtol=0, atol=1e-5 * float(true_slope.abs().max()))
    assert float(slope.norm()) <= float(true_slope.norm()) * (1 + 1e-5)


@both_forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("partly", [False, True])
def test_global_alignment_of_equal_blocks_has_zero_gradient(form, dtype, partly):
    graph = slow.make(0, 30, 30).repeat(5, 5).to(dtype)
    loss, slope = align(form, graph, 5, slow.make_mask(1, 5, 30) if partly else None)
    assert loss == 0
    assert not slope.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_global_alignment_of_two_groups_of_equal_blocks(dtype):
    """Only the pairs across groups count, and the gradient has nothing from within a group."""
    one, other = slow.make(0, 2, 30, 30).to(dtype)
    graph = torch.cat([torch.cat([one if (i + j) % 2 else other for j in range(5)], 1) for i in range(5)])
    loss, slope = align("products", graph, 5)
    truth, true_slope = align("direct", graph.double(), 5)
    tolerance = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(loss.double(), truth, rtol=tolerance, atol=0)
    torch.testing.assert_close(slope.double(), true_slope, rtol=tolerance, atol=tolerance)


@both_forms
def test_global_alignment_shows_what_is_not_a_number(form):
    graph = slow.make(0, 12, 12)
    graph[1, 2] = math.nan
    loss, slope = align(form, graph, 3)
    assert loss.isnan()
    assert slope.isnan().any()


def test_global_alignment_takes_products_where_sources_are_many(monkeypatch):
    def refuse(*_):
        raise AssertionError("took every difference")

    monkeypatch.setattr(fast, "_direct_mean_norm", refuse)
    graph = slow.make(0, 63, 63)
    blocks = graph.view(21, 3, 21, 3).transpose(1, 2).reshape(441, 9)
    expected = torch.cdist(blocks, blocks, compute_mode="donot_use_mm_for_euclid_dist").mean()
    torch.testing.assert_close(fast.global_alignment(graph, 21), expected)
    with pytest.raises(AssertionError, match="every difference"):
        fast.global_alignment(graph, 3)


@both_forms
def test_global_alignment_compiles_in_one_piece(form, monkeypatch):
    use(form, monkeypatch, 40)
    seen = slow.make_mask(1, 3, 4)
    graph = slow.make(0, 12, 12).float().requires_grad_()
    expected, expected_slope = align(form, graph, 3, seen)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda graph, seen: fast.global_alignment(2 * graph, 3, seen=seen) / 2, fullgraph=True, backend="aot_eager"
    )
    loss = compiled(graph, seen)
    loss.backward()
    torch.testing.assert_close(loss.detach(), expected)
    torch.testing.assert_close(graph.grad, expected_slope)


@both_forms
def test_global_alignment_reads_no_value(form, monkeypatch):
    """A captured step has no values to read: these tensors have none either."""
    use(form, monkeypatch, 40)
    with FakeTensorMode():
        graph = torch.zeros(12, 12, requires_grad=True)
        fast.global_alignment(graph, 3, seen=torch.ones(3, 4, dtype=torch.bool)).backward()
        assert graph.grad.shape == graph.shape


@both_forms
def test_global_alignment_ignores_mixed_precision(form):
    graph = slow.make(0, 12, 12).float()
    plain = align(form, graph, 3)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = align(form, graph, 3)
    torch.testing.assert_close(mixed, plain, rtol=0, atol=0)


@small
@given(seeds, st.integers(2, 7), st.integers(1, 4), st.lists(st.integers(1, 3), min_size=2, max_size=6))
def test_local_alignment_is_eq_14(seed, classes, size, batches):
    """Eq. 14 sums over classes and domains; the fast form takes each sample's own prototype."""
    domains = len(batches)
    prototypes = slow.make(seed, domains, classes, size)
    distances, members, total = [], [], 0.0
    for m, batch in enumerate(batches):
        z, y = slow.make(seed + 1 + m, batch, size), slow.make_integers(seed + 1 + m, classes, batch)
        trusted = torch.ones(batch, dtype=torch.bool) if m < domains - 1 else slow.make_mask(seed, batch)
        for k in range(classes):
            total += sum(float(slow.squared(z[i], prototypes[m, k])) for i in range(batch) if y[i] == k and trusted[i])
        distances.append(squared_distances(z, prototypes.flatten(0, 1)))
        members.append(one_hot(m * classes + y, domains * classes, trusted.double(), dtype=torch.float64))
    loss = fast.local_alignment(torch.cat(distances), torch.cat(members))
    assert float(loss) == pytest.approx(total / sum(batches), abs=1e-10)


def test_gradients():
    logits = slow.make(0, 5, 3).requires_grad_()
    labels, seen = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([True, True, False, True, False])
    assert torch.autograd.gradcheck(lambda x: fast.prototype_risk(x, labels, seen), logits)
    assert torch.autograd.gradcheck(lambda x: fast.source_risk([x.log_softmax(1)], [labels]), logits)
    assert torch.autograd.gradcheck(lambda x: fast.target_entropy(x.log_softmax(1)), logits)
    assert torch.autograd.gradcheck(lambda x: fast.local_alignment(x, seen.double()[:, None].expand(5, 3)), logits)
