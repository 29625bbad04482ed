"""The grid: what is compared, under which name, and what is refused before anything is trained."""

from __future__ import annotations

from typing import Any

import pytest

from graphmsda import Task, UserError
from graphmsda.cli import read_value
from graphmsda.tuning.grid import build_grid, place_of, read_parameters

BASE: dict[str, Any] = {"epochs": 2, "device": "cpu"}


def test_the_grid_is_the_full_product_beside_the_default(features: Task) -> None:
    grid = build_grid("mrf", {"tau": [0.1, 1.0], "lr": [1e-3, 1e-2]}, BASE, features)
    assert [s.name for s in grid] == [
        "default",
        "lr=0.001,tau=0.1",
        "lr=0.01,tau=0.1",
        "lr=0.001,tau=1.0",
        "lr=0.01,tau=1.0",
    ]
    assert grid[0].values == {"tau": 0.2, "lr": 0.003}
    assert grid[0].settings == BASE
    assert grid[2].settings == {**BASE, "lr": 1e-2, "parameters": {"tau": 0.1}}
    assert grid[2].resolved.lr == 1e-2
    assert "parameters" not in BASE


def test_two_spellings_of_a_setting_are_one(features: Task) -> None:
    grid = build_grid("mrf", {"tau": [0.2, 0.1, 0.10], "lr": [0, 3e-3]}, BASE, features)
    assert [s.name for s in grid] == ["default", "lr=0,tau=0.1"]
    # The default is what all runs have in common, whatever that is.
    moved = build_grid("mrf", {"tau": [0.3, 0.1]}, {**BASE, "parameters": {"tau": 0.1}}, features)
    assert [(s.name, dict(s.values)) for s in moved] == [("default", {"tau": 0.1}), ("tau=0.3", {"tau": 0.3})]


def test_no_parameters_leave_the_default_alone(features: Task) -> None:
    assert [s.name for s in build_grid("mrf", {}, BASE, features)] == ["default"]


def test_a_preset_can_be_compared(features: Task) -> None:
    default, paper = build_grid("mrf", {"preset": ["paper"]}, BASE, features)
    assert paper.name == "preset=paper"
    assert paper.resolved.parameters["likelihood"] == "verbatim"
    assert default.resolved.parameters["likelihood"] == "log"


def test_a_name_of_both_kinds_has_to_be_told_apart(features: Task) -> None:
    with pytest.raises(UserError, match=r"write method\.dropout or training\.dropout"):
        place_of("crf", "dropout")
    assert place_of("crf", "method.dropout") == ("method", "dropout")
    grid = build_grid("crf", {"training.dropout": [0.1], "method.dropout": [0.2]}, BASE, features)
    assert grid[1].resolved.dropout == 0.1
    assert grid[1].resolved.parameters["dropout"] == 0.2
    assert place_of("mrf", "dropout") == ("training", "dropout")


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"tua": [1]}, "--param tua: neither a hyper-parameter of mrf nor a setting .* did you mean tau"),
        ({"seed": [0, 1]}, "--param seed: .* give --seeds 0 1 2"),
        ({"device": ["cpu"]}, "--param device: cannot be compared; give --device with one value"),
        ({"method": ["crf"]}, "--param method: cannot be compared"),
        ({"tau": []}, "--param tau: no values"),
        ({"tau": "0.1"}, "--param tau: no values"),
        ({"tau": [-1.0]}, "^--param tau=-1.0: out of range; give a positive number"),
        ({"tau": ["small"]}, "^--param tau=small: not understood; give a number"),
        ({"lr": [-1.0]}, "^--param lr -1.0: out of range; give a number not below 0"),
        ({"augment": ["wild"]}, "^--param augment wild: out of range; give one of "),
        ({"backbone": ["resnet18"]}, "^--param backbone: 'resnet18' does not read feature vectors"),
        ({"weight-decay": [0], "weight_decay": [1]}, "name the same parameter"),
    ],
)
def test_mistakes_are_told_before_any_training(features: Task, parameters: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build_grid("mrf", parameters, BASE, features)


def test_values_are_read_as_people_mean_them() -> None:
    typed = [["tau", "1e-1", "2"], ["precision", "32", "64"], ["entropy_per_class", "true"], ["likelihood", "log"]]
    assert read_parameters("mrf", typed, read_value) == {
        "tau": [0.1, 2],
        "precision": ["32", "64"],
        "entropy_per_class": [True],
        "likelihood": ["log"],
    }
    with pytest.raises(UserError, match="--param tau: given twice"):
        read_parameters("mrf", [["tau", "1"], ["tau", "2"]], read_value)
