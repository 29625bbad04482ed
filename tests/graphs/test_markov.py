import math
from collections import Counter

import pytest
import torch
import transcription as slow
from hypothesis import given, settings
from hypothesis import strategies as st

from graphmsda.errors import UserError
from graphmsda.graphs import markov as fast
from graphmsda.graphs.constraints import target_entropy

small = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31 - 20)
shapes = (st.integers(2, 6), st.integers(2, 7), st.integers(1, 4))
TAU = 4.0


def assert_same(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def draw_wrong(seed, queries, count, domains, classes):
    return fast.sample_wrong_edges(queries, count, domains=domains, classes=classes, seed=torch.tensor(seed))


@small
@given(seeds, *shapes, st.integers(1, 4))
def test_energies_are_eq_17(seed, domains, classes, size, batch):
    z, c = slow.make(seed, batch, size), slow.make(seed + 1, domains, classes, size)
    found = fast.energies(z, c, temperature=TAU)
    for q in range(batch):
        for m in range(domains):
            for k in range(classes):
                assert_same(found[q, m, k], slow.energy([z[q], c[m, k]], [(0, 1)], TAU))


@small
@given(seeds, *shapes, st.booleans())
def test_clique_edges_sum_over_the_edge_list(seed, domains, classes, size, partly):
    c = slow.make(seed, domains, classes, size)
    seen = slow.make_mask(seed, domains, classes) if partly else None
    edges = slow.clique_edge_list(domains, classes, seen)
    total, count = fast.clique_edges(c, temperature=torch.tensor(TAU, dtype=torch.float64), seen=seen)
    assert_same(total, slow.energy(c.flatten(0, 1), edges, TAU))
    assert count == len(edges)


def test_coinciding_cliques_have_no_energy_and_no_gradient():
    c = slow.make(0, 1, 5, 64).float().repeat(6, 1, 1).requires_grad_()
    total, count = fast.clique_edges(c, temperature=0.1)
    total.backward()
    assert total == 0
    assert count == 75
    assert not c.grad.any()


@small
@given(seeds, *shapes, st.booleans())
def test_posteriors_are_eqs_18_to_20(seed, domains, classes, size, partly):
    z, c = slow.make(seed, 2, size), slow.make(seed + 1, domains, classes, size, spread=0.3)
    seen = slow.make_mask(seed, domains, classes) if partly else None
    table = fast.log_joint(fast.energies(z, c, temperature=TAU), seen)
    everything = torch.ones(domains, classes, dtype=torch.bool)
    used = everything if seen is None or not seen.any() else seen
    for q in range(2):
        expected = slow.joint(z[q], c, TAU, used)
        assert_same(table[q].exp(), expected)
        assert_same(fast.label_posterior(table)[q].exp(), expected.sum(0))
        assert_same(fast.domain_posterior(table)[q].exp(), expected.sum(1))


def test_posterior_of_masked_classes_has_finite_gradients():
    energies = slow.make(0, 3, 2, 4).requires_grad_()
    seen = torch.tensor([[True, False, True, False], [True, False, False, False]])
    posterior = fast.label_posterior(fast.log_joint(energies, seen))
    assert (posterior[:, [1, 3]] == -math.inf).all()
    (posterior[:, 0].sum() + posterior.exp().square().sum() + target_entropy(posterior)).backward()
    assert torch.isfinite(energies.grad).all()
    assert not energies.grad[:, :, 1].any()
    domains = fast.domain_posterior(fast.log_joint(energies, torch.tensor([[True] * 4, [False] * 4])))
    assert_same(domains, torch.tensor([0, -math.inf], dtype=torch.float64).expand(3, 2))


def test_posterior_of_far_queries_stays_finite():
    posterior = fast.label_posterior(fast.log_joint(torch.tensor([[[1e6, 2e6], [3e6, 4e6]]])))
    assert posterior.tolist() == [[0, -1e6]]


@small
@given(seeds, st.integers(1, 6), st.integers(2, 7))
def test_wrong_edges_join_distinct_classes(seed, domains, classes):
    edges = draw_wrong(seed, 5, 4, domains, classes)
    assert edges.shape == (5, 4, 2)
    assert edges.dtype == torch.int64
    assert edges.min() >= 0
    assert edges.max() < domains * classes
    assert (edges[..., 0] % classes != edges[..., 1] % classes).all()
    assert torch.equal(edges, draw_wrong(seed, 5, 4, domains, classes))


def test_wrong_edges_are_uniform_over_unordered_pairs():
    domains, classes, draws = 3, 4, 60_000
    counts = Counter(tuple(sorted(pair)) for pair in draw_wrong(0, draws, 1, domains, classes)[:, 0].tolist())
    nodes = range(domains * classes)
    pairs = [(u, v) for u in nodes for v in nodes if u < v and u % classes != v % classes]
    assert set(counts) == set(pairs)
    expected = draws / len(pairs)
    chi_square = sum((counts[pair] - expected) ** 2 / expected for pair in pairs)
    freedom = len(pairs) - 1
    assert abs(chi_square - freedom) < 4 * math.sqrt(2 * freedom)


def test_wrong_edges_follow_their_seed_alone():
    torch.manual_seed(3)
    first = draw_wrong(5, 40, 2, 2, 3)
    torch.manual_seed(4)
    assert torch.equal(first, draw_wrong(5, 40, 2, 2, 3))
    assert not torch.equal(first, draw_wrong(6, 40, 2, 2, 3))
    assert draw_wrong(5, 4, 0, 2, 3).shape == (4, 0, 2)


@small
@given(seeds, *shapes, st.integers(1, 3), st.sampled_from([0, 1, 3, 40]))
def test_network_energies(seed, domains, classes, size, queries, count):
    c, edges = slow.make(seed, domains, classes, size), draw_wrong(seed, queries, count, domains, classes)
    z = slow.make(seed + 1, queries, size)
    own, found = fast.network_energies(z, c, edges, temperature=TAU)
    assert_same(own, fast.energies(z, c, temperature=TAU))
    assert found.shape == (queries, count)
    for q in range(queries):
        for j in range(count):
            assert_same(found[q, j], slow.energy(c.flatten(0, 1), [tuple(edges[q, j].tolist())], TAU))


def measure(z, c, domain, label, weight, edges, reading, tau=TAU):
    clique, count = fast.clique_edges(c, temperature=tau)
    if reading == "mean-clique":
        clique = clique / count.clamp(min=1)
    energies, wrong = fast.network_energies(z, c, edges, temperature=tau)
    return fast.likelihood(energies, domain, label, weight, clique=clique, wrong=wrong, reading=reading)


@small
@given(seeds, *shapes, st.integers(1, 3), st.integers(0, 4), st.sampled_from(fast.READINGS))
def test_likelihood_is_eq_22_over_explicit_networks(seed, domains, classes, size, batch, count, reading):
    z, c = slow.make(seed, batch, size), slow.make(seed + 1, domains, classes, size, spread=0.4)
    domain, label = slow.make_integers(seed, domains, batch), slow.make_integers(seed + 1, classes, batch)
    weight, edges = slow.make_mask(seed, batch).double(), draw_wrong(seed, batch, count, domains, classes)
    expected = slow.likelihood(z, c, domain, label, weight, edges, TAU, reading)
    assert float(measure(z, c, domain, label, weight, edges, reading)) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_verbatim_reading_factors_as_described():
    """The bracket of eq. 22 with the cliques' factor in front."""
    z, c = slow.make(0, 1, 3), slow.make(1, 3, 4, 3, spread=0.4)
    domain, label, edges = torch.tensor([1]), torch.tensor([2]), draw_wrong(0, 1, 5, 3, 4)
    shared = float(fast.clique_edges(c, temperature=TAU)[0])
    energies, wrong = fast.network_energies(z, c, edges, temperature=TAU)
    near, added = torch.exp(-energies[0, 1]), torch.exp(-wrong[0])
    bracket = near[2] * (1 - added.mean() * 5 / 8) - (near.sum() - near[2]) / 8
    found = measure(z, c, domain, label, torch.ones(1).double(), edges, "verbatim")
    assert_same(found, -math.exp(-shared) * bracket)


def test_log_reading_does_not_see_the_cliques():
    z, c = slow.make(0, 2, 3), slow.make(1, 3, 4, 3)
    energies, wrong = fast.energies(z, c, temperature=TAU), torch.rand(2, 5)
    rest = (torch.tensor([0, 1]), torch.tensor([2, 3]), torch.ones(2))
    near, far = (
        fast.likelihood(energies, *rest, clique=torch.tensor(s), wrong=wrong, reading="log") for s in (0.0, 9.0)
    )
    assert near == far


@pytest.mark.parametrize("reading", ["log", "logistic"])
def test_log_readings_pull_from_far_away_in_float32(reading):
    z = torch.full((2, 8), 50.0, requires_grad=True)
    c = slow.make(1, 3, 4, 8).float().requires_grad_()
    rest = (torch.tensor([0, 1]), torch.tensor([2, 3]), torch.ones(2), draw_wrong(0, 2, 5, 3, 4))
    loss = measure(z, c, *rest, reading, tau=0.1)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(z.grad).all()
    assert torch.isfinite(c.grad).all()
    assert z.grad.abs().max() > 1e-3


def test_empty_batch_and_unknown_reading():
    options = {"clique": torch.tensor(0.0), "wrong": torch.zeros(0, 2)}
    nobody = torch.zeros(0, dtype=torch.int64)
    energies = fast.energies(torch.zeros(0, 3), torch.zeros(2, 4, 3), temperature=TAU)
    for reading in fast.READINGS:
        assert fast.likelihood(energies, nobody, nobody, torch.zeros(0), reading=reading, **options) == 0
    with pytest.raises(UserError, match="choose one of verbatim, mean-clique, log, logistic"):
        fast.likelihood(energies, nobody, nobody, torch.zeros(0), reading="printed", **options)


@pytest.mark.parametrize("count", [0, 2, 30])
@pytest.mark.parametrize("reading", fast.READINGS)
def test_likelihood_gradients(reading, count):
    z, c = slow.make(0, 3, 2).requires_grad_(), slow.make(1, 3, 3, 2, spread=0.4).requires_grad_()
    rest = (torch.tensor([0, 1, 2]), torch.tensor([2, 0, 1]), torch.tensor([1.0, 0, 1]).double())
    edges = draw_wrong(0, 3, count, 3, 3)
    assert torch.autograd.gradcheck(lambda z, c: measure(z, c, *rest, edges, reading), (z, c))


def test_posterior_gradients():
    z, c = slow.make(0, 3, 2).requires_grad_(), slow.make(1, 3, 3, 2).requires_grad_()
    seen = torch.tensor([[True, True, False], [True, False, True], [False, True, True]])

    def posterior(z, c, marginal):
        return marginal(fast.log_joint(fast.energies(z, c, temperature=TAU), seen))

    for marginal in (fast.label_posterior, fast.domain_posterior):
        assert torch.autograd.gradcheck(lambda z, c, marginal=marginal: posterior(z, c, marginal), (z, c))
    assert torch.autograd.gradcheck(lambda c: fast.clique_edges(c, temperature=TAU, seen=seen)[0], c)
