"""Random numbers made of a seed and a place: those of splitmix64, uniform and independent."""

import math

import pytest
import torch

from graphmsda.data.sampler import seed_of
from graphmsda.graphs.draws import integers

MANY = 60_000


def draw(high, shape, seed):
    return integers(high, shape, torch.tensor(seed))


def reference(high, place, seed):
    """The same number in Python's unbounded integers."""
    mixed = (seed + place) % 2**64
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
    return ((mixed ^ (mixed >> 31)) >> 1) % high


def assert_uniform(values, cells):
    """Chi-square of how often each of the cells is met, within five standard deviations of what chance gives."""
    counts = torch.bincount(values, minlength=cells).double()
    assert len(counts) == cells
    expected = len(values) / cells
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = cells - 1
    assert abs(chi_square - freedom) < 5 * math.sqrt(2 * freedom), chi_square


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**62 + 3, 2**63 - 1, -5])
@pytest.mark.parametrize("high", [1, 2, 1000, 2**40, 2**63 - 1])
def test_numbers_are_those_of_unbounded_integers(high, seed):
    assert draw(high, (50,), seed).tolist() == [reference(high, place, seed) for place in range(50)]


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("high", [2, 6, 97, 1024])
def test_uniform_over_places(high, seed):
    assert_uniform(draw(high, (MANY,), seed), high)


@pytest.mark.parametrize("high", [2, 6, 97])
def test_uniform_over_seeds(high):
    assert_uniform(torch.cat([draw(high, (3,), seed_of(seed)) for seed in range(10_000)]), high)


@pytest.mark.parametrize("distance", [1, 2, 6, 128])
def test_neighbours_are_independent(distance):
    drawn = draw(6, (MANY + distance,), 3)
    assert_uniform(drawn[:-distance] * 6 + drawn[distance:], 36)


@pytest.mark.parametrize("other", [4, 5, 1003])
def test_seeds_are_independent(other):
    """Seeds as the engine makes them: mixed, since neighbouring ones give the same numbers one place on."""
    assert_uniform(draw(6, (MANY,), seed_of(3)) * 6 + draw(6, (MANY,), seed_of(other)), 36)


def test_no_two_steps_share_a_number():
    drawn = torch.cat([draw(2**62, (768,), seed_of(0, 2, step)) for step in range(1000)])
    assert len(drawn.unique()) == 768_000


def test_range_shape_and_type():
    drawn = draw(7, (5, 40, 2), 1)
    assert drawn.shape == (5, 40, 2)
    assert drawn.dtype == torch.int64
    assert set(drawn.flatten().tolist()) == set(range(7))
    assert torch.equal(drawn.flatten(), draw(7, (400,), 1))
    assert draw(7, (4, 0), 1).shape == (4, 0)
    assert draw(1, (9,), 1).tolist() == [0] * 9


def test_a_seed_says_it_all():
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    seed = torch.tensor(8)
    first = integers(1000, (300,), seed)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.manual_seed(1)
    assert torch.equal(first, integers(1000, (300,), seed))
    assert int(seed) == 8
    assert not torch.equal(first, draw(1000, (300,), 9))


def test_the_same_when_compiled():
    fast = torch.compile(integers, backend="aot_eager", dynamic=False, fullgraph=True)
    for seed in (0, 5, 2**62):  # another seed is another value, not another program
        assert torch.equal(fast(97, (40, 3), torch.tensor(seed)), draw(97, (40, 3), seed))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("seed", [0, 2**62 + 3, -5])
def test_the_same_on_a_gpu(seed):
    assert torch.equal(integers(1000, (500,), torch.tensor(seed, device="cuda")).cpu(), draw(1000, (500,), seed))
