import pytest
import torch
import transcription as slow
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmsda.errors import UserError
from graphmsda.graphs import prototypes as fast

small = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31 - 10)


def assert_same(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@small
@given(seeds, st.integers(1, 8), st.integers(2, 7), st.integers(1, 4), st.booleans())
def test_class_means_are_eqs_1_and_2(seed, batch, classes, size, weighted):
    embedding, labels = slow.make(seed, batch, size), slow.make_integers(seed + 1, classes, batch)
    weight = slow.make_mask(seed + 2, batch).double() * 0.5 if weighted else torch.ones(batch).double()
    membership = fast.one_hot(labels, classes, weight if weighted else None, dtype=torch.float64)
    means, mass = fast.class_means(embedding, membership)
    for k in range(classes):
        mean, total = slow.class_mean(embedding, labels, weight, k)
        assert_same(means[k], mean)
        assert mass[k] == total


def test_absent_class_has_zero_mean_and_gradient():
    embedding = slow.make(0, 4, 3).requires_grad_()
    membership = fast.one_hot(torch.tensor([0, 0, 2, 2]), 4, torch.tensor([1.0, 1, 0, 0]), dtype=torch.float64)
    means, mass = fast.class_means(embedding, membership)
    assert mass.tolist() == [2, 0, 0, 0]
    assert not means[1:].any()
    means[1:].sum().backward()
    assert not embedding.grad.any()
    assert torch.autograd.gradcheck(lambda x: fast.class_means(x, membership)[0], embedding)


def test_class_means_of_half_precision_are_float32():
    means, _ = fast.class_means(torch.ones(2, 3, dtype=torch.bfloat16), fast.one_hot(torch.tensor([0, 1]), 2))
    assert means.dtype == torch.float32


@small
@given(seeds, st.integers(2, 6), st.integers(2, 7), st.integers(1, 4))
def test_moving_average_is_eq_3(seed, domains, classes, size):
    old, means = slow.make(seed, domains, classes, size), slow.make(seed + 1, domains, classes, size)
    seen, mass = slow.make_mask(seed + 2, domains, classes), slow.make_mask(seed + 3, domains, classes).double()
    new, now_seen = fast.moving_average(old, seen, means, mass, beta=0.7)
    for m in range(domains):
        for k in range(classes):
            if mass[m, k] == 0:
                expected = old[m, k]
            elif not seen[m, k]:
                expected = means[m, k]
            else:
                expected = 0.7 * old[m, k] + 0.3 * means[m, k]
            assert_same(new[m, k], expected)
            assert now_seen[m, k] == (seen[m, k] or mass[m, k] > 0)


def test_moving_average_passes_gradient_through_means_alone():
    old, means = slow.make(0, 3, 2).requires_grad_(), slow.make(1, 3, 2).requires_grad_()
    seen, mass = torch.tensor([True, False, True]), torch.tensor([1.0, 1.0, 0.0])
    new, _ = fast.moving_average(old, seen, means, mass, beta=0.7)
    new.sum().backward()
    assert old.grad is None
    assert_same(means.grad, torch.tensor([[0.3, 0.3], [1, 1], [0, 0]], dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda x: fast.moving_average(old, seen, x, mass, beta=0.7)[0], means)


def test_moving_average_does_not_read_what_an_unseen_prototype_holds():
    old = torch.full((1, 2), torch.nan)
    new, _ = fast.moving_average(old, torch.tensor([False]), torch.ones(1, 2), torch.ones(1), beta=0.7)
    assert new.tolist() == [[1, 1]]


@small
@given(seeds, st.integers(1, 6), st.integers(1, 6), st.integers(1, 4))
def test_squared_distances(seed, rows, columns, size):
    a, b = slow.make(seed, rows, size), slow.make(seed + 1, columns, size)
    expected = torch.stack([torch.stack([slow.squared(u, v) for v in b]) for u in a])
    assert_same(fast.squared_distances(a, b), expected)


def test_squared_distances_have_gradients_everywhere():
    a, b = slow.make(0, 4, 3).requires_grad_(), slow.make(1, 5, 3).requires_grad_()
    assert torch.autograd.gradcheck(fast.squared_distances, (a, b))
    assert torch.autograd.gradcheck(lambda x: fast.squared_distances(x, x), a)
    same_points = a.detach().clone()
    assert torch.autograd.gradcheck(lambda x: fast.squared_distances(x, same_points), a)
    twice = (100 + slow.make(2, 6, 8)).float().requires_grad_()
    fast.squared_distances(twice, twice.detach().clone()).diagonal().sum().backward()
    assert twice.grad.abs().max() < 1e-4


def test_squared_distances_of_a_point_to_itself_are_zero():
    points = (1000 + slow.make(0, 20, 64)).float()
    assert not fast.squared_distances(points, points).diagonal().any()


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_distances_of_a_graph_are_both_kinds(rows):
    queries, nodes = slow.make(0, rows, 3).requires_grad_(), slow.make(1, 4, 3).requires_grad_()
    to_nodes, among = fast.graph_distances(queries, nodes)
    assert_same(to_nodes, fast.squared_distances(queries, nodes))
    assert_same(among, fast.squared_distances(nodes, nodes))
    assert not among.diagonal().any()
    if rows:
        assert torch.autograd.gradcheck(fast.graph_distances, (queries, nodes))


def test_squared_distances_of_nearly_equal_points_keep_their_digits_in_float32():
    points = (10 + slow.make(0, 30, 256, spread=1e-3)).float()
    a, b = points[:10], points[10:]
    exact = (a.double()[:, None] - b.double()).square().sum(2)
    error = ((fast.squared_distances(a, b).double() - exact) / exact).abs().max()
    uncentred = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
    assert error < 2e-6
    assert ((uncentred.double() - exact) / exact).abs().max() > 1


def test_squared_distances_ignore_mixed_precision():
    a, b = slow.make(0, 4, 16).float(), slow.make(1, 5, 16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = fast.squared_distances(a, b)
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, fast.squared_distances(a, b))


@small
@given(seeds, st.integers(1, 6), st.integers(2, 7), st.integers(1, 4))
def test_relative_scale_is_the_mean_over_distinct_pairs(seed, domains, classes, size):
    prototypes, seen = slow.make(seed, domains, classes, size), slow.make_mask(seed + 1, domains, classes)
    scale = fast.distance_scale(prototypes, seen, reading="relative")
    assert_same(scale, torch.tensor(slow.mean_distance(prototypes, seen), dtype=torch.float64))


def test_scale_of_the_other_readings_and_of_hopeless_cases():
    prototypes, seen = slow.make(0, 2, 3, 5).requires_grad_(), torch.ones(2, 3, dtype=torch.bool)
    assert fast.distance_scale(prototypes, seen, reading="sum") == 1
    assert fast.distance_scale(prototypes, seen, reading="mean") == 5
    assert not fast.distance_scale(prototypes, seen, reading="relative").requires_grad
    one = torch.zeros(2, 3, dtype=torch.bool)
    assert fast.distance_scale(prototypes, one, reading="relative") == 1
    one[1, 1] = True
    assert fast.distance_scale(prototypes, one, reading="relative") == 1
    equal = torch.full((2, 3, 5), 0.1)
    assert fast.distance_scale(equal, seen, reading="relative") == 1
    assert fast.distance_scale(equal * (1 + 1e-3 * prototypes.detach().float()), seen, reading="relative") < 1e-3
    with pytest.raises(UserError, match="choose one of sum, mean, relative"):
        fast.distance_scale(prototypes, seen, reading="median")
