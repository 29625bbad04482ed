"""The place of a stream is a function of seed and step."""

from __future__ import annotations

import pytest
import torch

from graphmsda.data.sampler import Stream, seed_of


@pytest.mark.parametrize(("size", "batch"), [(10, 3), (7, 7), (5, 13), (1, 4), (12, 1)])
def test_each_pass_is_a_permutation(size: int, batch: int) -> None:
    stream = Stream(size, batch, seed=1)
    steps = -(-4 * size // batch)
    drawn = stream.batches(range(steps)).flatten()
    assert drawn.dtype == torch.int64
    assert all(stream.batches(range(3, 3 + count)).shape == (count, batch) for count in (1, 2, 5))
    for number in range(4):
        assert sorted(drawn[number * size : (number + 1) * size].tolist()) == list(range(size))


def test_passes_differ() -> None:
    stream = Stream(20, 20, seed=0)
    assert not torch.equal(stream.batches(range(1)), stream.batches(range(1, 2)))


def test_a_step_does_not_depend_on_those_before() -> None:
    used = Stream(10, 4, seed=3)
    for step in (0, 1, 2, 50, 7):
        used.batches(range(step, step + 1))
    fresh = Stream(10, 4, seed=3)
    state = torch.random.get_rng_state()
    for step in (1000, 7, 3):
        assert torch.equal(used.batches(range(step, step + 1)), fresh.batches(range(step, step + 1)))
        assert torch.equal(fresh.batches(range(step, step + 1)), fresh.batches(range(step, step + 1)))
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(("size", "batch"), [(10, 4), (3, 8), (7, 7)])
def test_many_steps_at_once_are_single_steps(size: int, batch: int) -> None:
    one, many = Stream(size, batch, seed=2), Stream(size, batch, seed=2)
    for steps in (range(6), range(4, 30), range(1000, 1003)):
        singles = [one.batches(range(step, step + 1)) for step in steps]
        assert torch.equal(many.batches(steps), torch.cat(singles))


def test_seeds_differ() -> None:
    one, two = (Stream(50, 10, seed).batches(range(5)) for seed in (0, 1))
    assert not torch.equal(one, two)


def test_seed_of_tells_numbers_and_places_apart() -> None:
    seeds = {seed_of(*numbers) for a in range(20) for b in range(20) for numbers in ((a, b), (a, b, 0), (a, b, 1))}
    assert len(seeds) == 1200
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(1, 2) == seed_of(1, 2)
    assert seed_of(-1) != seed_of(1)
    assert 0 <= seed_of(-(2**70)) < 2**63
