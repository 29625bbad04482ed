"""One step of each optimiser by hand, the averaged weights as a plain loop, and memory that survives a file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from graphmsda.backbones import Backbone
from graphmsda.engine.optim import (
    EVERY,
    AveragedState,
    averaging_weight,
    build_optimiser,
    learning_rate,
    optimiser_tensors,
    restore_optimiser,
)
from graphmsda.engine.settings import Settings
from graphmsda.files import read_tensors, write_tensors

OPTIMISERS = ("adam", "adamw", "sgd")


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.prototypes = nn.Parameter(torch.randn(2, 2))
        self.register_buffer("running", torch.zeros(4))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.bool))


def settings(optimiser: str, weight_decay: float = 0.1) -> Settings:
    return Settings(optimiser=optimiser, lr=0.01, weight_decay=weight_decay)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_weight_decay_spares_prototypes(name: str) -> None:
    torch.manual_seed(0)
    toy = Toy()
    optimiser = build_optimiser(toy, settings(name))
    before = {key: p.detach().clone() for key, p in toy.named_parameters()}
    for parameter in toy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    assert torch.equal(toy.prototypes, before["prototypes"])
    old = before["layer.weight"]
    expected = {
        "adam": old - 0.01 * old.sign(),  # coupled: the decay is a gradient, which Adam scales to a unit step
        "adamw": old * (1 - 0.01 * 0.1),
        "sgd": old - 0.01 * 1.9 * 0.1 * old,  # Nesterov's first step with momentum 0.9
    }[name]
    torch.testing.assert_close(toy.layer.weight.detach(), expected, rtol=1e-4, atol=1e-6)


def test_prototypes_of_a_part_are_spared_too() -> None:
    outer = nn.ModuleDict({"inner": Toy()})
    spared = [g for g in build_optimiser(outer, settings("adam")).param_groups if g["weight_decay"] == 0]
    assert [p.shape for p in spared[0]["params"]] == [(2, 2)]
    plain = build_optimiser(nn.Linear(2, 2), settings("adam"))
    assert [g["weight_decay"] for g in plain.param_groups] == [0.1]


def test_what_is_not_the_backbone_has_a_rate_of_its_own() -> None:
    network = Backbone(nn.Linear(2, 2), 2, 1, (0.0,), (1.0,))
    method = nn.ModuleDict({"encoder": network, "head": Toy()})  # whatever it is called
    groups = build_optimiser(method, Settings(lr=0.01, head_lr=0.05)).param_groups
    factors = {id(p): group["factor"] for group in groups for p in group["params"]}
    for name, parameter in method.named_parameters():
        assert factors[id(parameter)] == pytest.approx(1.0 if name.startswith("encoder.") else 5.0), name
    assert len({id(group["lr"]) for group in groups}) == len(groups)  # each is written by itself
    assert {group["factor"] for group in build_optimiser(method, Settings(lr=0.01)).param_groups} == {1.0}


def test_every_parameter_is_optimised_once() -> None:
    toy = Toy()
    held = [id(p) for g in build_optimiser(toy, settings("sgd")).param_groups for p in g["params"]]
    assert sorted(held) == sorted(id(p) for p in toy.parameters())


def test_learning_rate() -> None:
    falling = Settings(lr=0.2)
    rates = [learning_rate(falling, p / 10) for p in range(11)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[-1] == pytest.approx(0.004)
    assert rates == sorted(rates, reverse=True)
    assert rates[2] == pytest.approx(0.2 * (0.02 + 0.98 * (1 + math.cos(math.pi * 0.2)) / 2))
    assert {learning_rate(Settings(lr=0.2, schedule="constant"), p) for p in (0, 0.3, 1)} == {0.2}


@pytest.mark.parametrize("decay", [0.8, 0.999])
@pytest.mark.parametrize("steps", [1, EVERY - 1, EVERY, 3 * EVERY + 5])
def test_averaging_weight_is_that_of_all_steps_since_the_last_move(decay: float, steps: int) -> None:
    """Decays of single steps, one after the other, on a state that only changes when the average moves."""
    mean = expected = 0.0
    for step in range(1, steps + 1):
        state = float((step - 1) // EVERY + 1)
        share = min(decay, 1 - 1 / (1 + step / 2))
        expected = share * expected + (1 - share) * state
        if step % EVERY == 0 or step == steps:
            weight = averaging_weight(decay, step)
            assert 0 < weight < 1
            mean += weight * (state - mean)
    assert mean == pytest.approx(expected, rel=1e-12)


def test_average_is_a_plain_loop() -> None:
    torch.manual_seed(0)
    toy = Toy()
    average = AveragedState(toy)
    expected = {key: p.detach().clone() for key, p in toy.named_parameters()}
    for step in range(1, 3 * EVERY + 6):
        with torch.no_grad():
            for parameter in toy.parameters():
                parameter += torch.randn_like(parameter)
            toy.count += 1
        if step % EVERY == 0 or step == 3 * EVERY + 5:
            first = (step - 1) // EVERY * EVERY + 1
            decay = math.prod(min(0.8, 1 - 1 / (1 + past / 2)) for past in range(first, step + 1))
            expected = {key: decay * expected[key] + (1 - decay) * p.detach() for key, p in toy.named_parameters()}
            average.update(toy, torch.tensor(averaging_weight(0.8, step)))
    for key, tensor in expected.items():
        torch.testing.assert_close(average.state[key], tensor, rtol=1e-5, atol=1e-6)
    assert int(average.state["count"]) == 3 * EVERY + 5
    assert average.state.keys() == toy.state_dict().keys()
    assert not any(tensor.requires_grad for tensor in average.state.values())


def test_an_entry_not_estimated_yet_starts_at_its_first_value() -> None:
    toy = Toy()
    average = AveragedState(toy)
    toy.running[0] = 4.0
    toy.seen[0] = True
    average.update(toy, torch.tensor(0.1))
    assert average.state["running"].tolist() == [4.0, 0.0, 0.0, 0.0]
    toy.running.copy_(torch.tensor([5.0, 7.0, 0.0, 0.0]))
    toy.seen[1] = True
    average.update(toy, torch.tensor(0.1))
    torch.testing.assert_close(average.state["running"], torch.tensor([4.1, 7.0, 0.0, 0.0]))
    assert average.state["seen"].tolist() == [True, True]


def test_the_average_does_not_share_memory_with_the_method() -> None:
    toy = Toy()
    average = AveragedState(toy)
    before = average.state["layer.weight"].clone()
    with torch.no_grad():
        toy.layer.weight += 1
    assert torch.equal(average.state["layer.weight"], before)


def advance(toy: Toy, optimiser: torch.optim.Optimizer, steps: range) -> list[Tensor]:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for number, parameter in enumerate(toy.parameters()):
            absent = step == 0 and number == 2  # a parameter that the first step leaves alone
            parameter.grad = None if absent else torch.randn(parameter.shape, generator=generator)
        optimiser.step()
    return [p.detach().clone() for p in toy.parameters()]


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("taken", [0, 1, 4])
def test_memory_survives_a_file_to_the_bit(name: str, taken: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    toy = Toy()
    optimiser = build_optimiser(toy, settings(name))
    advance(toy, optimiser, range(taken))
    write_tensors(tmp_path / "optimiser.safetensors", optimiser_tensors(toy, optimiser))
    other = Toy()
    other.load_state_dict(toy.state_dict())
    resumed = build_optimiser(other, settings(name))
    restore_optimiser(other, resumed, read_tensors(tmp_path / "optimiser.safetensors")[0])
    one = advance(toy, optimiser, range(taken, taken + 4))
    two = advance(other, resumed, range(taken, taken + 4))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_without_the_memory_steps_differ() -> None:
    torch.manual_seed(0)
    toy, other = Toy(), Toy()
    optimiser = build_optimiser(toy, settings("adam"))
    advance(toy, optimiser, range(4))
    other.load_state_dict(toy.state_dict())
    one = advance(toy, optimiser, range(4, 6))
    two = advance(other, build_optimiser(other, settings("adam")), range(4, 6))
    assert not any(torch.equal(a, b) for a, b in zip(one, two, strict=True))
