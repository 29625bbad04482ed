"""Are probabilities what they say? Temperature, calibration error and reliability diagrams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphmsda.selection.evidence import Evidence, Seen, joined

BINS = 15
LEAST = -50.0  # a log-probability below counts as this: one sample a model rules out decides nothing alone
RANGE = (0.05, 20.0)  # of temperatures


@dataclass(frozen=True)
class Calibration:
    """How far probabilities can be believed, before and after the sources' temperature.

    Attributes:
        temperature: Fitted on the sources.
        sources: Calibration error on the sources as trained, and with the temperature.
        target: The same on labelled samples of the target, where there are any.
        diagrams: Reliability diagrams, by what they are of: rows of `reliability`.
    """

    temperature: float
    sources: tuple[float, float]
    target: tuple[float, float] | None
    diagrams: dict[str, list[dict[str, Any]]]


def fit_temperature(log_probabilities: Tensor, labels: Tensor) -> float:
    r"""Return the temperature under which labels are most likely (Guo et al., ICML 2017, Sec. 4.2).

    .. math:: \min_T - \sum_i \log \mathrm{softmax}(\log p_i / T)_{y_i}

    Shapes: (N, K), (N,) -> a number from 0.05 to 20.
    """
    from scipy.optimize import minimize_scalar

    scores = log_probabilities.double().clamp(min=LEAST)

    def risk(log_temperature: float) -> float:
        said = (scores / torch.tensor(log_temperature).double().exp()).log_softmax(1)
        return -float(said.gather(1, labels[:, None]).mean())

    bounds = tuple(float(torch.tensor(bound).log()) for bound in RANGE)
    found = minimize_scalar(risk, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return float(torch.tensor(float(found.x)).exp())


def reliability(seen: Seen, bins: int = BINS) -> list[dict[str, Any]]:
    """Return the rows of a reliability diagram: for each range of confidence its samples, confidence and accuracy."""
    confidence, right = seen.probabilities.amax(1), seen.right
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    rows = []
    for number in range(bins):
        inside = place == number
        count = int(inside.sum())
        row: dict[str, Any] = {"low": number / bins, "high": (number + 1) / bins, "count": count}
        row["confidence"] = float(confidence[inside].mean()) if count else None
        row["accuracy"] = float(right[inside].mean()) if count else None
        rows.append(row)
    return rows


def calibration_error(seen: Seen, bins: int = BINS) -> float:
    r"""Expected calibration error (Naeini et al., AAAI 2015): how far confidence is from accuracy, over bins.

    .. math:: \sum_b \frac{|b|}{n} \, \lvert \mathrm{accuracy}(b) - \mathrm{confidence}(b) \rvert
    """
    rows = [row for row in reliability(seen, bins) if row["count"]]
    return float(sum(row["count"] * abs(row["accuracy"] - row["confidence"]) for row in rows) / len(seen))


def calibrate(evidence: Evidence, test: Seen | None = None) -> Calibration:
    """Fit the temperature on the sources, and measure what it does there and on labelled samples of the target."""
    source = joined(evidence.sources)
    assert source.labels is not None
    temperature = fit_temperature(source.log_probabilities, source.labels)
    pairs = {"sources": (source, source.tempered(temperature))}
    if test is not None:
        pairs["target"] = (test, test.tempered(temperature))
    errors = {name: (calibration_error(before), calibration_error(after)) for name, (before, after) in pairs.items()}
    diagrams = {}
    for name, (before, after) in pairs.items():
        diagrams[name], diagrams[f"{name}, tempered"] = reliability(before), reliability(after)
    return Calibration(temperature, errors["sources"], errors.get("target"), diagrams)
