"""Tasks by name."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from graphmsda.data.named import find_task, find_test, task_names
from graphmsda.errors import UserError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Digits-five in miniature, as zips."""
    place = tmp_path / "digits-five"
    place.mkdir()
    generator = np.random.default_rng(0)
    for name in ("mnist", "mnistm", "usps", "svhn", "syn"):
        with zipfile.ZipFile(place / f"{name}.zip", "w") as archive:
            for part, count in (("train", 3), ("test", 2)):
                for digit in range(10):
                    for number in range(count):
                        noise = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                        buffer = io.BytesIO()
                        Image.fromarray(noise).save(buffer, "PNG")
                        archive.writestr(f"{part}/{digit}/{number}.png", buffer.getvalue())
    return tmp_path


def test_an_embedded_task() -> None:
    found = find_task("demo:neon")
    assert found.task.target.name == found.test.name == "neon"
    assert found.record == {"task": "demo:neon"}
    assert "demo:neon" in task_names()
    assert torch.equal(find_test("demo:neon", found.task.classes).x[:], found.test.x[:])


def test_a_benchmark(root: Path, tmp_path: Path) -> None:
    found = find_task("digits-five:mm", root=root, cache=tmp_path / "cache")
    assert found.task.domains == ("mt", "up", "sv", "syn", "mm")
    assert found.task.classes == tuple("0123456789")
    assert [len(source.y) for source in found.task.sources] == [30] * 4
    assert tuple(found.task.target.x.shape) == (30, 3, 32, 32)
    assert found.test.y.tolist() == [digit for digit in range(10) for _ in range(2)]
    assert set(found.validation) == {"mt", "up", "sv", "syn"}
    assert all(len(part.y) == 20 for part in found.validation.values())
    assert found.record["variant"] == "paper"
    assert found.record["benchmark"]["seed"] == 0
    assert any("re-synthesised" in note for note in found.notes)
    alone = find_test("digits-five:mm", found.task.classes, root=root, cache=tmp_path / "cache", image_size=32)
    assert torch.equal(alone.x[:], found.test.x[:])
    assert torch.equal(alone.y, found.test.y)


def test_a_size_and_a_variant(root: Path, tmp_path: Path) -> None:
    found = find_task("digits-five:up", root=root, variant="full", image_size=16, cache=tmp_path / "cache")
    assert found.task.target.x.shape[-1] == found.test.x.shape[-1] == 16
    assert found.record["variant"] == "full"
    with pytest.raises(UserError, match="no variant 'half'"):
        find_task("digits-five:up", root=root, variant="half")


def test_labels_of_the_target_cannot_be_reached(root: Path) -> None:
    """What training sees does not change with the names of the target's class folders."""
    before = find_task("digits-five:mm", root=root, cache="none").task.fingerprint()
    archive = root / "digits-five" / "mnistm.zip"
    with zipfile.ZipFile(archive) as file:
        content = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(archive, "w") as file:
        for name, data in content.items():  # other names in the same order; the test part is for evaluation
            part, digit, image = name.split("/")
            file.writestr(f"{part}/{'abcdefghij'[int(digit)] if part == 'train' else digit}/{image}", data)
    assert find_task("digits-five:mm", root=root, cache="none").task.fingerprint() == before


def test_names_in_other_spellings(root: Path) -> None:
    assert find_task("Digits_Five:MNIST-M", root=root, cache="none").task.target.name == "mm"
    with pytest.raises(UserError, match="did you mean digits-five"):
        find_task("digit-five:mm", root=root)


def test_data_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        find_task("pacs:sketch", root=tmp_path)
    assert "graphmsda data prepare pacs" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("demo:noen", "did you mean demo:neon?"),
        ("neon", "demo:neon"),
        ("", ""),
        ("digits-five", ""),
    ],
)
def test_unknown_names_list_what_exists(name: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        find_task(name)
    assert f"no task {name!r}" in str(caught.value)
    assert hint in str(caught.value)
    assert all(known in str(caught.value) for known in task_names())


@pytest.mark.parametrize("name", [["demo:neon"], 5, None])
def test_a_recipe_may_say_anything(name: object) -> None:
    with pytest.raises(UserError, match="there is no task"):
        find_task(name)  # type: ignore[arg-type]
