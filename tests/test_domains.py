"""What a task accepts, what tells two tasks apart, and that target labels have nowhere to go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import get_type_hints

import pytest
import torch
from torch import Tensor

from graphmsda.domains import Batch, Domain, Labelled, Task, Unlabelled
from graphmsda.errors import UserError
from tests.conftest import feature_task, image_task

X = torch.zeros(4, 3)
Y = torch.tensor([0, 1, 0, 1])
IMAGES = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)


def task(source: Domain | None = None, target: Tensor = X, classes: tuple[str, ...] = ("no", "yes")) -> Task:
    return Task((source or Domain("a", X, Y),), Unlabelled("t", target), classes)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda: Domain("mine", X, Y[:3]), "domain 'mine': labels are torch.int64 of shape (3,)"),
        (lambda: Domain("mine", X, Y[:, None]), "one int64 class index for each of its 4 samples"),
        (lambda: Domain("mine", X, Y.float()), "labels are torch.float32"),
        (lambda: Domain("mine", X.long(), Y), "samples are torch.int64 of shape (4, 3)"),
        (lambda: Unlabelled("mine", IMAGES.float()), "samples are torch.float32 of shape (4, 3, 8, 8)"),
        (lambda: Unlabelled("mine", IMAGES[:, :1]), "shape (4, 1, 8, 8)"),
        (lambda: Unlabelled("mine", X[0]), "shape (3,)"),
        (lambda: Unlabelled("mine", X[:0]), "domain 'mine' is empty"),
        (lambda: Domain("mine", IMAGES[:0], Y[:0]), "domain 'mine' is empty"),
        (lambda: Task((), Unlabelled("t", X), ("no", "yes")), "no source domain"),
        (lambda: task(classes=("only",)), "a task has 1 class"),
        (lambda: task(target=IMAGES), "source 'a' holds torch.float32 samples of shape (3,)"),
        (lambda: task(target=torch.zeros(2, 5)), "the target torch.float32 of (5,)"),
        (lambda: task(target=X.double()), "the target torch.float64"),
        (lambda: task(Domain("mine", X, Y + 1)), "source 'mine' has labels from 1 to 2"),
        (lambda: task(Domain("mine", X, Y - 1)), "class indices go from 0 to 1"),
    ],
)
def test_mistakes_are_told_in_one_sentence(wrong: Callable[[], object], told: str) -> None:
    with pytest.raises(UserError) as caught:
        wrong()
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_and_kinds() -> None:
    assert feature_task(3).domains == ("source-0", "source-1", "source-2", "target")
    assert not feature_task().is_images
    assert image_task().is_images


def test_fingerprint_is_of_the_content() -> None:
    print_of = {t.fingerprint() for t in (feature_task(), feature_task(), image_task())}
    assert len(print_of) == 2  # the same data twice, and other data
    strided = torch.zeros(3, 4).T
    assert task(target=strided).fingerprint() == task(target=X).fingerprint()


@pytest.mark.parametrize("make", [feature_task, image_task])
def test_fingerprint_changes_with_everything_training_sees(make: Callable[[], Task]) -> None:
    base = make()
    first, *rest = base.sources

    def touched(x: Tensor) -> Tensor:
        x = x.clone()
        x.view(-1)[-1] += 1
        return x

    others = [
        dataclasses.replace(base, target=Unlabelled("target", touched(base.target.x))),
        dataclasses.replace(base, target=Unlabelled("other", base.target.x)),
        dataclasses.replace(base, sources=(Domain(first.name, touched(first.x), first.y), *rest)),
        dataclasses.replace(base, sources=(Domain(first.name, first.x, first.y.flip(0)), *rest)),
        dataclasses.replace(base, sources=(Domain("other", first.x, first.y), *rest)),
        dataclasses.replace(base, sources=tuple(reversed(base.sources))),
        dataclasses.replace(base, sources=base.sources[:1]),
        dataclasses.replace(base, classes=("other", *base.classes[1:])),
    ]
    assert len({t.fingerprint() for t in (base, *others)}) == len(others) + 1


def test_target_labels_have_nowhere_to_go() -> None:
    target = Domain("target", X, Y).unlabelled()
    assert [field.name for field in dataclasses.fields(target)] == ["name", "x"]
    for name in ("y", "label", "labels"):
        assert not hasattr(target, name)
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
            setattr(target, name, Y)
    assert get_type_hints(Batch)["target"] is Tensor
    assert get_type_hints(Task)["target"] is Unlabelled
    assert not any("label" in field.name for field in (*dataclasses.fields(Batch), *dataclasses.fields(Task)))


def test_nothing_can_be_swapped_after_it_was_checked() -> None:
    batch = Batch((Labelled(X, Y),), X, torch.tensor(0.0), torch.Generator())
    for thing, name in ((task(), "sources"), (Domain("a", X, Y), "y"), (batch, "target"), (batch.sources[0], "y")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, None)
