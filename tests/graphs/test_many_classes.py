"""Weights and bandwidths that depend on the number of classes, against what they are to keep as it is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphmsda.backbones import build_backbone
from graphmsda.graphs.many_classes import bandwidth, entropy_share
from graphmsda.methods import build_method


@given(st.floats(0.05, 2.0), st.integers(10, 2000))
def test_the_other_classes_say_as_much_as_those_of_ten(sigma: float, classes: int) -> None:
    narrowed = bandwidth(sigma, classes)
    weights = [math.exp(-1 / (2 * narrowed**2)) for _ in range(classes - 1)]  # each at the prototypes' mean distance
    assert sum(weights) == pytest.approx(9 * math.exp(-1 / (2 * sigma**2)), rel=1e-6)
    assert narrowed <= sigma


@pytest.mark.parametrize("classes", [2, 7, 10])
def test_few_classes_change_nothing(classes: int) -> None:
    assert bandwidth(0.3, classes) == 0.3
    assert entropy_share(classes) == 1 / classes


@pytest.mark.parametrize("method", ["crf", "mrf", "mrf-plus"])
def test_the_entropy_is_divided_by_ten_at_most(method: str) -> None:
    names = {"crf": ["entropy_weight"], "mrf": ["entropy_weight", "balance_weight"], "mrf-plus": ["balance_weight"]}
    for classes, divisor in ((5, 5), (10, 10), (31, 10), (345, 10)):
        given = dict.fromkeys(names[method], 2.0)
        built = build_method(method, build_backbone("mlp", (4,), 3, dropout=0.0), classes, 3, given)
        assert [getattr(built, name) for name in names[method]] == [pytest.approx(2 / divisor)] * len(given)


def test_the_printed_entropy_is_divided_by_nothing() -> None:
    for method in ("crf", "mrf"):
        given = {"entropy_weight": 2.0, "entropy_per_class": False}
        built = build_method(method, build_backbone("mlp", (4,), 3, dropout=0.0), 31, 3, given)
        assert getattr(built, "entropy_weight") == 2  # noqa: B009 - not every method has one


@pytest.mark.parametrize(("scale", "narrowed"), [("relative", True), ("mean", False), ("sum", False)])
def test_absolute_bandwidths_are_left_alone(scale: str, narrowed: bool) -> None:
    backbone = build_backbone("mlp", (4,), 3, dropout=0.0)
    built = build_method("crf", backbone, 31, 3, {"sigma": 0.4, "scale": scale})
    assert getattr(built, "sigma") == (bandwidth(0.4, 31) if narrowed else 0.4)  # noqa: B009
