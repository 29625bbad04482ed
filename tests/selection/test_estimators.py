"""Estimators against slow transcriptions of their papers, and where the truth is known."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from graphmsda.selection import Seen
from graphmsda.selection.calibration import calibrate, calibration_error, fit_temperature, reliability
from graphmsda.selection.estimators import (
    agreement,
    ceiling,
    certainty,
    class_shares,
    difference_of_confidences,
    nearest_prototypes,
    read_parts,
    thresholded_confidence,
    transport,
)
from graphmsda.selection.evidence import joined
from tests.selection.helpers import chance, evidence, seen


def calibrated(count: int, sharp: float, seed: int) -> Seen:
    """Return predictions whose labels are drawn from the probabilities themselves."""
    draws = chance(seed)
    said = (sharp * torch.randn(count, 4, generator=draws)).double().log_softmax(1)
    labels = torch.multinomial(said.exp(), 1, generator=draws)[:, 0]
    return Seen("drawn", said, torch.zeros(count, 2), torch.full((count, 3, 4), 0.25).double(), labels)


@pytest.mark.parametrize("seed", range(4))
def test_thresholded_confidence_is_its_formula(seed: int) -> None:
    source, target = seen("s", 41, seed=seed, skill=1.0), seen("t", 37, seed=seed + 50)
    wrong = sum(1 - int(value) for value in source.right.tolist())
    scores = sorted(certainty(source).tolist())
    threshold = next(t for t in scores if sum(score < t for score in scores) == wrong)
    expected = sum(score >= threshold for score in certainty(target).tolist()) / 37
    assert thresholded_confidence(source, target) == pytest.approx(expected)


def test_thresholded_confidence_gives_the_source_its_own_accuracy() -> None:
    source = seen("s", 60, seed=3, skill=1.0)
    assert thresholded_confidence(source, source) == pytest.approx(source.accuracy)
    all_wrong = dataclasses.replace(source, labels=(source.predicted + 1) % 4)
    assert thresholded_confidence(all_wrong, source) == 0


@pytest.mark.parametrize("seed", range(4))
def test_difference_of_confidences_is_its_formula(seed: int) -> None:
    source, target = seen("s", 31, seed=seed), seen("t", 17, seed=seed + 9, sharp=1.0)
    high = sum(max(row) for row in source.probabilities.tolist()) / 31
    low = sum(max(row) for row in target.probabilities.tolist()) / 17
    expected = min(max(source.accuracy - (high - low), 0), 1)
    assert difference_of_confidences(source, target) == pytest.approx(expected)


def test_agreement_and_prototypes_are_their_formulas() -> None:
    assert agreement(torch.tensor([0, 1, 2, 2]), torch.tensor([0, 1, 1, 2])) == 0.75
    given = evidence(3)
    parts = tuple((part, torch.tensor([m for m in range(3) if m != own])) for own, part in enumerate(given.sources))

    def votes(part: Seen, judges: list[int]) -> list[float]:
        found = []
        for query, said in zip(part.posteriors.tolist(), part.predicted.tolist(), strict=True):
            found.append(sum(query[m].index(max(query[m])) == said for m in judges) / len(judges))
        return found

    on_sources = [vote for part, judges in parts for vote in votes(part, judges.tolist())]
    right = [value for part in given.sources for value in part.right.tolist()]
    on_target = votes(given.target, [0, 1, 2])
    expected = sum(right) / len(right) - sum(on_sources) / len(on_sources) + sum(on_target) / len(on_target)
    found = nearest_prototypes(parts, given.target, torch.arange(3))
    assert found == pytest.approx(min(max(expected, 0), 1))


def test_transport_finds_out_a_model_that_is_sure_of_one_class() -> None:
    collapsed = torch.tensor([[50.0, 0, 0, 0]]).repeat(80, 1).double().log_softmax(1)
    target = Seen("t", collapsed, torch.zeros(80, 2), torch.full((80, 3, 4), 0.25).double())
    assert transport(torch.full((4,), 0.25).double(), target) == pytest.approx(0.25, abs=1e-6)
    assert ceiling([seen("s", 4000, seed=1)], target) == pytest.approx(0.25 + 0.1, abs=0.02)


def test_ceiling_is_its_formula() -> None:
    parts = [seen("a", 50, seed=1), seen("b", 70, seed=2)]
    target = seen("t", 40, seed=3)
    shares = [class_shares(part.labels, 4).tolist() for part in parts if part.labels is not None]
    said = [target.predicted.tolist().count(k) / 40 for k in range(4)]
    kept = sum(min(said[k], (shares[0][k] + shares[1][k]) / 2) for k in range(4))
    apart = sum(abs(one - other) for one, other in zip(*shares, strict=True)) / 2
    assert ceiling(parts, target) == pytest.approx(min(kept + apart, 1))


@pytest.mark.parametrize("sharp", [0.7, 1.5, 4.0])
def test_calibrated_models_are_judged_rightly(sharp: float) -> None:
    sources = [calibrated(1500, 2.0, seed) for seed in range(3)]
    target = calibrated(3000, sharp, 7)
    parts = read_parts(sources, [0, 1, 2], dataclasses.replace(target, labels=None))
    for name in ("difference-of-confidences", "transport"):
        assert parts[name] == pytest.approx(target.accuracy, abs=0.04), name
    # It tells the direction and exaggerates the way: docs/selection.md.
    known = sum(part.accuracy for part in sources) / 3
    assert (parts["thresholded-confidence"] < known) == (target.accuracy < known)


def test_temperature_is_found() -> None:
    drawn = calibrated(4000, 2.0, 1)
    assert drawn.labels is not None
    assert fit_temperature(drawn.log_probabilities, drawn.labels) == pytest.approx(1, abs=0.08)
    assert fit_temperature(drawn.log_probabilities * 3, drawn.labels) == pytest.approx(3, abs=0.25)
    ruled_out = drawn.log_probabilities.clone()
    ruled_out[0, drawn.labels[0]] = -torch.inf  # one class that a model thinks impossible decides nothing alone
    assert fit_temperature(ruled_out, drawn.labels) == pytest.approx(1, abs=0.15)


def test_calibration_error_is_its_formula() -> None:
    drawn = seen("s", 200, seed=2, sharp=1.0)
    bins: dict[int, list[tuple[float, float]]] = {}
    for row, right in zip(drawn.probabilities.tolist(), drawn.right.tolist(), strict=True):
        place = next(b for b in range(15) if max(row) <= (b + 1) / 15)
        bins.setdefault(place, []).append((max(row), right))
    expected = 0.0
    for found in bins.values():
        gap = sum(right for _, right in found) / len(found) - sum(said for said, _ in found) / len(found)
        expected += len(found) / 200 * abs(gap)
    assert calibration_error(drawn) == pytest.approx(expected)
    assert sum(row["count"] for row in reliability(drawn)) == 200


def test_temperature_mends_the_sources() -> None:
    given = evidence(1, count=400, sharp=6.0)
    found = calibrate(given, seen("t", 300, seed=77, sharp=6.0))
    assert found.temperature > 1.5
    assert found.sources[1] < found.sources[0]
    assert found.target is not None
    assert found.target[1] < found.target[0]
    assert set(found.diagrams) == {"sources", "sources, tempered", "target", "target, tempered"}
    assert calibrate(given).target is None
    assert joined(given.sources).tempered(1.0).accuracy == pytest.approx(joined(given.sources).accuracy)
