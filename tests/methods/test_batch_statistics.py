"""Whose batch statistics normalise a sample: each domain's own, the mean of all, or those of one common batch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphmsda import UserError, fit
from graphmsda.backbones import build_backbone
from graphmsda.methods import build_method, complete_parameters
from graphmsda.methods.base import Method
from graphmsda.norm import EVERYWHERE, DomainBatchNorm, Layout
from tests.conftest import QUICK, image_task
from tests.methods.steps import CLASSES, DOMAINS, batch, one_phase, step, values

MODELS = ["crf", "mrf"]


def new(name: str, statistics: str) -> Method:
    torch.manual_seed(0)
    backbone = build_backbone("mlp", (5,), DOMAINS, dropout=0.0)
    given: dict[str, Any] = {"dropout": 0.0} if name == "crf" else {}
    return build_method(name, backbone, CLASSES, DOMAINS, {"batch_statistics": statistics, **given})


def usual(body: nn.Module) -> nn.Module:
    """A copy of a network with PyTorch's own batch norms."""
    body = copy.deepcopy(body)
    for parent in list(body.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, DomainBatchNorm):
                norm = nn.BatchNorm1d(len(child.weight), eps=child.eps, momentum=None)  # a plain mean of all batches
                norm.weight, norm.bias = child.weight, child.bias
                setattr(parent, name, norm)
    return body.train()


def all_domains() -> list[Tensor]:
    given = batch()
    return [*(part.x for part in given.sources), given.target]


@pytest.mark.parametrize("name", MODELS)
def test_one_common_batch_is_a_network_with_usual_norms(name: str) -> None:
    method = new(name, "common")
    plain = usual(method.backbone.body)
    parts = all_domains()
    embedded = method.embed_batch(batch())
    wanted = torch.split(plain(torch.cat(parts)), [len(part) for part in parts])
    for got, z in zip([*(part.x for part in embedded.sources), embedded.target], wanted, strict=True):
        torch.testing.assert_close(got, z)
    method.eval()
    plain.eval()
    for domain, part in enumerate(parts):
        torch.testing.assert_close(method.embed(part, domain), plain(part))


@pytest.mark.parametrize("name", MODELS)
def test_mean_of_all_is_what_a_usual_norm_has_met_that_takes_domains_in_turn(name: str) -> None:
    method = new(name, "mean")
    plain = usual(method.backbone.body)
    one_phase(method, batch())
    for part in all_domains():
        plain(part)
    method.eval()
    plain.eval()
    for domain, part in enumerate(all_domains()):
        torch.testing.assert_close(method.embed(part, domain), plain(part))
    torch.testing.assert_close(method.embed(part), plain(part))  # the target, as `predict` reads it


@pytest.mark.parametrize("name", MODELS)
def test_mean_of_all_trains_as_own_do_and_a_common_batch_does_not(name: str) -> None:
    terms: dict[str, list[dict[str, float]]] = {}
    for statistics in ("own", "mean", "common"):
        method = new(name, statistics)
        terms[statistics] = []
        for number in range(3):
            torch.manual_seed(number)
            terms[statistics].append(values(step(method, batch(number))))
    assert terms["own"] == terms["mean"] != terms["common"]


def test_a_domain_that_was_never_met_has_no_part_in_the_mean() -> None:
    layout = Layout(sizes=(8,), domains=(1,), totals=(8,))
    norm = DomainBatchNorm(2, 3, layout)
    x = torch.randn(8, 2)
    norm(x)
    for got, wanted in zip(norm.statistics(EVERYWHERE), (x.mean(0), x.var(0)), strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("statistics", ["own", "mean", "common"])
def test_run_reads_and_exports_as_it_was_asked_to(statistics: str, tmp_path: Path) -> None:
    from graphmsda.export.graph import Graph, random_samples
    from graphmsda.run import Run

    fit(image_task(), "mrf", out=tmp_path, parameters={"batch_statistics": statistics}, backbone="small", **QUICK)
    run = Run.load(tmp_path, device="cpu")
    x = random_samples(run, 6)
    own, other = (run.method.embed(x, domain) for domain in (-1, 0))
    assert torch.equal(own, other) == (statistics != "own")
    with torch.no_grad():
        torch.testing.assert_close(Graph(run)(x)[0], run.method.predict(own).exp(), rtol=1e-4, atol=1e-5)


def test_other_names_are_refused() -> None:
    with pytest.raises(UserError, match=r"batch_statistics=domain: not understood; give one of own, mean, common"):
        complete_parameters("mrf", {"batch_statistics": "domain"}, None)
