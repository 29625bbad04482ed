"""Deep CORAL matches the covariances of the layer it is told to."""

from __future__ import annotations

import pytest
import torch

from tests.methods.steps import batch, one_phase, values
from tests.methods.test_matching import layers_of, new


@pytest.mark.parametrize(("layer", "place"), [("scores", 1), ("embedding", 0)])
def test_covariances_of_the_layer_are_matched(layer: str, place: int) -> None:
    method, given = new("coral", weight=3.0, layer=layer), batch()
    *sources, target = layers_of(method, given)
    found = [(torch.cov(source[place].T) - torch.cov(target[place].T)).square().mean() for source in sources]
    expected = float(3 * torch.stack(found).mean().detach() / 4)
    assert values(one_phase(method, given))["discrepancy"] == pytest.approx(expected, rel=1e-4)
