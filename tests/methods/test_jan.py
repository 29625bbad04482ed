"""JAN matches embeddings and probabilities jointly, with a weight that grows."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from graphmsda.errors import UserError
from graphmsda.losses.mmd import joint_mmd
from tests.methods.steps import batch, one_phase, values
from tests.methods.test_matching import layers_of, new


@pytest.mark.parametrize("progress", [0.0, 0.1, 1.0])
def test_the_weight_grows_from_nothing(progress: float) -> None:
    method, given = new("jan", weight=2.0), dataclasses.replace(batch(), progress=torch.tensor(progress))
    *sources, (x, scores) = layers_of(method, given)
    target = [x, scores.softmax(1)]
    found = [joint_mmd([a, b.softmax(1)], target, kernels=[5, 1], bandwidths=[0.0, 1.68]).detach() for a, b in sources]
    expected = 2 * (2 / (1 + math.exp(-10 * progress)) - 1) * float(torch.stack(found).mean())
    assert values(one_phase(method, given))["discrepancy"] == pytest.approx(expected, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize(("name", "value"), [("kernels", 0), ("bandwidth", -1.0)])
def test_mistakes_are_told_in_a_sentence(name: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"^--set {name}={value}: out of range; give .*$"):
        new("jan", **{name: value})
