"""MRF-MSDA step by step: where prototypes start, which take part, and the readings of eq. 22."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from graphmsda.backbones import build_backbone
from graphmsda.methods import complete_parameters
from graphmsda.methods.mrf import MRF
from tests.methods.steps import CLASSES, DOMAINS, batch, one_phase, step, values

READINGS = ("log", "verbatim", "mean-clique", "logistic")


def new(**given: Any) -> MRF:
    torch.manual_seed(0)
    backbone = build_backbone("mlp", (5,), DOMAINS, dropout=0.0)
    return MRF(backbone, CLASSES, DOMAINS, **complete_parameters("mrf", given))


def test_prototypes_start_at_the_first_class_mean() -> None:
    method, given = new(), batch(absent=2)
    embedded = new().embed_batch(given)
    untouched = method.prototypes.detach().clone()
    one_phase(method, given)
    for m, part in enumerate(embedded.sources):
        for k in (0, 1):
            torch.testing.assert_close(method.prototypes[m, k], part.x[part.y == k].mean(0))
    assert method.seen.tolist() == [[True, True, False]] * 2 + [[False] * 3]
    assert torch.equal(method.prototypes[:, 2], untouched[:, 2])
    assert torch.equal(method.prototypes[2], untouched[2])  # no pseudo-label is believed in the first step
    before = method.prototypes.detach().clone()
    one_phase(method, batch(seed=1))  # a second meeting moves nothing, a first one still does
    assert torch.equal(method.prototypes[:2, :2], before[:2, :2])
    assert not torch.equal(method.prototypes[:2, 2], before[:2, 2])


def test_prototypes_may_start_at_random() -> None:
    method = new(start="normal")
    before = method.prototypes.detach().clone()
    one_phase(method, batch())
    assert torch.equal(method.prototypes, before)
    assert method.seen[:2].all()
    assert float(before.std()) == pytest.approx(0.0128, rel=0.1)


def test_the_first_step_believes_no_pseudo_label() -> None:
    method = new(pseudo_labels="confidence", threshold=0.0)
    assert float(step(method, batch()).shown["pseudo-labelled"]) == 0
    assert float(step(method, batch()).shown["pseudo-labelled"]) == 1
    assert method.seen[-1].any()


def test_balance_is_a_term_of_its_own() -> None:
    plain, method = new(ramp=0.0, balance_weight=0.0), new(ramp=0.0, balance_weight=2.0)
    assert "shares" not in plain.state_dict()
    one, two = values(one_phase(plain, batch())), values(one_phase(method, batch()))
    assert set(two) == {*one, "balance"}
    assert {name: two[name] for name in one} == one
    assert float(method.shares.sum()) == pytest.approx(1)
    assert method.shares.tolist() != pytest.approx([1 / CLASSES] * CLASSES)
    default = values(one_phase(new(ramp=0.0), batch()))
    assert default == one | {"balance": pytest.approx(two["balance"] / 2)}


def test_prototypes_not_met_take_no_part() -> None:
    method = new()
    one_phase(method, batch(absent=2))
    z = torch.randn(6, 128)
    joint = method.log_joint(z)
    assert (joint[:, ~method.seen] == -math.inf).all()
    torch.testing.assert_close(joint.exp().sum((1, 2)), torch.ones(6))
    assert (method.predict(z)[:, 2] == -math.inf).all()
    assert (method.source_scores(z) > -math.inf).all()
    before = method.predict(z)
    with torch.no_grad():
        method.prototypes[~method.seen] += 3.0
    torch.testing.assert_close(method.predict(z), before, rtol=1e-4, atol=1e-4)


def test_before_any_prototype_is_met_all_take_part() -> None:
    predictions = new().predict(torch.randn(4, 128))
    assert torch.isfinite(predictions).all()
    torch.testing.assert_close(predictions.exp().sum(1), torch.ones(4))


@pytest.mark.parametrize("scale", ["relative", "mean", "sum"])
def test_predictions_are_eq_20_by_hand(scale: str) -> None:
    method = new(scale=scale, tau=0.7)
    one_phase(method, batch())
    method = method.double()
    z, c = torch.rand(4, 128, dtype=torch.float64) + method.prototypes[0, 0].detach(), method.prototypes.detach()
    pairs = [(m, k) for m in range(2) for k in range(CLASSES)]
    spread = torch.stack([(c[p] - c[q]).square().sum() for p in pairs for q in pairs if p != q]).mean()
    unit = {"relative": float(spread), "mean": 128.0, "sum": 1.0}[scale]
    expected = torch.zeros(4, CLASSES, dtype=torch.float64)
    for row, query in enumerate(z):
        energy = torch.stack([(query - c[p]).square().sum() / (0.7 * unit) for p in pairs])
        for (_, k), share in zip(pairs, torch.softmax(-energy, 0), strict=True):
            expected[row, k] += share
    torch.testing.assert_close(method.predict(z).exp(), expected)


def test_posteriors_sum_to_one() -> None:
    method = new()
    for seed in range(2):
        step(method, batch(seed))
    z = method.embed(batch(3).target)
    torch.testing.assert_close(method.log_joint(z).exp().sum((1, 2)), torch.ones(20))
    torch.testing.assert_close(method.predict(z).exp().sum(1), torch.ones(20))
    assert (method.source_scores(z).exp().sum(1) <= 1 + 1e-5).all()


@pytest.mark.parametrize("reading", READINGS)
def test_every_reading_is_finite_and_trains(reading: str) -> None:
    method = new(likelihood=reading, scale="relative", tau=1.0, pseudo_labels="confidence", threshold=0.4)
    one_phase(method, batch())
    terms = one_phase(method, batch()).terms
    assert ("clique" in terms) == (reading == "log")
    gradient = torch.autograd.grad(terms["likelihood"], [method.prototypes, next(method.backbone.parameters())])
    assert all(torch.isfinite(g).all() and g.abs().sum() > 0 for g in gradient)
    phases = [step(method, batch(), lr=0.02) for _ in range(15)]
    totals = [sum(values(phase).values()) for phase in phases]
    assert all(map(math.isfinite, totals))
    assert values(phases[-1])["likelihood"] < values(phases[0])["likelihood"]


def test_readings_of_the_cliques_differ() -> None:
    found = {}
    for reading in READINGS:
        method = new(likelihood=reading, tau=1.0)
        found[reading] = values(one_phase(method, batch()))
    assert len({round(terms["likelihood"], 7) for terms in found.values()}) == 4
    assert len({round(terms["source"], 5) for terms in found.values()}) == 1
    # as printed, the sum over all cliques makes every likelihood smaller than the mean over them
    assert abs(found["verbatim"]["likelihood"]) < abs(found["mean-clique"]["likelihood"])


def test_weights_scale_their_terms() -> None:
    usual = values(one_phase(new(), batch()))
    assert all(value > 0 for value in usual.values())
    tripled = values(one_phase(new(alpha=3 * new().alpha), batch()))
    expected = usual | {"likelihood": 3 * usual["likelihood"], "clique": 3 * usual["clique"]}
    assert tripled == pytest.approx(expected, rel=1e-5)
    doubled = values(one_phase(new(clique_weight=2.0), batch()))
    assert doubled == pytest.approx(usual | {"clique": 2 * usual["clique"]}, rel=1e-5)
    assert values(one_phase(new(entropy_weight=0.0), batch()))["entropy"] == 0
    whole = values(one_phase(new(entropy_per_class=False), batch()))["entropy"]
    assert whole == pytest.approx(CLASSES * usual["entropy"], rel=1e-5)


@pytest.mark.parametrize("rule", ["entropy", "confidence", "accuracy"])
def test_each_rule_can_believe_and_doubt(rule: str) -> None:
    share = []
    for threshold in (0.0, 0.999):
        method = new(pseudo_labels=rule, threshold=threshold, tau=1.0)
        one_phase(method, batch())
        share.append(float(one_phase(method, batch()).shown["pseudo-labelled"]))
    assert all(0 <= value <= 1 for value in share)
    if rule == "entropy":
        assert share[0] == 0 < share[1]
    elif rule == "confidence":
        assert share[0] == 1 > share[1]
    else:
        assert share[0] == share[1]  # its threshold is the accuracy on the sources


def test_wrong_edges_come_from_the_batchs_own_random_numbers() -> None:
    one, two = (values(one_phase(new(), batch())) for _ in range(2))
    assert one == two
    other = values(one_phase(new(), dataclasses.replace(batch(), seed=torch.tensor(9))))
    assert other["likelihood"] != one["likelihood"]
    assert other["source"] == one["source"]
    assert math.isfinite(values(one_phase(new(wrong_edges=0), batch()))["likelihood"])


def test_nothing_of_a_step_is_kept_but_numbers() -> None:
    method = new()
    for seed in range(2):
        step(method, batch(seed))
        assert all(buffer.grad_fn is None and not buffer.requires_grad for buffer in method.buffers())
        assert method.prototypes.is_leaf
