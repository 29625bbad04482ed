"""ADDA: Source-only first, then a network of the target's own against a discriminator."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from graphmsda import Run, Task, UserError, fit
from graphmsda.backbones import build_backbone
from graphmsda.engine.accelerate import compiled_losses
from graphmsda.engine.fit import Tally, take_step
from graphmsda.engine.settings import Settings
from graphmsda.engine.training import Training
from graphmsda.methods import METHODS, build_method
from graphmsda.methods.adda import ADDA
from graphmsda.norm import DomainBatchNorm
from tests.conftest import QUICK, feature_task, image_task
from tests.methods.steps import CLASSES, DOMAINS, Apart, batch, one_phase

CPU = torch.device("cpu")


def new(stage: str = "adapt", dropout: float = 0.0, **given: float) -> ADDA:
    torch.manual_seed(0)
    method = build_method("adda", build_backbone("mlp", (5,), DOMAINS, dropout=dropout), CLASSES, DOMAINS, given)
    assert isinstance(method, ADDA)
    method.stage = stage
    method.begin_stage(stage)
    return method.double()


def state(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def assert_equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name


def test_the_losses_are_eqs_2_and_7() -> None:
    method, given = new(), batch()
    reference = copy.deepcopy(method)
    phase = one_phase(method, given)
    z = [reference.backbone(part.x, (len(part.x),), (m,)) for m, part in enumerate(given.sources)]
    z.append(reference.target_encoder(given.target, (len(given.target),), (DOMAINS - 1,)))
    judged = [reference.discriminator(x).squeeze(1).sigmoid() for x in z]
    domain = -(judged[0].log().mean() + judged[1].log().mean()) / 2 - (1 - judged[2]).log().mean()
    inverted = -judged[2].log().mean()
    torch.testing.assert_close(phase.terms["domain"], domain)
    torch.testing.assert_close(phase.terms["inverted"], inverted)
    # Each side by its own loss alone.
    total = phase.terms["domain"] + phase.terms["inverted"]
    for part, loss in (("discriminator", domain), ("target_encoder", inverted)):
        mine = torch.autograd.grad(total, list(getattr(method, part).parameters()), retain_graph=True)
        wanted = torch.autograd.grad(loss, list(getattr(reference, part).parameters()), retain_graph=True)
        for a, b in zip(mine, wanted, strict=True):
            torch.testing.assert_close(a, b)
    assert phase.updates == ("target_encoder", "discriminator")
    assert all(g is None for g in torch.autograd.grad(total, list(method.backbone.parameters()), allow_unused=True))


def test_the_targets_network_reads_the_target_and_no_other() -> None:
    method, given = new(), batch()
    one_phase(method, given)
    counts = [[m.count.tolist() for m in n.modules() if isinstance(m, DomainBatchNorm)] for n in networks(method)]
    assert counts == [[[1, 1, 0]] * 3, [[0, 0, 1]] * 3]
    method.eval()
    with torch.no_grad():
        method.target_encoder.body[1].weight.mul_(2)
    x = given.target
    source, target = (
        network(x, (len(x),), (domain,)) for network, domain in zip(networks(method), (0, 2), strict=True)
    )
    assert torch.equal(method.embed(x, 0), source)
    assert torch.equal(method.embed(x), target)
    assert torch.equal(method.embed(x, 2), target)
    assert not torch.equal(source, target)


def networks(method: ADDA) -> tuple[Any, Any]:
    return method.backbone, method.target_encoder


def advance(training: Training, steps: int) -> None:
    tally = Tally()
    for _ in range(steps):
        training.prepare()
        take_step(training, tally)
        training.step += 1
    assert tally.read()["finite"] == 1


@pytest.mark.parametrize("average", [0.99, 0.0])
def test_the_first_stage_is_source_only_and_the_second_leaves_it(
    average: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "apart", Apart)
    task = feature_task()
    length = {
        "epochs": 2,
        "steps_per_epoch": 11,
        "average": average,
    }  # the average moves within the stage and at its end
    settings = Settings(method="adda", **(QUICK | length)).resolved(task)
    training = Training(task, settings, CPU)
    advance(training, 11)
    training.enter_stage()
    method = training.method
    assert isinstance(method, ADDA)
    half = fit(task, "apart", out=tmp_path / "run", **(QUICK | length | {"epochs": 1})).method
    parts = {name: tensor for name, tensor in half.state_dict().items() if not name.startswith("source_means")}
    assert_equal(parts, {name: tensor for name, tensor in method.state_dict().items() if name in parts})
    assert_equal(state(method.backbone), state(method.target_encoder))

    before = {name: p.detach().clone() for name, p in method.named_parameters()}
    advance(training, 11)
    moved = {name.split(".")[0] for name, p in method.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"target_encoder", "discriminator"}


@pytest.mark.parametrize("precision", ["64", "bf16"])
def test_both_stages_run_in_every_precision(precision: str) -> None:
    task = image_task()
    training = Training(task, Settings(method="adda", **QUICK, precision=precision).resolved(task), CPU)
    advance(training, 3)
    assert training.method.stage == "pretrain"
    mixed = [network.mixed for network in networks(training.method)]  # type: ignore[arg-type]
    assert mixed == [torch.bfloat16 if precision == "bf16" else None] * 2
    advance(training, 3)
    assert training.method.stage == "adapt"
    assert all(torch.isfinite(tensor.double()).all() for tensor in training.method.state_dict().values())


def test_the_second_stage_is_compiled_whole() -> None:
    one, two = new(dropout=0.5), new(dropout=0.5)
    fast, given = compiled_losses(two, {}, "aot_eager"), batch()
    for seed in range(2):
        found = []
        for method, losses in ((one, one.losses), (two, fast)):
            torch.manual_seed(seed)
            phase = losses(given)
            loss = torch.stack(list(phase.terms.values())).sum()
            found.append((phase, torch.autograd.grad(loss, list(method.parameters()), allow_unused=True)))
        (plain, slopes), (compiled, others) = found
        assert plain.updates == compiled.updates
        for name in plain.terms:
            torch.testing.assert_close(plain.terms[name], compiled.terms[name])
        for a, b in zip(slopes, others, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.allclose(a, b, atol=1e-9)
    for name, tensor in state(one).items():
        torch.testing.assert_close(tensor, state(two)[name], msg=lambda m, name=name: f"{name}: {m}")


def test_a_finished_run_has_both_networks(features: Task, tmp_path: Path) -> None:
    run = fit(features, "adda", out=tmp_path / "run", **QUICK)
    again = Run.load(tmp_path / "run", device="cpu").method
    assert isinstance(again, ADDA)
    assert not torch.equal(again.backbone.body[1].weight, again.target_encoder.body[1].weight)
    with torch.no_grad():
        for domain in (0, 1, 2, -1):
            x = features.target.x
            assert torch.equal(again.embed(x, domain), run.method.embed(x, domain))
    assert ["source" in row for row in run.history()] == [True, False]
    assert ["inverted" in row for row in run.history()] == [False, True]


@pytest.mark.parametrize("given", [{"pretrain": 0.0}, {"pretrain": 1.0}, {"adapt_rate": 0.0}])
def test_settings_out_of_range_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(UserError, match="out of range"):
        new(**given)
