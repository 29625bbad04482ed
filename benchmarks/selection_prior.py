"""What an estimate is off by before a run's own sources say anything: a prior from runs whose truth is known."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student

from graphmsda.selection.combination import HELD_OUT, Off, Prior, combine, interval, predictive

Row = Mapping[str, Any]
BIASES = [-number / 10 for number in range(21)]
SPREADS = [number / 10 for number in range(3, 21)]
KINDS = ("one run", "two seeds")


def tell(row: Row, prior: Prior, kind: str = "one run") -> dict[str, Any]:
    """Return what `graphmsda.selection.estimate` says of a run with a prior, from what it has kept of it."""
    kept = row["estimates"][kind]
    accuracy, low, high = interval(combine(kept["parts"]), Off(**kept["off"]), prior, row["samples"])
    return {**kept, "accuracy": accuracy, "low": low, "high": high}


def fit(rows: Sequence[Row], weight: float = HELD_OUT.weight) -> Prior:
    """Return the prior under which the true accuracies are most likely, each benchmark counting the same.

    The density is the predictive one of `graphmsda.selection.combination.interval`, on the logit scale.
    """
    kept = [row["estimates"]["one run"] for row in rows]
    known = [(combine(one["parts"]), Off(**one["off"]), row["samples"]) for one, row in zip(kept, rows, strict=True)]
    truth = np.array([row["true_logit"] for row in rows])
    names = [row["benchmark"] for row in rows]
    share = np.array([1 / names.count(name) for name in names])

    def likelihood(prior: Prior) -> float:
        told = [predictive(centre, off, prior, samples) for centre, off, samples in known]
        location, scale, freedom = np.array(told).T
        return float((share * student.logpdf(truth, freedom, location, scale)).sum())

    return max((Prior(bias, spread, weight) for bias, spread in itertools.product(BIASES, SPREADS)), key=likelihood)


def retold(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows with what the present prior says, and, beside it, the prior that all other benchmarks would give."""
    others = {}
    for name in {row["benchmark"]: None for row in rows}:
        rest = [row for row in rows if row["benchmark"] != name]
        if rest:
            others[name] = fit(rest)
    told = []
    for row in rows:
        estimates = {kind: tell(row, HELD_OUT, kind) for kind in KINDS if kind in row["estimates"]}
        if row["benchmark"] in others:
            prior = others[row["benchmark"]]
            found = tell(row, prior)
            estimates["by other benchmarks"] = {name: found[name] for name in ("accuracy", "low", "high")}
            estimates["by other benchmarks"]["prior"] = [prior.bias, prior.spread, prior.weight]
        told.append({**row, "estimates": estimates})
    return told
