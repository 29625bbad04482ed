"""Rehearsals: who plays, who is left out, what is scored, and that the real target is not looked at."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphmsda import Domain, EvalSet, Task, Unlabelled, UserError
from graphmsda.data import demo
from graphmsda.rehearsal import Sources, load_sources, rehearsals
from tests.conftest import feature_task, image_task
from tests.test_cli import make_domain


class Forbidden:
    """Samples that say what they are while a task is put together, and raise from then on."""

    dtype = torch.float32

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape, self.armed = shape, False

    def _touch(self) -> None:
        assert not self.armed, "the real target was looked at"

    @property
    def shape(self) -> tuple[int, ...]:
        self._touch()
        return self._shape

    @property
    def digest(self) -> str:
        raise AssertionError("the real target was hashed")

    def __len__(self) -> int:
        self._touch()
        return self._shape[0]

    def __getitem__(self, rows: Any) -> torch.Tensor:
        raise AssertionError("the real target was read")


def with_forbidden_target(task: Task) -> Task:
    samples = Forbidden(tuple(task.target.x.shape))
    guarded = dataclasses.replace(task, target=Unlabelled("target", samples))
    samples.armed = True
    return guarded


def test_each_source_plays_once_and_all_share_their_tensors() -> None:
    task = with_forbidden_target(feature_task(sources=3))
    found = rehearsals(task)
    assert [one.player for one in found] == ["source-0", "source-1", "source-2"]
    for one, player in zip(found, task.sources, strict=True):
        assert one.task.target.name == one.player
        assert one.task.target.x is player.x
        assert not hasattr(one.task.target, "y")
        assert [source.name for source in one.task.sources] == [s.name for s in task.sources if s is not player]
        assert all(any(source is other for other in task.sources) for source in one.task.sources)
        assert "target" not in one.task.domains
        assert one.evaluation.x is player.x
        assert one.evaluation.y is player.y
        assert one.task.classes == task.classes


def test_a_held_out_part_is_scored_where_there_is_one() -> None:
    task = feature_task(sources=2)
    held = EvalSet("source-1", torch.zeros(4, 5), torch.tensor([0, 1, 2, 0]))
    first, second = rehearsals(task, {"source-1": held})
    assert first.evaluation.x is task.sources[0].x
    assert second.evaluation is held
    assert second.task.target.x is task.sources[1].x
    alone = Sources(task.sources, task.classes, validation={"source-1": held})
    assert rehearsals(alone)[1].evaluation is held


def test_some_play_and_columns_keep_their_names() -> None:
    task = dataclasses.replace(feature_task(sources=3), feature_names=tuple("abcde"))
    (one,) = rehearsals(task, only=["source-1"])
    assert one.player == "source-1"
    assert len(one.task.sources) == 2
    assert one.task.feature_names == tuple("abcde")


def test_one_source_and_unknown_players_are_refused() -> None:
    with pytest.raises(UserError, match="give at least two labelled sources"):
        rehearsals(feature_task(sources=1))
    with pytest.raises(UserError, match="--players target: there is no such source; choose from source-0, source-1"):
        rehearsals(feature_task(), only=["target"])


def test_images_work_the_same() -> None:
    assert [tuple(one.task.target.x.shape) for one in rehearsals(image_task())] == [(12, 3, 16, 16)] * 2


def test_sources_of_the_demo_are_those_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    task, _ = demo.load("chalk")
    render = demo.render

    def guarded(domain: str, split: str) -> Any:
        assert (domain, split) != ("chalk", "train")
        assert split == "train"
        return render(domain, split)

    monkeypatch.setattr(demo, "render", guarded)
    found = load_sources("demo:chalk")
    assert found.classes == task.classes
    for ours, theirs in zip(found.sources, task.sources, strict=True):
        assert ours.name == theirs.name
        assert torch.equal(ours.x[:], theirs.x[:])
        assert torch.equal(ours.y, theirs.y)


def test_sources_of_your_own(tmp_path: Path) -> None:
    places = [make_domain(tmp_path / name, 20 + 60 * number, seed=number) for number, name in enumerate("abc")]
    found = load_sources(places=places)
    assert [source.name for source in found.sources] == ["a", "b", "c"]
    assert found.classes == ("bird", "cat", "dog")
    assert found.sources[0].x.shape[1:] == (3, 32, 32)
    assert not found.validation
    with pytest.raises(UserError, match="given as two sources; give each domain once"):
        load_sources(places=[places[0], places[0]])
    with pytest.raises(UserError, match="one lies in the other"):
        load_sources(places=[tmp_path, places[0]], format="folder")
    with pytest.raises(UserError, match="no data: give --sources"):
        load_sources()
    with pytest.raises(UserError, match="did you mean demo:neon"):
        load_sources("demo:neo")


def test_a_benchmark_is_read_without_its_target(tmp_path: Path) -> None:
    for number, name in enumerate(("photo", "art_painting", "cartoon")):  # and no sketch
        classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
        make_domain(tmp_path / "pacs" / name, 20 + 60 * number, count=10, seed=number, classes=classes)
    found = load_sources("pacs:sketch", root=tmp_path, image_size=32)
    assert [source.name for source in found.sources] == ["photo", "art_painting", "cartoon"]
    assert found.backbone == "resnet18"
    for one in rehearsals(found):
        assert len(one.evaluation.y) == 7
        assert len(one.task.target.x) == 63
    with pytest.raises(UserError, match=r"pacs:sketch .* cannot be read"):
        load_sources("pacs:photo", root=tmp_path, image_size=32)


@pytest.mark.slow  # the first reading decodes 100,000 pictures
def test_digits_five_is_scored_on_held_out_parts() -> None:
    root = os.environ.get("GRAPHMSDA_DATA")
    if root is None or not Path(root, "digits-five").is_dir():
        pytest.skip("GRAPHMSDA_DATA names no folder with digits-five")
    (one,) = rehearsals(load_sources("digits-five:mm"), only=["up"])
    assert one.task.domains[-1] == "up"
    assert "mm" not in one.task.domains
    assert not np.shares_memory(np.asarray(one.evaluation.x[:1]), np.asarray(one.task.target.x[:1]))


def test_domain_objects_are_left_as_they_are() -> None:
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    task = Task((Domain("a", x, y), Domain("b", x, y)), Unlabelled("t", x), ("no", "yes"))
    assert rehearsals(task)[0].task.sources == (task.sources[1],)
