import numpy as np
import pytest

from graphmsda.data.checks import hash_search
from graphmsda.data.checks.hash_search import HashSearch


def found(hashes, bits):
    search = HashSearch(hashes, bits)
    pairs = [tuple(sorted(pair)) for block in search for pair in block.tolist()]
    assert len(pairs) == len(set(pairs)), "a pair comes once"
    return set(pairs), search.complete


def all_with_all(hashes, bits):
    apart = np.array([[int(a ^ b).bit_count() for b in hashes.tolist()] for a in hashes.tolist()])
    return set(zip(*map(np.ndarray.tolist, np.nonzero(np.triu(apart <= bits, 1))), strict=True))


def flipped(hashes, count, rng):
    for _ in range(count):
        hashes = hashes ^ (np.uint64(1) << rng.integers(0, 64, len(hashes)).astype(np.uint64))
    return hashes


@pytest.mark.parametrize("bits", [0, 1, 5, 8, 11, 12])
def test_every_pair_that_comparing_all_with_all_finds_and_no_other(bits):
    rng = np.random.default_rng(bits)
    hashes = rng.integers(0, 1 << 63, 150, dtype=np.uint64)
    hashes = np.concatenate(
        [hashes, hashes[:20], *(flipped(hashes[:30], count, rng) for count in (1, 5, 8, 9, 12, 13))]
    )
    assert found(hashes, bits) == (all_with_all(hashes, bits), True)


def test_without_numpys_own_count_of_bits(monkeypatch):
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 1 << 63, 50, dtype=np.uint64)
    hashes = np.concatenate([hashes, flipped(hashes, 6, rng)])
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert found(hashes, 8)[0] == all_with_all(hashes, 8)


def test_many_equal_hashes_stay_bounded_and_tied_together():
    hashes = np.zeros(30_000, dtype=np.uint64)
    pairs, complete = 0, None
    search = HashSearch(hashes, 8)
    tied = np.zeros(len(hashes), dtype=bool)
    for block in search:
        pairs += len(block)
        tied[block.ravel()] = True
    complete = search.complete
    assert pairs < 100 * len(hashes)
    assert tied.all()
    assert not complete


def test_a_search_that_would_take_too_long_gives_up_and_says_so(monkeypatch):
    monkeypatch.setattr(hash_search, "MOST_PAIRS", 100)
    rng = np.random.default_rng(0)
    hashes = flipped(np.zeros(500, dtype=np.uint64), 3, rng)
    assert not found(hashes, 8)[1]


def test_nothing_and_one():
    assert found(np.empty(0, dtype=np.uint64), 8) == (set(), True)
    assert found(np.ones(1, dtype=np.uint64), 8) == (set(), True)
