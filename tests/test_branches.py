"""A backbone of separate networks: parts, statistics and weights that have nothing to do with one another."""

from __future__ import annotations

import copy

import pytest
import torch

from graphmsda.backbones import Backbone, build_backbone
from graphmsda.branches import BranchedBackbone
from graphmsda.norm import NOWHERE

DOMAINS = 3


def make(name: str = "mlp", shape: tuple[int, ...] = (5,)) -> tuple[Backbone, BranchedBackbone]:
    torch.manual_seed(0)
    plain = build_backbone(name, shape, DOMAINS, dropout=0.0)
    return plain, BranchedBackbone(copy.deepcopy(plain), DOMAINS)


@pytest.mark.parametrize(("name", "shape"), [("mlp", (5,)), ("small", (3, 16, 16))])
def test_each_part_is_what_the_network_alone_gives(name: str, shape: tuple[int, ...]) -> None:
    plain, branched = make(name, shape)
    sizes, domains = [4, 7, 5], [0, 1, 2]
    for mode in (True, False):
        x = torch.rand(16, *shape)
        plain.train(mode)
        branched.train(mode)
        expected = torch.split(plain(x, sizes, domains), sizes)
        one, two, target = torch.split(branched(x, sizes, domains), sizes)
        torch.testing.assert_close(branched.parts(one)[0], expected[0])
        torch.testing.assert_close(branched.parts(two)[1], expected[1])
        assert not branched.parts(one)[1].any()
        assert not branched.parts(two)[0].any()
        for part in branched.parts(target):
            torch.testing.assert_close(part, expected[2])
    assert branched.features == 2 * plain.features == target.shape[1]


def test_no_weights_are_shared() -> None:
    _, branched = make()
    sizes = [4, 4, 4]
    one, two, target = torch.split(branched(torch.rand(12, 5), sizes, [0, 1, 2]), sizes)
    networks = {
        "source 0": (one.sum(), branched.body.sources[0]),
        "source 1": (two.sum(), branched.body.sources[1]),
        "target 0": (branched.parts(target)[0].sum(), branched.body.targets[0]),
        "target 1": (branched.parts(target)[1].sum(), branched.body.targets[1]),
    }
    for name, (output, _) in networks.items():
        for other, (_, network) in networks.items():
            found = torch.autograd.grad(output, list(network.parameters()), allow_unused=True, retain_graph=True)
            assert any(g is not None and g.any() for g in found) == (name == other), (name, other)


def test_samples_of_no_domain_leave_no_trace() -> None:
    _, branched = make()
    before = {name: tensor.clone() for name, tensor in branched.state_dict().items()}
    embedding = branched(torch.rand(6, 5), [6], [NOWHERE])
    assert all(part.any() for part in branched.parts(embedding))
    assert all(torch.equal(tensor, before[name]) for name, tensor in branched.state_dict().items())


def test_the_targets_networks_follow_the_sources() -> None:
    _, branched = make()
    with torch.no_grad():
        for parameter in branched.body.sources.parameters():
            parameter.add_(torch.randn_like(parameter))
    branched(torch.rand(8, 5), [4, 4], [0, 1])
    branched.follow()
    state = branched.state_dict()
    for name, tensor in state.items():
        if ".sources." in name:
            assert torch.equal(state[name.replace(".sources.", ".targets.")], tensor), name


def test_the_first_network_reads_for_all_until_they_part() -> None:
    plain, branched = make()
    with torch.no_grad():  # so that the networks differ
        for parameter in branched.body.sources[1].parameters():
            parameter.add_(torch.randn_like(parameter))
    branched.body.together = True
    x, sizes, domains = torch.rand(12, 5), [5, 7], [0, 1]
    expected = torch.split(plain(x, sizes, domains), sizes)
    one, two = torch.split(branched(x, sizes, domains), sizes)
    torch.testing.assert_close(branched.parts(one)[0], expected[0])
    torch.testing.assert_close(branched.parts(two)[1], expected[1])  # in its own place, with its own statistics
    branched.part()
    branched.body.together = False
    branched.eval()
    plain.eval()
    expected = torch.split(plain(x, sizes, domains), sizes)
    one, two = torch.split(branched(x, sizes, domains), sizes)
    torch.testing.assert_close(branched.parts(one)[0], expected[0])
    torch.testing.assert_close(branched.parts(two)[1], expected[1])


def test_a_copy_is_independent() -> None:
    _, branched = make()
    other = copy.deepcopy(branched)
    before = {name: tensor.clone() for name, tensor in branched.state_dict().items()}
    other(torch.rand(9, 5), [4, 5], [0, 2])
    assert all(torch.equal(tensor, before[name]) for name, tensor in branched.state_dict().items())
