r"""Whether methods differ by more than chance: ranks, the tests of Friedman and Nemenyi, and Wilcoxon's for pairs.

The scheme is that of Demsar, "Statistical Comparisons of Classifiers over Multiple Data Sets" (JMLR 7, 2006). Scores
are a matrix of N blocks by k methods. A block is what all methods had in common, such as a target and a seed; higher is
better. With few blocks the usual approximations do not hold, so the p-values of `friedman` and `signed_rank` are those
of the permutations themselves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]

LEVEL = 0.05  # a p-value below it counts as significant
DRAWS = 9_999  # permutations drawn for Friedman's test
DIGITS = 9  # of a score; what differs by less is a tie, whatever the last bits of two sums say


@dataclass(frozen=True)
class Pair:
    """Two methods against one another.

    Attributes:
        first: Number of the one with the better average rank.
        second: Number of the other.
        difference: Mean of the first's scores less the second's.
        wins: Blocks in which the first is better.
        losses: Blocks in which it is worse; in the others they are equal.
        p: Of Wilcoxon's signed-rank test, by itself.
        adjusted: The same, corrected for all pairs (Holm).
    """

    first: int
    second: int
    difference: float
    wins: int
    losses: int
    p: float
    adjusted: float


@dataclass(frozen=True)
class Comparison:
    """Methods compared over blocks.

    Attributes:
        names: The methods, best average rank first.
        blocks: How many blocks there were.
        ranks: Average ranks, 1 being best of all.
        statistic: Friedman's, corrected for ties.
        p: Of Friedman's test: that all methods are alike.
        difference: Nemenyi's critical difference of average ranks.
        groups: Methods, by number, among which no two differ by more than that; none of a single method.
        pairs: All pairs, those with the smallest p-value first.
    """

    names: tuple[str, ...]
    blocks: int
    ranks: tuple[float, ...]
    statistic: float
    p: float
    difference: float
    groups: tuple[tuple[int, ...], ...]
    pairs: tuple[Pair, ...]


def compare(names: Sequence[str], scores: Scores) -> Comparison:
    """Compare methods by all tests of this file.

    Args:
        names: Of k methods, k > 1.
        scores: Shape (N, k), N > 0.
    """
    average = block_ranks(scores).mean(0)
    order = sorted(range(len(names)), key=lambda number: (average[number], -scores[:, number].mean()))
    ordered = scores[:, order]
    ranks = tuple(float(average[number]) for number in order)
    statistic, p = friedman(scores)
    difference = critical_difference(len(names), len(scores))
    found = list(itertools.combinations(range(len(names)), 2))
    single = [signed_rank(ordered[:, one], ordered[:, two]) for one, two in found]
    pairs = []
    for (one, two), own, adjusted in zip(found, single, holm(single), strict=True):
        gain = _differences(ordered[:, one], ordered[:, two])
        wins, losses = int((gain > 0).sum()), int((gain < 0).sum())
        pairs.append(Pair(one, two, float(gain.mean()), wins, losses, own, adjusted))
    pairs.sort(key=lambda pair: (pair.p, pair.first, pair.second))
    return Comparison(
        tuple(names[number] for number in order),
        len(scores),
        ranks,
        statistic,
        p,
        difference,
        groups_within(ranks, difference),
        tuple(pairs),
    )


def block_ranks(scores: Scores) -> Scores:
    """Return the rank of each method in each block, 1 for the highest score; those that tie share the mean of theirs.

    Shapes: scores (N, k) -> (N, k).

    >>> block_ranks(np.array([[0.9, 0.7, 0.7, 0.8]])).tolist()
    [[1.0, 3.5, 3.5, 2.0]]
    """
    from scipy.stats import rankdata

    return np.asarray(rankdata(-np.round(scores, DIGITS), axis=1), dtype=np.float64)


def friedman(scores: Scores, draws: int = DRAWS) -> tuple[float, float]:
    r"""Return Friedman's statistic and the probability of one as large if the methods were all alike.

    .. math:: \chi^2_F = \frac{(k-1) \sum_j (\sum_i r_{ij} - N \frac{k+1}{2})^2}{\sum_{ij} (r_{ij} - \frac{k+1}{2})^2}

    which is Demsar's (Sec. 3.2.2) where no scores tie. Were the methods alike, every order of a block's ranks would be
    as likely, so the probability is counted among so many random orders, always the same ones.

    Args:
        scores: Shape (N, k).
        draws: How many.
    """
    ranks = block_ranks(scores)
    blocks, methods = ranks.shape
    away = ranks - (methods + 1) / 2
    spread = float((away**2).sum())
    if spread == 0:  # every block a tie of all
        return 0.0, 1.0
    statistic = (methods - 1) * float((away.sum(0) ** 2).sum()) / spread
    generator = np.random.default_rng(0)
    reached, left = 0, draws
    while left:
        some = min(left, max(1, 2_000_000 // away.size))  # bounds memory
        orders = generator.permuted(np.broadcast_to(away, (some, blocks, methods)), axis=2)
        drawn = (methods - 1) * (orders.sum(1) ** 2).sum(1) / spread
        reached += int((drawn >= statistic - 1e-9).sum())
        left -= some
    return statistic, (1 + reached) / (1 + draws)


def critical_difference(methods: int, blocks: int, level: float = LEVEL) -> float:
    r"""Return how far two average ranks must be apart to differ significantly (Nemenyi; Demsar, Sec. 3.2.2).

    .. math:: CD = q_\alpha \sqrt{\frac{k(k+1)}{6N}}

    with the studentised range at infinitely many degrees of freedom, divided by the square root of 2, as q.

    >>> round(critical_difference(4, 14), 2)
    1.25
    """
    from scipy.stats import studentized_range

    quantile = float(studentized_range.ppf(1 - level, methods, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * blocks))


def groups_within(ranks: Sequence[float], difference: float) -> tuple[tuple[int, ...], ...]:
    """Return the largest groups of methods whose average ranks, in ascending order, differ by less than something.

    >>> groups_within([1.0, 1.5, 2.4, 4.0], 1.0)
    ((0, 1), (1, 2))
    """
    found: list[tuple[int, ...]] = []
    for first, rank in enumerate(ranks):
        group = tuple(number for number in range(first, len(ranks)) if ranks[number] - rank < difference)
        if len(group) > 1 and not (found and set(group) <= set(found[-1])):
            found.append(group)
    return tuple(found)


def signed_rank(first: Scores, second: Scores) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test (Biometrics Bulletin 1, 1945), exact also with ties.

    Blocks in which both are equal are left out. Among the signs that the other differences could have had, all as
    likely, those are counted whose smaller sum of ranks is no larger than the one found.

    Shapes: (N,), (N,).
    """
    from scipy.stats import rankdata

    gain = _differences(first, second)
    gain = gain[gain != 0]
    if not len(gain):
        return 1.0
    # Ranks that tie are halves: twice of them are whole numbers, whose sums can be counted.
    ranks = np.rint(2 * rankdata(np.abs(gain))).astype(int)
    total = int(ranks.sum())
    least = int(min(ranks[gain > 0].sum(), ranks[gain < 0].sum()))
    chance = np.zeros(total + 1)
    chance[0] = 1.0
    for rank in ranks:
        chance[rank:] = (chance[rank:] + chance[: total + 1 - rank]) / 2
        chance[:rank] /= 2
    return min(1.0, 2 * float(chance[: least + 1].sum()))


def least_p(blocks: int) -> float:
    """Return the smallest p-value that `signed_rank` can have with so many blocks.

    >>> least_p(5)
    0.0625
    """
    return min(1.0, 2.0 ** (1 - blocks))


def holm(values: Sequence[float]) -> list[float]:
    r"""Return p-values of several tests, corrected such that one limit holds for all (Holm, Scand. J. Stat. 6, 1979).

    .. math:: \tilde p_{(i)} = \max_{j \le i} \min(1, (m - j + 1) p_{(j)})

    >>> holm([0.04, 0.01, 0.03])
    [0.06, 0.03, 0.06]
    """
    found = [1.0] * len(values)
    highest = 0.0
    for place, number in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - place) * values[number]))
        found[number] = highest
    return found


def _differences(first: Scores, second: Scores) -> Scores:
    return np.round(np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64), DIGITS)
