"""The three standards: what is trained on, for how long, and which source is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from graphmsda import METHODS, Domain, EvalSet, Task, UserError, fit
from graphmsda.data.named import NamedTask
from graphmsda.engine.settings import Settings
from graphmsda.study import protocol
from graphmsda.study.cells import Cell
from graphmsda.study.protocol import (
    COMBINED,
    STANDARDS,
    Joined,
    all_methods,
    best_source,
    stage,
    standards_of,
    steps_of,
)
from graphmsda.study.work import check_cell
from tests.conftest import QUICK, feature_task, image_task


def test_multi_source_is_the_task_itself() -> None:
    task = feature_task(sources=3)
    assert stage(task, "multi-source") is task


def test_single_best_has_one_source_and_the_same_target() -> None:
    task = feature_task(sources=3)
    alone = stage(task, "single-best", "source-1")
    assert alone.domains == ("source-1", "target")
    assert alone.sources[0] is task.sources[1]
    assert alone.target is task.target
    with pytest.raises(UserError, match=r"no source 'nowhere'; choose one of source-0, source-1, source-2$"):
        stage(task, "single-best", "nowhere")


@pytest.mark.parametrize("make", [feature_task, image_task])
@pytest.mark.parametrize("most", [2**31, 0])
def test_source_combine_is_all_sources_in_one(make: object, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MOST_COPIED", most)
    task: Task = make(sources=3)  # type: ignore[operator]
    merged = stage(task, "source-combine")
    assert merged.domains == (COMBINED, "target")
    x, y = merged.sources[0].x, merged.sources[0].y
    assert isinstance(x, torch.Tensor if most else Joined)
    assert torch.equal(y, torch.cat([source.y for source in task.sources]))
    whole = torch.cat([torch.as_tensor(source.x[:]) for source in task.sources])
    assert torch.equal(x[:], whole)
    rows = torch.randperm(len(x))[:17]
    assert torch.equal(x[rows], whole[rows])
    assert x[5:30:2].shape == whole[5:30:2].shape
    assert torch.equal(x[5:30:2], whole[5:30:2])
    assert merged.fingerprint() == merged.fingerprint()


def test_joined_samples_of_other_data_have_another_hash() -> None:
    one, two = (feature_task(seed=seed) for seed in (0, 1))
    digests = {Joined([source.x for source in task.sources]).digest for task in (one, two)}
    assert len(digests) == 2


def test_every_source_image_is_met_as_often() -> None:
    base = feature_task(sources=2, size=40)
    small = Domain("small", base.sources[0].x[:12], base.sources[0].y[:12])
    task = Task((*base.sources, small), base.target, base.classes)
    steps = {}
    for standard in STANDARDS:
        staged = stage(task, standard, "small")
        asked = steps_of(task, standard, 4)
        steps[standard] = Settings(batch_size=4, steps_per_epoch=asked).resolved(staged).steps_per_epoch
    assert steps == {"single-best": 10, "multi-source": 10, "source-combine": 23}


def test_where_the_papers_tables_have_methods() -> None:
    assert standards_of("source-only") == STANDARDS
    assert standards_of("crf") == ("multi-source",)
    assert all(set(standards_of(name)) <= set(STANDARDS) and standards_of(name) for name in METHODS)
    assert all_methods(["mrf", "all", "crf"])[:2] == ["mrf", "source-only"]
    assert sorted(all_methods(["all"])) == sorted(METHODS)
    with pytest.raises(UserError, match="unknown method 'mrv'"):
        all_methods(["mrv"])


def test_a_class_may_say_itself_where_it_belongs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(METHODS["mrf"], "standards", ("multi-source", "single-best"), raising=False)
    assert standards_of("mrf") == ("single-best", "multi-source")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_built_under_its_standards(method: str) -> None:
    task = image_task(sources=3)
    named = NamedTask(task, EvalSet("target", task.target.x, torch.zeros(12, dtype=torch.int64)), {}, {}, [], "small")
    for standard in STANDARDS:
        source = "source-2" if standard == "single-best" else None
        check_cell(Cell(standard, "target", method, 0, source, settings={"epochs": 4}), named)


def test_training_on_joined_samples_is_training_on_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, models = image_task(sources=3), []
    for most in (2**31, 0):
        monkeypatch.setattr(protocol, "MOST_COPIED", most)
        merged = stage(task, "source-combine")
        run = fit(merged, "adabn", out=tmp_path / str(most), backbone="small", **QUICK)
        models.append(run.method.state_dict())
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())


def row(source: str, accuracy: float, information: float) -> dict[str, object]:
    return {"source": source, "accuracy": accuracy, "label_free": {"information": information}}


def test_the_source_is_chosen_without_labels_and_by_the_oracle() -> None:
    rows = [row("a", 0.9, 1.0), row("a", 0.9, 1.0), row("b", 0.5, 2.0), row("b", 0.5, 1.2), row("c", 0.7, 1.5)]
    assert best_source(rows) == "b"
    assert best_source(rows, oracle=True) == "a"
    assert best_source([]) is None
    hidden = [{**one, "accuracy": None} for one in rows]  # the choice without labels looks at no accuracy
    assert best_source(hidden) == "b"
