"""The estimate: its interval, what it is calibrated on, and whether it holds the truth."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from scipy.stats import t as student

from graphmsda import EvalSet, Task, UserError, fit
from graphmsda.data.named import NamedTask
from graphmsda.run import Run
from graphmsda.selection import Estimate, Evidence, estimate, gather
from graphmsda.selection.combination import (
    ERRORS,
    HELD_OUT,
    NOBODY,
    Prior,
    combine,
    interval,
    learned_weights,
    logit,
    off_by,
)
from graphmsda.selection.residuals import rehearsal_residuals, source_residuals
from graphmsda.tune import tune
from tests.figures.helpers import untrained
from tests.selection.helpers import blobs, evidence, seen

QUICK = {"epochs": 3, "batch_size": 16, "device": "cpu", "backbone": "mlp"}


def with_shifts(given: Evidence) -> Evidence:
    moved = tuple(
        tuple(seen(part.name, 20, seed=100 + 7 * m + n, domains=3) for n in range(3))
        for m, part in enumerate(given.sources)
    )
    return dataclasses.replace(given, shifted=moved)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, torch.Tensor, Run, Run]:
    task, labels = blobs()
    place = tmp_path_factory.mktemp("runs")
    one, other = (fit(task, method="mrf", out=place / str(seed), seed=seed, **QUICK) for seed in (0, 1))
    return task, labels, one, other


def held_out(task: Task) -> NamedTask:
    """Return the task with other samples of each source, which training has not seen."""
    other, labels = blobs()
    fresh = {source.name: EvalSet(source.name, source.x + 0.1, source.y) for source in other.sources}
    return NamedTask(task, EvalSet("t", task.target.x[:], labels), fresh, {}, [])


def test_interval_is_the_predictive_distribution() -> None:
    residuals, prior = [0.2, -0.4, 0.1], Prior(-0.3, 0.5, 4)
    accuracy, low, high = interval(1.0, off_by(residuals, residuals), prior, 50)
    mean = sum(residuals) / 3
    weight = 4 + 3
    bias = (4 * -0.3 + 3 * mean) / weight
    scatter = 4 * 0.25 + sum((r - mean) ** 2 for r in residuals) + 4 * 3 / weight * (mean + 0.3) ** 2
    share = 1 / (1 + math.exp(-1 - bias))
    half = student.ppf(0.95, weight) * math.sqrt(scatter / weight * (1 + 1 / weight) + 1 / (50 * share * (1 - share)))
    for found, expected in ((accuracy, 1 + bias), (low, 1 + bias - half), (high, 1 + bias + half)):
        assert found == pytest.approx(1 / (1 + math.exp(-expected)))


def test_interval_without_players_is_the_prior() -> None:
    accuracy, low, high = interval(2.0, NOBODY, HELD_OUT, 1000)
    assert 0 < low < accuracy < high < 1
    assert logit(accuracy) == pytest.approx(2.0 + HELD_OUT.bias)


def test_scattered_residuals_make_it_wider() -> None:
    prior = Prior(-0.3, 0.5, 4)
    narrow = interval(1.5, off_by([0.1, 0.1, 0.1], [0.1, 0.1, 0.1]), prior, 1000)
    wide = interval(1.5, off_by([0.1, 0.1, 0.1], [-1.5, 0.1, 1.7]), prior, 1000)
    assert wide[2] - wide[1] > 1.5 * (narrow[2] - narrow[1])


def test_few_samples_make_it_wider() -> None:
    many, few = (interval(1.5, NOBODY, Prior(-0.3, 0.5, 4), samples) for samples in (4000, 10))
    assert few[2] - few[1] > 1.3 * (many[2] - many[1])


def test_combination_stays_between_its_parts() -> None:
    parts = {"thresholded-confidence": 0.7, "transport": 0.9}
    assert logit(0.7) < combine(parts) < logit(0.9)
    assert combine(parts, {"thresholded-confidence": 1.0, "transport": 0.0}) == pytest.approx(logit(0.7))


def test_weights_are_learned_from_rehearsals() -> None:
    good, bad = 0.8, 0.3
    found = [(player, {"transport": good, "agreement": bad}, logit(0.8)) for player in "abc"]
    weights = learned_weights(found)
    assert weights["transport"] > ERRORS["transport"] ** -2
    assert weights["agreement"] < ERRORS["agreement"] ** -2
    residuals = rehearsal_residuals(found)
    assert residuals.players == ["a", "b", "c"]
    assert residuals.runs == 3
    assert residuals.values == pytest.approx([residuals.values[0]] * 3)
    assert residuals.values[0] > 0  # the agreement is too low, so the truth lies above the combination


def test_runs_of_one_player_count_once() -> None:
    once = [("a", {"transport": 0.8}, 1.0), ("b", {"transport": 0.7}, 1.2)]
    often = [once[0]] * 5 + [once[1]]
    assert rehearsal_residuals(often).values == pytest.approx(rehearsal_residuals(once).values)


def test_residuals_of_the_run_itself() -> None:
    given = with_shifts(evidence(2, count=80))
    own, moved = source_residuals(given)
    assert len(own) == len(moved) == 3
    twin = with_shifts(evidence(2, count=80))
    assert source_residuals(given, twin)[0] != own  # agreement is a part of its own
    one = dataclasses.replace(given, sources=given.sources[:1], shifted=())
    assert source_residuals(one) == ([], [])


def test_says_what_it_is_calibrated_on(trained: tuple[Task, torch.Tensor, Run, Run]) -> None:
    task, labels, run, other = trained
    cheap = estimate(run, task)
    assert cheap.calibrated_on.startswith("earlier benchmarks alone")
    held = estimate(run, held_out(task))
    assert held.calibrated_on.startswith("the held-out parts of a, b, c")
    assert set(held.parts) == set(ERRORS) - {"agreement"}
    both = estimate(run, held_out(task), second=other)
    assert set(both.parts) == set(ERRORS)
    assert "estimated accuracy on the target: " in both.told
    truth = float((run.predict(task.target.x[:]).probabilities.argmax(1) == labels).double().mean())
    for found in (cheap, held, both):
        assert 0 <= found.low < found.accuracy < found.high <= 1
        assert found.low <= truth <= found.high
        assert json.loads(json.dumps(found.as_dict()))["level"] == 0.9


def test_rehearsals_are_the_better_measure(
    trained: tuple[Task, torch.Tensor, Run, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, _, run, other = trained
    tune(task, "mrf", {}, out=tmp_path / "tune", seeds=(0, 1), **QUICK)
    from graphmsda.rehearsal import rehearsals
    from graphmsda.selection import rehearsed
    from graphmsda.selection.data import RunData

    def data_of(one: Run, **reading: object) -> RunData:
        (staged,) = rehearsals(task, only=[one.domains[-1]])
        sources = tuple(EvalSet(s.name, s.x, s.y) for s in staged.task.sources)
        return RunData(sources, staged.task.target.x, True, staged.evaluation)

    monkeypatch.setattr(rehearsed, "find_data", data_of)  # data in memory have no place to be read from again
    found = estimate(run, held_out(task), rehearsals=tmp_path / "tune")
    assert found.calibrated_on == "6 rehearsals in which a, b, c played the target"
    paired = estimate(run, held_out(task), second=other, rehearsals=[tmp_path / "tune"])
    assert "agreement" in paired.parts
    assert 0 < paired.low < paired.high < 1
    stranger = untrained("source-only", domains=task.domains, classes=task.classes)
    with pytest.raises(UserError, match="no finished rehearsal of source-only"):
        estimate(stranger, held_out(task), rehearsals=tmp_path / "tune")


def test_one_source_is_legal() -> None:
    task, _ = blobs()
    single = Task(task.sources[:1], task.target, task.classes)
    run = untrained("mrf", domains=single.domains, classes=single.classes)
    named = NamedTask(single, EvalSet("t", task.target.x[:], torch.zeros(60, dtype=torch.int64)), {}, {}, [])
    assert "earlier benchmarks alone" in estimate(run, named).calibrated_on
    held = dataclasses.replace(named, validation={"a": EvalSet("a", task.sources[0].x, task.sources[0].y)})
    assert estimate(run, held).calibrated_on.endswith("since there is one source")


def test_a_run_without_data_says_so() -> None:
    with pytest.raises(UserError, match="does not say where its data lie"):
        estimate(untrained("mrf"))


def test_evidence_is_the_same_every_time(trained: tuple[Task, torch.Tensor, Run, Run]) -> None:
    task, _, run, _ = trained
    one, other = gather(run, held_out(task)), gather(run, held_out(task))
    assert torch.equal(one.target.log_probabilities, other.target.log_probabilities)
    assert one.mixed is not None
    assert other.mixed is not None
    assert torch.equal(one.mixed.predicted, other.mixed.predicted)
    assert len(one.shifted) == 3
    assert all(len(moved) == 3 for moved in one.shifted)
    assert gather(run, task).shifted == ()  # what training saw tells nothing of a change of domain
    assert len(gather(run, task, most=10).target) == 10


def test_evidence_is_what_the_run_predicts(trained: tuple[Task, torch.Tensor, Run, Run]) -> None:
    task, _, run, _ = trained
    found = gather(run, task).target
    expected = run.predict(task.target.x[:]).probabilities
    torch.testing.assert_close(found.probabilities.float(), expected, atol=1e-5, rtol=1e-4)
    assert found.posteriors.shape == (60, 4, 3)  # three sources and the target have prototypes
    torch.testing.assert_close(found.posteriors.sum(2), torch.ones(60, 4).double())
    torch.testing.assert_close(found.embeddings, run.embed(task.target.x[:]))


def test_told_in_one_sentence() -> None:
    found = Estimate(0.871, 0.79, 0.93, {}, "")
    assert found.told == "estimated accuracy on the target: 87 % (79-93 %)"
