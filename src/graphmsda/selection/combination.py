"""Several estimates made one, and what it may be off by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graphmsda.selection.evidence import Seen

LEVEL = 0.9
EDGE = 0.002  # an estimate is not nearer to 0 or 1
# Root mean square errors of the estimators, on the logit scale, over 60 runs on the embedded data: what they weigh.
ERRORS = {
    "thresholded-confidence": 0.57,
    "difference-of-confidences": 0.64,
    "transport": 0.54,
    "nearest-prototypes": 0.9,
    "agreement": 0.39,
}


@dataclass(frozen=True)
class Prior:
    """What is known of the combination's error before anything is learned of a run's own data.

    Attributes:
        bias: Mean of the true less the estimated logit.
        spread: Standard deviation of that.
        weight: How many domains' worth of experience it is.
    """

    bias: float
    spread: float
    weight: float


# By runs on the embedded data, Digits-five and PACS: docs/selection.md says how, and what the same rule gives for each
# of them by the other two.
HELD_OUT = Prior(-1.0, 0.8, 8)
TRAINED_ON = Prior(-0.8, 1.0, 4)
REHEARSED = Prior(-0.5, 0.9, 2)


class Off(NamedTuple):
    """What the combination was off by, true less estimated logit, where sources played the target."""

    players: int
    mean: float
    squares: float
    """Sum of squared differences from the mean."""


NOBODY = Off(0, 0.0, 0.0)


def off_by(locations: Sequence[float], spreads: Sequence[float]) -> Off:
    """Put residuals together.

    Args:
        locations: Residuals whose mean corrects the combination.
        spreads: Residuals whose spread widens the interval, as many; in rehearsals the same.

    >>> off_by([0.5, 1.5], [-1.0, 1.0])
    Off(players=2, mean=1.0, squares=2.0)
    """
    count = len(locations)
    mean = sum(locations) / count if count else 0.0
    middle = sum(spreads) / count if count else 0.0
    return Off(count, mean, sum((value - middle) ** 2 for value in spreads))


def combine(parts: Mapping[str, float], weights: Mapping[str, float] | None = None) -> float:
    """Return the weighted mean of estimates on the logit scale; by default each weighs by its usual error."""
    chosen = weights or {name: error**-2 for name, error in ERRORS.items()}
    total = sum(chosen[name] for name in parts)
    return sum(chosen[name] * logit(value) for name, value in parts.items()) / total


def learned_weights(found: Sequence[tuple[str, Mapping[str, float], float]]) -> dict[str, float]:
    """Return what each estimator weighs: the inverse of its mean square error, 4 players' worth of it from `ERRORS`."""
    weights = {}
    for name, before in ERRORS.items():
        by_player: dict[str, list[float]] = {}
        for player, parts, truth in found:
            if name in parts:
                by_player.setdefault(player, []).append((truth - logit(parts[name])) ** 2)
        squares = [sum(values) / len(values) for values in by_player.values()]
        weights[name] = (4 + len(squares)) / (4 * before**2 + sum(squares))
    return weights


def interval(centre: float, off: Off, prior: Prior, samples: int) -> tuple[float, float, float]:
    r"""Return the predicted accuracy with its interval: Student's on the logit scale, a normal-inverse-gamma prior.

    .. math:: c + \mu \pm t_{\nu} \sqrt{s^2 (1 + 1 / \kappa) + \frac{1}{N p (1 - p)}}, \quad
              \kappa = \nu = w + n, \quad p = \mathrm{sigmoid}(c + \mu), \quad
              \mu = \frac{w b_0 + n \bar r}{w + n}, \quad
              \nu s^2 = w s_0^2 + \sum_m (r_m - \bar r)^2 + \frac{w n}{w + n} (\bar r - b_0)^2

    for a combination c, residuals :math:`r_m` of n players and a prior of bias :math:`b_0`, spread :math:`s_0` and
    weight w (Gelman et al., Bayesian Data Analysis, Sec. 3.3). The last term under the root is what the number N of
    samples leaves to chance.

    Args:
        centre: The combination, a logit.
        off: What it was off by where labels are known.
        prior: What was known before.
        samples: How many samples of the target were looked at.
    """
    from scipy.stats import t as student

    location, scale, weight = predictive(centre, off, prior, samples)
    half = float(student.ppf((1 + LEVEL) / 2, weight)) * scale
    return sigmoid(location), sigmoid(location - half), sigmoid(location + half)


def predictive(centre: float, off: Off, prior: Prior, samples: int) -> tuple[float, float, float]:
    """Return location, scale and degrees of freedom of the distribution that `interval` is of, on the logit scale."""
    weight = prior.weight + off.players
    bias = (prior.weight * prior.bias + off.players * off.mean) / weight
    squares = prior.weight * prior.spread**2 + off.squares
    squares += prior.weight * off.players / weight * (off.mean - prior.bias) ** 2
    accuracy = sigmoid(centre + bias)
    variance = squares / weight * (1 + 1 / weight) + 1 / (samples * accuracy * (1 - accuracy))
    return centre + bias, math.sqrt(variance), weight


def sigmoid(value: float) -> float:
    """Return the share that a logit stands for."""
    return 1 / (1 + math.exp(-value))


def logit(share: float) -> float:
    """Return the logit of an accuracy, kept off 0 and 1.

    >>> logit(0.5), round(logit(1.0), 2)
    (0.0, 6.21)
    """
    kept = min(max(share, EDGE), 1 - EDGE)
    return math.log(kept / (1 - kept))


def true_logit(seen: Seen) -> float:
    """Return the logit of a measured accuracy, half a sample added to right and wrong ones."""
    return logit((float(seen.right.sum()) + 0.5) / (len(seen) + 1))
