"""A watched run writes down an accuracy that changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from graphmsda import EvalSet, UserError, fit
from graphmsda.engine.watch import COLUMN, oracle_accuracy
from tests.conftest import QUICK, feature_task


def labelled(seed: int = 0) -> EvalSet:
    task = feature_task()
    y = torch.randint(0, len(task.classes), (len(task.target.x),), generator=torch.Generator().manual_seed(seed))
    return EvalSet("target", task.target.x, y)


def rows(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("average", [0.0, 0.9])
@pytest.mark.parametrize("method", ["source-only", "mrf", "adda"])
def test_watching_changes_nothing_and_ends_at_the_models_accuracy(method: str, average: float, tmp_path: Path) -> None:
    settings = QUICK | {"average": average}
    plain = fit(feature_task(), method, out=tmp_path / "plain", **settings)
    watched = fit(feature_task(), method, out=tmp_path / "watched", watch=labelled(), **settings)
    for one, two in zip(plain.method.state_dict().values(), watched.method.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    *_, last = rows(tmp_path / "watched")
    if average == 0:  # otherwise the average of the last few steps is taken in when the run ends
        assert last[COLUMN] == pytest.approx(watched.evaluate(labelled()).accuracy)
    assert 0 <= last[COLUMN] <= 1
    without = [{k: v for k, v in row.items() if k not in (COLUMN, "seconds")} for row in rows(tmp_path / "watched")]
    assert without == [{k: v for k, v in row.items() if k != "seconds"} for row in rows(tmp_path / "plain")]


def test_the_oracle_is_the_best_reading(tmp_path: Path) -> None:
    fit(feature_task(), "mrf", out=tmp_path / "run", watch=labelled(), **QUICK)
    best = max(row[COLUMN] for row in rows(tmp_path / "run") if COLUMN in row)
    assert oracle_accuracy(tmp_path / "run") == best
    assert oracle_accuracy(tmp_path / "run", [2.0]) == 2.0
    fit(feature_task(), "mrf", out=tmp_path / "unwatched", **QUICK)
    assert oracle_accuracy(tmp_path / "unwatched", [2.0]) is None


def test_samples_of_another_kind_are_refused(tmp_path: Path) -> None:
    other = EvalSet("other", torch.zeros(4, 7), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(UserError, match="watch other"):
        fit(feature_task(), "mrf", out=tmp_path / "run", watch=other, **QUICK)


@pytest.mark.parametrize("labels", [[], [0, 1, -1]])
def test_labels_that_are_none_are_refused(tmp_path: Path, labels: list[int]) -> None:
    task = feature_task()
    other = EvalSet("other", task.target.x[: len(labels)], torch.tensor(labels, dtype=torch.int64))
    with pytest.raises(UserError, match="watch other: its samples or labels are not like those of the task"):
        fit(task, "mrf", out=tmp_path / "run", watch=other, **QUICK)
