"""Statistics against SciPy, against every permutation counted one by one, and against Demsar's printed numbers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graphmsda.study.significance import (
    block_ranks,
    compare,
    critical_difference,
    friedman,
    groups_within,
    holm,
    least_p,
    signed_rank,
)

# Demsar (2006), Table 6: AUC of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf on 14 data sets.
DEMSAR = np.array(
    [
        [0.763, 0.768, 0.771, 0.798],
        [0.599, 0.591, 0.590, 0.569],
        [0.954, 0.971, 0.968, 0.967],
        [0.628, 0.661, 0.654, 0.657],
        [0.882, 0.888, 0.886, 0.898],
        [0.936, 0.931, 0.916, 0.931],
        [0.661, 0.668, 0.609, 0.685],
        [0.583, 0.583, 0.563, 0.625],
        [0.775, 0.838, 0.866, 0.875],
        [1.000, 1.000, 1.000, 1.000],
        [0.940, 0.962, 0.965, 0.962],
        [0.619, 0.666, 0.614, 0.669],
        [0.972, 0.981, 0.97501, 0.975],  # both printed as 0.975, and ranked 2 and 3
        [0.957, 0.978, 0.946, 0.970],
    ]
)
NAMES = ("C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf")


def test_the_textbooks_ranks() -> None:
    average = block_ranks(DEMSAR).mean(0)
    assert average.round(3).tolist() == [3.143, 2.0, 2.893, 1.964]
    # The statistic as it is printed there, which knows no correction for ties; ours is larger by it.
    printed = 12 * 14 / (4 * 5) * ((average**2).sum() - 4 * 5**2 / 4)
    assert printed == pytest.approx(9.28, abs=0.005)
    assert friedman(DEMSAR)[0] > printed


@pytest.mark.parametrize(
    ("level", "printed"),
    [
        (0.05, [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]),
        (0.10, [1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920]),
    ],
)
def test_the_textbooks_critical_values(level: float, printed: list[float]) -> None:
    for methods, value in enumerate(printed, 2):
        found = critical_difference(methods, 1, level) / math.sqrt(methods * (methods + 1) / 6)
        assert found == pytest.approx(
            value, abs=0.0011
        )  # tables printed from different sources differ in the last digit


def test_the_textbooks_critical_difference() -> None:
    assert critical_difference(4, 14, 0.05) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14, 0.10) == pytest.approx(1.12, abs=0.005)


def test_friedman_is_scipys() -> None:
    generator = np.random.default_rng(1)
    for methods, blocks in ((3, 20), (5, 12), (8, 30)):
        scores = generator.random((blocks, methods)).round(1) + np.linspace(0, 0.2, methods).round(1)
        scores = scores.round(1)  # ties that are ties to the last bit
        statistic, p = friedman(scores)
        theirs = stats.friedmanchisquare(*scores.T)
        assert statistic == pytest.approx(theirs.statistic)
        assert p == pytest.approx(theirs.pvalue, abs=0.02)  # theirs is approximate with so few blocks


def test_friedman_counts_permutations() -> None:
    scores = np.array([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4], [0.5, 0.7, 0.6]])

    def statistic(rows: tuple[tuple[float, ...], ...]) -> float:
        blocks, methods = len(rows), len(rows[0])
        sums = [sum(row[number] for row in rows) for number in range(methods)]
        return 12 / (blocks * methods * (methods + 1)) * sum(one**2 for one in sums) - 3 * blocks * (methods + 1)

    ranks = tuple(tuple(row) for row in block_ranks(scores).tolist())
    found = statistic(ranks)
    drawn = [statistic(rows) for rows in itertools.product(*(itertools.permutations(row) for row in ranks))]
    exact = sum(one >= found - 1e-9 for one in drawn) / len(drawn)
    ours, p = friedman(scores)
    assert ours == pytest.approx(found)
    assert p == pytest.approx(exact, abs=0.015)
    assert friedman(scores) == (ours, p)  # the same again


def test_friedman_of_next_to_nothing() -> None:
    assert friedman(np.full((4, 3), 0.5)) == (0.0, 1.0)
    assert friedman(np.array([[0.5, 0.7, 0.9]]))[1] == 1.0  # one block has an order, which says nothing


def brute_force(first: list[float], second: list[float]) -> float:
    """Every sign of every difference, one by one."""
    gain = [round(a - b, 9) for a, b in zip(first, second, strict=True) if round(a - b, 9) != 0]
    if not gain:
        return 1.0
    sizes = sorted(abs(one) for one in gain)
    rank = {size: (sizes.index(size) + len(sizes) - sizes[::-1].index(size) + 1) / 2 for size in sizes}
    total = sum(rank[abs(one)] for one in gain)
    up = sum(rank[abs(one)] for one in gain if one > 0)
    least = min(up, total - up)
    reached = 0
    for signs in itertools.product((0, 1), repeat=len(gain)):
        reached += sum(rank[abs(one)] for one, sign in zip(gain, signs, strict=True) if sign) <= least + 1e-9
    return min(1.0, 2 * reached / 2 ** len(gain))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=9))
def test_signed_rank_counts_signs(pairs: list[tuple[int, int]]) -> None:
    first, second = ([pair[place] / 7 for pair in pairs] for place in (0, 1))
    assert signed_rank(np.array(first), np.array(second)) == pytest.approx(brute_force(first, second))


@pytest.mark.parametrize("blocks", [1, 5, 12, 25, 40])
def test_signed_rank_is_scipys(blocks: int) -> None:
    generator = np.random.default_rng(blocks)
    first, second = generator.random(blocks), generator.random(blocks) - 0.1
    theirs = stats.wilcoxon(first, second, method="exact").pvalue
    assert signed_rank(first, second) == pytest.approx(theirs)


def test_the_least_that_wilcoxon_can_say() -> None:
    for blocks in range(1, 12):
        better = np.arange(1, blocks + 1) / 100
        assert signed_rank(0.5 + better, np.full(blocks, 0.5)) == pytest.approx(least_p(blocks))
    assert least_p(5) > 0.05 > least_p(6)


def test_sums_that_differ_in_their_last_bits_tie() -> None:
    assert 0.1 + 0.2 != 0.3
    assert block_ranks(np.array([[0.1 + 0.2, 0.3]])).tolist() == [[1.5, 1.5]]
    assert signed_rank(np.array([0.1 + 0.2]), np.array([0.3])) == 1.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_steps_down(values: list[float]) -> None:
    found = holm(values)
    order = sorted(range(len(values)), key=lambda number: values[number])
    for place, number in enumerate(order):  # the definition, for each by itself
        expected = max(min(1.0, (len(values) - before) * values[order[before]]) for before in range(place + 1))
        assert found[number] == pytest.approx(expected)
    assert all(adjusted >= own for adjusted, own in zip(found, values, strict=True))


def test_groups() -> None:
    assert groups_within([1.0, 2.0, 3.0], 5.0) == ((0, 1, 2),)
    assert groups_within([1.0, 2.0, 3.0], 0.5) == ()
    assert groups_within([1.0, 1.2, 1.9, 2.1, 4.0, 4.5], 1.0) == ((0, 1, 2), (1, 2, 3), (4, 5))


def test_a_comparison() -> None:
    found = compare(NAMES, DEMSAR)
    assert found.names == ("C4.5+m+cf", "C4.5+m", "C4.5+cf", "C4.5")
    assert found.blocks == 14
    assert found.p < 0.05
    # Demsar, Sec. 3.2.2: at 0.05 no two classifiers are told apart by Nemenyi's test, 3.143 - 1.964 < 1.25.
    assert found.groups == ((0, 1, 2, 3),)
    assert len(found.pairs) == 6
    assert [pair.p for pair in found.pairs] == sorted(pair.p for pair in found.pairs)
    (one,) = [pair for pair in found.pairs if {found.names[pair.first], found.names[pair.second]} == {"C4.5", "C4.5+m"}]
    assert (one.wins, one.losses) == (10, 2)
    assert one.difference == pytest.approx(float((DEMSAR[:, 1] - DEMSAR[:, 0]).mean()))
    assert one.adjusted >= one.p


def test_clear_differences_are_found() -> None:
    generator = np.random.default_rng(0)
    scores = np.array([0.9, 0.8, 0.7]) + 0.01 * generator.standard_normal((20, 3))
    found = compare(("a", "b", "c"), scores)
    assert found.ranks == (1.0, 2.0, 3.0)
    assert found.p < 0.001
    assert found.groups == ()
    assert all(pair.adjusted < 0.001 for pair in found.pairs)


def test_methods_that_are_alike_are_seldom_called_different() -> None:
    generator = np.random.default_rng(3)
    called = [compare(tuple("abcd"), generator.random((10, 4))) for _ in range(40)]
    assert sum(one.p < 0.05 for one in called) <= 6
    assert sum(any(pair.adjusted < 0.05 for pair in one.pairs) for one in called) <= 6
