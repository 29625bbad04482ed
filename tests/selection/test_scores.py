"""Every score against a slow transcription of its formula, and against what it is to tell apart."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from graphmsda.selection import SCORES, Evidence, Mixed, Seen, score_run
from graphmsda.selection import scores as module
from graphmsda.selection.calibration import fit_temperature
from graphmsda.selection.estimators import prior_of
from graphmsda.selection.evidence import joined
from graphmsda.selection.gather import mix
from graphmsda.selection.ratios import density_ratios, logistic_regression
from graphmsda.selection.residuals import target_parts
from tests.figures.helpers import untrained
from tests.selection.helpers import blobs, evidence, seen


def h(p: list[float]) -> float:
    return -sum(value * math.log(value) for value in p if value > 0)


def rows_of(part: Seen) -> list[list[float]]:
    return part.probabilities.tolist()


def slow_entropy(e: Evidence) -> float:
    rows = rows_of(e.target)
    return sum(h(row) for row in rows) / len(rows)


def slow_information(e: Evidence) -> float:
    rows = rows_of(e.target)
    mean = [sum(row[k] for row in rows) / len(rows) for k in range(len(rows[0]))]
    return h(mean) - slow_entropy(e)


def slow_density(e: Evidence) -> float:
    rows = rows_of(e.target)
    units = [[value / math.sqrt(sum(v * v for v in row)) for value in row] for row in rows]
    total = 0.0
    for i, one in enumerate(units):
        weights = [
            math.exp(sum(a * b for a, b in zip(one, other, strict=True)) / 0.05)
            for j, other in enumerate(units)
            if j != i
        ]
        total += h([weight / sum(weights) for weight in weights])
    return total / len(units)


def slow_weighted(e: Evidence) -> float:
    source = joined(e.sources)
    ratios = density_ratios(source.embeddings, e.target.embeddings).tolist()
    assert source.labels is not None
    wrong = [int(np.argmax(row) != y) for row, y in zip(rows_of(source), source.labels.tolist(), strict=True)]
    return sum(w * bad for w, bad in zip(ratios, wrong, strict=True)) / len(wrong)


def slow_validation(e: Evidence) -> float:
    source = joined(e.sources)
    ratios = density_ratios(source.embeddings, e.target.embeddings).numpy()
    assert source.labels is not None
    wrong = np.array([int(np.argmax(row) != y) for row, y in zip(rows_of(source), source.labels.tolist(), strict=True)])
    losses = ratios * wrong
    eta = -np.cov(losses, ratios)[0, 1] / np.var(ratios, ddof=1)
    return float(losses.mean() + eta * ratios.mean() - eta)


def slow_norm(e: Evidence) -> float:
    matrix = np.array(rows_of(e.target))
    return float(np.linalg.svd(matrix, compute_uv=False).sum() / math.sqrt(len(matrix) * min(matrix.shape)))


def slow_balance(e: Evidence) -> float:
    rows = rows_of(e.target)
    total = 0.0
    for k in range(len(rows[0])):
        mean = sum(row[k] for row in rows) / len(rows)
        shares = []
        for part in e.sources:
            assert part.labels is not None
            shares.append((part.labels.tolist().count(k) + 0.5) / (len(part) + 0.5 * len(rows[0])))
        total += mean * math.log(mean / (sum(shares) / len(shares)))
    return total


def slow_transport(e: Evidence) -> float:
    """The linear programme itself, with class shares in whole samples."""
    source = joined(e.sources)
    assert source.labels is not None
    temperature = fit_temperature(source.log_probabilities, source.labels)
    matrix = e.target.tempered(temperature).probabilities.numpy()
    n, classes = matrix.shape
    places = (prior_of(e.sources) * n).numpy()
    counts = np.floor(places)
    for k in np.argsort(-(places - counts), kind="stable")[: int(n - counts.sum())]:
        counts[k] += 1
    equal = np.zeros((n + classes, n * classes))
    for i in range(n):
        for k in range(classes):
            equal[i, i * classes + k] = equal[n + k, i * classes + k] = 1
    found = linprog((1 - matrix).ravel() / n, A_eq=equal, b_eq=[*np.ones(n), *counts], bounds=(0, None))
    return 1 - float(found.fun)


def slow_mixval(e: Evidence) -> float:
    assert e.mixed is not None
    triples = list(zip(e.mixed.first.tolist(), e.mixed.second.tolist(), e.mixed.predicted.tolist(), strict=True))
    same = [first == guess for first, second, guess in triples if first == second]
    other = [first == guess for first, second, guess in triples if first != second]
    return (sum(same) / len(same) + sum(other) / len(other)) / 2


def slow_agreement(e: Evidence) -> float:
    posteriors = e.target.posteriors.tolist()
    total, pairs = 0.0, 0
    for query in posteriors:
        for m, one in enumerate(query):
            for n, other in enumerate(query):
                if m != n:
                    total += sum(a * b for a, b in zip(one, other, strict=True))
                    pairs += 1
    return total / pairs


def slow_accuracy(e: Evidence) -> float:
    shares = []
    for part in e.sources:
        assert part.labels is not None
        right = [int(np.argmax(row) == y) for row, y in zip(rows_of(part), part.labels.tolist(), strict=True)]
        shares.append(sum(right) / len(right))
    return sum(shares) / len(shares)


SLOW = {
    "entropy": slow_entropy,
    "information": slow_information,
    "neighbourhood-density": slow_density,
    "importance-weighted": slow_weighted,
    "deep-embedded-validation": slow_validation,
    "nuclear-norm": slow_norm,
    "class-balance": slow_balance,
    "transport": slow_transport,
    "mixval": slow_mixval,
    "capped-mixval": lambda e: min(slow_mixval(e), slow_transport(e)),
    "prototype-agreement": slow_agreement,
    "source-accuracy": slow_accuracy,
}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_is_its_formula(name: str, seed: int) -> None:
    given = evidence(seed)
    assert SCORES[name](given) == pytest.approx(SLOW[name](given), rel=1e-8)


@pytest.mark.parametrize("name", SCORES)
def test_is_pure(name: str) -> None:
    given = evidence(4)
    copy = dataclasses.replace(given)
    before = [part.log_probabilities.clone() for part in (*given.sources, given.target)]
    assert SCORES[name](given) == SCORES[name](copy)
    for was, part in zip(before, (*given.sources, given.target), strict=True):
        assert torch.equal(was, part.log_probabilities)


@pytest.mark.parametrize(
    "name", ["entropy", "information", "nuclear-norm", "class-balance", "transport", "neighbourhood-density"]
)
def test_sure_and_balanced_beats_collapsed_or_unsure(name: str) -> None:
    given = evidence(0)
    sure = torch.eye(4).double().repeat(8, 1).clamp(min=1e-6).log().log_softmax(1)
    flat = torch.zeros(32, 4).double().log_softmax(1)
    one = sure[:1].repeat(32, 1)

    def value(said: torch.Tensor) -> float:
        target = Seen("t", said, torch.zeros(32, 5), torch.full((32, 3, 4), 0.25).double())
        score = SCORES[name]
        return (1 if score.higher else -1) * score(dataclasses.replace(given, target=target))

    if name not in ("class-balance", "neighbourhood-density"):  # they look at balance or density alone
        assert value(sure) > value(flat)
    if name not in ("entropy", "neighbourhood-density"):  # known weaknesses: collapse looks good to them
        assert value(sure) > value(one)
    if name == "neighbourhood-density":
        assert value(one) > value(sure)


def test_weights_tell_where_the_target_lies() -> None:
    draws = torch.Generator().manual_seed(0)
    source = torch.randn(400, 3, generator=draws)
    target = torch.randn(400, 3, generator=draws) + torch.tensor([1.0, 0.0, 0.0])
    ratios = density_ratios(source, target)
    truth = torch.exp(source[:, 0].double() - 0.5)  # of two normal densities
    assert float(torch.corrcoef(torch.stack((ratios.log(), truth.log())))[0, 1]) > 0.97
    assert 0.8 < float(ratios.mean()) < 1.3


def test_logistic_regression_is_at_its_minimum() -> None:
    draws = torch.Generator().manual_seed(1)
    below, above = torch.randn(40, 3, generator=draws).double(), torch.randn(60, 3, generator=draws).double() + 0.5
    weight, bias = logistic_regression(below, above, decay=0.01)

    def loss(w: torch.Tensor, b: torch.Tensor) -> float:
        value = sum(math.log1p(math.exp(float(x @ w + b))) for x in below) / (2 * len(below))
        value += sum(math.log1p(math.exp(-float(x @ w + b))) for x in above) / (2 * len(above))
        return value + 0.005 * float(w @ w)

    best = loss(weight, bias)
    for step in torch.randn(20, 4, generator=draws).double() * 0.05:
        assert loss(weight + step[:3], bias + step[3]) > best


def test_density_of_many_samples_takes_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NEIGHBOURS", 10)
    assert 0 < SCORES["neighbourhood-density"](evidence(0)) <= math.log(9)


def test_a_cap_finds_out_who_says_one_class_of_everything() -> None:
    given = evidence(0)
    assert given.mixed is not None
    given = dataclasses.replace(given, mixed=dataclasses.replace(given.mixed, predicted=given.mixed.first))
    said = torch.full_like(given.target.log_probabilities, 1e-4)
    said[:, 0] = 1
    same = torch.zeros(30, dtype=torch.int64)
    collapsed = dataclasses.replace(
        given,
        target=dataclasses.replace(given.target, log_probabilities=said.log().log_softmax(1)),
        mixed=Mixed(same, same, same),
    )
    assert SCORES["mixval"](collapsed) == SCORES["mixval"](given) == 1
    assert SCORES["capped-mixval"](collapsed) < 0.35 < 0.7 < SCORES["capped-mixval"](given)


def test_what_a_run_cannot_have_is_not_a_number() -> None:
    given = dataclasses.replace(evidence(0), mixed=None)
    assert math.isnan(SCORES["mixval"](given))
    assert math.isnan(SCORES["capped-mixval"](given))
    alone = evidence(0, sources=1)
    assert math.isnan(SCORES["prototype-agreement"](alone))


@pytest.mark.parametrize("sources", [1, 3])
def test_few_samples_are_legal(sources: int) -> None:
    given = evidence(1, count=1, sources=sources)
    target = seen("t", 1, labelled=False, domains=sources)
    tiny = dataclasses.replace(given, target=target, mixed=mix(torch.zeros(1, 2), target.predicted, torch.flatten))
    for score in SCORES.values():
        assert isinstance(score(tiny), float)
    parts = target_parts(tiny)
    assert all(0 < value < 1 for value in parts.values())


def test_mixtures_are_of_the_pairs_they_say() -> None:
    x = torch.arange(40.0)[:, None]
    classes = torch.arange(40) % 3
    mixed: list[torch.Tensor] = []

    def predict(blend: torch.Tensor) -> torch.Tensor:
        mixed.append(blend)
        return torch.zeros(len(blend), dtype=torch.int64)

    found = mix(x, classes, predict)
    alike = found.first == found.second
    assert alike.any()
    assert not alike.all()
    possible = {
        round(0.55 * a + 0.45 * b, 4): (int(classes[a]), int(classes[b]))
        for a in range(40)
        for b in range(40)
        if a != b
    }
    assert all(round(float(value), 4) in possible for value in torch.cat(mixed).flatten())
    images = torch.randint(256, (12, 3, 4, 4), dtype=torch.uint8)
    mix(images, torch.arange(12) % 2, lambda blend: torch.zeros(len(blend), dtype=torch.int64))


@pytest.mark.parametrize("method", ["mrf", "source-only"])
def test_scores_of_a_run(method: str) -> None:
    task, _ = blobs()
    run = untrained(method, domains=task.domains, classes=task.classes)
    found = score_run(run, task)
    assert list(found) == list(SCORES)
    assert all(isinstance(value, float) for value in found.values())


def test_all_say_what_they_are() -> None:
    for score in SCORES.values():
        assert score.text
        assert score.paper
    assert seen("a", 3).accuracy <= 1
