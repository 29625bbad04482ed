"""CMSS: who pulls the domain risk which way, and where the weights go."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphmsda.backbones import build_backbone
from graphmsda.domains import Batch, Labelled
from graphmsda.errors import UserError
from graphmsda.losses.curriculum import weighted_domain_risk
from graphmsda.methods import build_method, complete_parameters
from graphmsda.methods.base import Embedded
from graphmsda.methods.cmss import CMSS
from tests.methods.steps import CLASSES, DOMAINS, batch, one_phase


def new(**given: object) -> CMSS:
    torch.manual_seed(0)
    backbone = build_backbone("mlp", (5,), DOMAINS, dropout=0.0)
    method = build_method("cmss", backbone, CLASSES, DOMAINS, complete_parameters("cmss", given)).double()
    assert isinstance(method, CMSS)
    return method


def slopes(method: CMSS, given: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradients of the domain term as the method gives it, and of the plain weighted risk that it stands for."""

    def named(loss: Tensor) -> dict[str, Tensor]:
        parameters = dict(method.named_parameters())
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        return {name: g for name, g in zip(parameters, found, strict=True) if g is not None}

    turned = named(one_phase(method, given).terms["domain"])
    embedded = method.embed_batch(given)
    x, _, _ = embedded.flat()
    logits = method.discriminator(torch.cat([x, embedded.target]))
    plain = named(weighted_domain_risk(logits[: len(x)], logits[len(x) :], method.weights(x)))
    return turned, plain


def test_the_discriminator_lowers_the_risk_and_the_others_raise_it() -> None:
    method, given = new(weight=0.5, gamma=1000.0), batch()  # long warmed up
    turned, plain = slopes(method, given)
    assert turned.keys() == plain.keys()
    factors = {"discriminator": 1.0, "manager": -1.0, "backbone": -0.5}
    seen = set()
    for name, gradient in turned.items():
        part = name.split(".")[0]
        torch.testing.assert_close(gradient, factors[part] * plain[name], msg=lambda m, n=name: f"{n}: {m}")
        seen.add(part)
    assert seen == set(factors)


def test_the_adversary_warms_up() -> None:
    method = new()
    early = Batch(batch().sources, batch().target, torch.tensor(0.0), torch.tensor(0))
    turned, _ = slopes(method, early)
    assert all(not g.any() for name, g in turned.items() if name.startswith("backbone."))
    assert any(g.any() for name, g in turned.items() if name.startswith("discriminator."))


def test_weights_are_one_on_average_and_bounded() -> None:
    embedding = 100 * torch.randn(50, 128, dtype=torch.float64)
    for contrast in (0.0, 0.5, 2.0):
        weights = new(contrast=contrast).weights(embedding).detach()
        assert float(weights.mean()) == pytest.approx(1)
        assert (
            float(weights.max() / weights.min()) <= float(torch.tensor(2 * contrast, dtype=torch.float64).exp()) + 1e-9
        )
    assert torch.allclose(new(contrast=0.0).weights(embedding), torch.ones(50, dtype=torch.float64))


def test_the_manager_prefers_the_source_that_looks_like_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """One source is embedded where the target is, the other elsewhere: weight goes to the first."""
    method = new()
    optimiser = torch.optim.Adam([*method.discriminator.parameters(), *method.manager.parameters()], lr=1e-3)
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(32) % CLASSES

    def embed(given: Batch) -> Embedded:
        near, far, target = torch.randn(3, 32, 128, generator=generator, dtype=torch.float64)
        return Embedded((Labelled(near, labels), Labelled(far + 0.5, labels)), target)

    monkeypatch.setattr(method, "embed_batch", embed)
    for _ in range(30):
        optimiser.zero_grad()
        one_phase(method, batch()).terms["domain"].backward()
        optimiser.step()
    near, far = method.weights(embed(batch()).flat()[0]).detach().view(2, 32).mean(1)
    assert near > far + 0.5


@pytest.mark.parametrize("given", [{"weight": -1.0}, {"contrast": -0.1}, {"gamma": 0.0}, {"hidden": 0}])
def test_hyperparameters_out_of_range_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(UserError, match=f"--set {next(iter(given))}="):
        new(**given)
