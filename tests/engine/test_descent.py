"""The optimiser's step as one pass is the optimiser's step, and copies of weights follow what they are copies of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphmsda.engine.descent import Descent
from graphmsda.engine.settings import Settings


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.other = nn.Linear(2, 4, bias=False)
        self.prototypes = nn.Parameter(torch.randn(2, 2))


def make(**given: Any) -> tuple[Toy, Descent]:
    torch.manual_seed(0)
    toy = Toy().double()
    return toy, Descent(toy, Settings(lr=0.01, weight_decay=0.1, **given))


def slopes(toy: Toy, step: int) -> list[Tensor | None]:
    """Gradients of all parameters; the second has none in every third step."""
    generator = torch.Generator().manual_seed(step)
    found = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in toy.parameters()]
    return [None if step % 3 == 2 and number == 1 else g for number, g in enumerate(found)]


@pytest.mark.parametrize("clip", [0.0, 0.3, 1e9])
@pytest.mark.parametrize("optimiser", ["adam", "adamw", "sgd"])
def test_one_pass_is_the_step(optimiser: str, clip: float, monkeypatch: pytest.MonkeyPatch) -> None:
    (plain, one), (passed, two) = make(optimiser=optimiser, clip=clip), make(optimiser=optimiser, clip=clip)
    together = two.in_one_pass(lambda function: function)
    for step in range(6):
        norm = one.step(list(plain.parameters()), slopes(plain, step), measured=True)
        expected = torch.stack([g.square().sum() for g in slopes(plain, step) if g is not None]).sum().sqrt()
        torch.testing.assert_close(norm, expected)
        with monkeypatch.context() as patch:
            # Adam for captured steps refuses a CPU, save under a compiler: it computes the same there.
            patch.setattr(torch.compiler, "is_compiling", lambda: True)
            found = together(list(passed.parameters()), slopes(passed, step), measured=True)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0, check_dtype=False)
    for (name, a), b in zip(plain.named_parameters(), passed.parameters(), strict=True):
        torch.testing.assert_close(
            a, b, rtol=0, atol=1e-5 if "adam" in optimiser else 1e-7, msg=lambda m, n=name: f"{n}: {m}"
        )
    for p, q in zip(plain.parameters(), passed.parameters(), strict=True):
        a, b = one.optimiser.state[p], two.optimiser.state[q]
        assert a.keys() == b.keys()
        for key in a:
            torch.testing.assert_close(a[key], b[key], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_a_norm_is_there_when_it_is_asked_for_or_needed(clip: float) -> None:
    toy, descent = make(optimiser="sgd", clip=clip)
    for step in (descent.step, descent.in_one_pass(lambda function: function)):
        for measured in (False, True):
            norm = step(list(toy.parameters()), slopes(toy, 1), measured=measured)
            assert (norm is not None) == (measured or clip > 0)


@pytest.mark.parametrize("one_pass", [False, True])
def test_only_what_has_a_gradient_moves(one_pass: bool) -> None:
    toy, descent = make(optimiser="sgd")
    before = {name: p.detach().clone() for name, p in toy.named_parameters()}
    step = descent.in_one_pass(lambda function: function) if one_pass else descent.step
    step(list(toy.layer.parameters()), [torch.ones_like(toy.layer.weight), None], measured=False)
    moved = {name for name, p in toy.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"layer.weight"}
    assert all(p.grad is None for p in toy.parameters())


def test_copies_follow_their_weights() -> None:
    toy, descent = make(optimiser="sgd")
    toy.float()
    descent = Descent(toy, descent.settings)
    assert descent.copies == {}
    parameters = list(toy.parameters())
    assert descent.leaves(parameters) == parameters
    descent.keep_copies(toy.layer, None)
    assert descent.copies == {}
    descent.keep_copies(toy.layer, torch.bfloat16)
    assert list(descent.copies) == ["layer.weight"]
    copy = descent.copies["layer.weight"]
    assert copy.dtype == torch.bfloat16
    assert copy.requires_grad
    leaves = dict(zip((name for name, _ in toy.named_parameters()), descent.leaves(parameters), strict=True))
    assert leaves["layer.weight"] is copy
    assert all(leaves[name] is p for name, p in toy.named_parameters() if name != "layer.weight")
    step, before = descent.in_one_pass(lambda function: function), copy.detach().clone()
    for number in range(3):
        given = [torch.full_like(leaf, 1.0 + number) for leaf in leaves.values()]
        step(parameters, given, measured=False)
        assert torch.equal(copy, toy.layer.weight.to(torch.bfloat16))
    assert not torch.equal(copy, before)
    assert toy.layer.weight.dtype == torch.float32
    assert descent.copies["layer.weight"] is copy  # where a captured step reads it
