"""DAN matches the layers it is told to, each by several kernels."""

from __future__ import annotations

import pytest
import torch

from graphmsda.errors import UserError
from graphmsda.losses.mmd import mmd
from tests.methods.steps import batch, one_phase, values
from tests.methods.test_matching import layers_of, new


@pytest.mark.parametrize(("layers", "places"), [("both", (0, 1)), ("embedding", (0,)), ("scores", (1,))])
def test_the_layers_are_matched_one_by_one(layers: str, places: tuple[int, ...]) -> None:
    method, given = new("dan", weight=2.0, kernels=3, factor=3.0, layers=layers), batch()
    *sources, target = layers_of(method, given)
    found = [mmd(source[i], target[i], kernels=3, factor=3.0) for source in sources for i in places]
    expected = 2 * torch.stack(found).sum() / len(sources)
    assert values(one_phase(method, given))["discrepancy"] == pytest.approx(float(expected.detach()), rel=1e-4)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"kernels": 0}, "--set kernels=0: out of range; give a whole number from 1"),
        ({"factor": 1.0}, "--set factor=1.0: out of range; give a number above 1"),
        ({"layers": "all"}, "--set layers=all: not understood; give one of both, embedding, scores"),
    ],
)
def test_mistakes_are_told_in_a_sentence(given: dict[str, object], text: str) -> None:
    with pytest.raises(UserError) as caught:
        new("dan", **given)
    assert str(caught.value) == text
