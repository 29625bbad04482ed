"""What DAN, Deep CORAL, JAN and RTN share: the source risk and a discrepancy averaged over the sources."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from graphmsda.backbones import build_backbone
from graphmsda.domains import Batch
from graphmsda.errors import UserError
from graphmsda.methods import build_method, complete_parameters
from graphmsda.methods.matching import Layers, Matching
from tests.methods.steps import CLASSES, DOMAINS, Apart, batch, one_phase, step, values

NAMES = ("dan", "coral", "jan", "rtn")


def new(name: str, **given: Any) -> Matching:
    torch.manual_seed(0)
    backbone = build_backbone("mlp", (5,), DOMAINS, dropout=0.0)
    method = build_method(name, backbone, CLASSES, DOMAINS, complete_parameters(name, given))
    assert isinstance(method, Matching)
    return method


def layers_of(method: Matching, given: Batch) -> list[Layers]:
    """Embeddings and class scores of each domain, the target last, embedded one by one."""
    method = copy.deepcopy(method)
    found = []
    for domain, x in enumerate([*(part.x for part in given.sources), given.target]):
        embedding: Tensor = method.backbone(x, (len(x),), (domain,))
        found.append((embedding, F.linear(embedding, method.head.weight, method.head.bias)))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_discrepancy_is_the_mean_over_sources(name: str) -> None:
    method, given = new(name, weight=0.7), batch()
    *sources, target = layers_of(method, given)
    expected = sum(float(method.discrepancy(source, target).detach()) for source in sources) / len(sources)
    found = values(one_phase(method, given))["discrepancy"]
    assert found == pytest.approx(float(method.strength(given.progress)) * expected, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_without_its_weights_it_is_source_only(name: str) -> None:
    given = batch()
    off = {"weight": 0.0} | ({"entropy_weight": 0.0} if name == "rtn" else {})
    plain = Apart(copy.deepcopy(new(name).backbone), CLASSES, DOMAINS)
    method = new(name, **off)
    plain.load_state_dict(method.state_dict(), strict=False)
    one, two = one_phase(plain, given), one_phase(method, given)
    torch.testing.assert_close(two.terms["source"], one.terms["source"])
    parameters = dict(method.named_parameters())
    for key, parameter in plain.named_parameters():
        (a,) = torch.autograd.grad(one.terms["source"], parameter, retain_graph=True)
        (b,) = torch.autograd.grad(sum(two.terms.values()), parameters[key], retain_graph=True)
        torch.testing.assert_close(b, a, msg=lambda m, k=key: f"{k}: {m}")


@pytest.mark.parametrize("name", NAMES)
def test_training_brings_the_domains_together(name: str) -> None:
    """The same steps with and without the discrepancy's weight: with it the domains end up closer."""
    given = dataclasses.replace(batch(), progress=torch.tensor(1.0))
    apart = {}
    for weight in (0.0, 1.0):
        method = new(name, weight=weight)
        for _ in range(30):
            step(method, given, lr=0.05)
        *sources, target = layers_of(method, given)
        apart[weight] = sum(float(method.discrepancy(source, target).detach()) for source in sources)
    assert apart[1.0] < 0.8 * apart[0.0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_weight_out_of_range_is_told_in_a_sentence(name: str, value: float) -> None:
    with pytest.raises(UserError, match=r"^--set weight=\S+: out of range; give a number not below 0$"):
        new(name, weight=value)
