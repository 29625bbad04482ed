"""CRF-MSDA step by step: prototypes, pseudo-labels, terms and what is kept from one step to the next."""

from __future__ import annotations

import gc
import math
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from graphmsda.backbones import build_backbone
from graphmsda.engine.optim import build_optimiser
from graphmsda.engine.settings import Settings
from graphmsda.graphs.prototypes import distance_scale
from graphmsda.methods import complete_parameters
from graphmsda.methods.crf import CRF
from tests.methods.steps import CLASSES, DOMAINS, batch, one_phase, step, values


def new(seed: int = 0, **given: Any) -> CRF:
    torch.manual_seed(seed)
    backbone = build_backbone("mlp", (5,), DOMAINS, dropout=0.0)
    return CRF(backbone, CLASSES, DOMAINS, **complete_parameters("crf", {"dropout": 0.0} | given))


def test_the_first_step_believes_no_pseudo_label() -> None:
    method = new(pseudo_labels="confidence", threshold=0.0)  # believes everything from the second step on
    first = step(method, batch())
    assert float(first.shown["pseudo-labelled"]) == 0
    assert method.seen.tolist() == [[True] * 3, [True] * 3, [False] * 3]
    assert not method.prototypes[-1].any()
    second = step(method, batch(1))
    assert float(second.shown["pseudo-labelled"]) == 1
    assert method.seen[-1].any()


def test_prototypes_are_moving_averages_of_class_means() -> None:
    method, one, two = new(beta=0.6), batch(0), batch(1)
    z = [method.embed_batch(given) for given in (one, two)]
    method = new(beta=0.6)
    for given in (one, two):
        one_phase(method, given)
    for m in range(2):
        for k in range(CLASSES):
            means = [part.sources[m].x[part.sources[m].y == k].mean(0) for part in z]
            torch.testing.assert_close(method.prototypes[m, k], (0.6 * means[0] + 0.4 * means[1]).detach())


def test_terms_have_names_and_are_finite() -> None:
    method = new()
    for seed in range(3):
        phase = step(method, batch(seed))
        assert list(phase.terms) == ["source", "entropy", "edges", "prototype", "global", "local"]
        assert all(math.isfinite(v) and v >= 0 for v in values(phase).values())
        assert 0 <= float(phase.shown["adjacency"]) <= 1


def test_the_second_convolution_may_be_the_classifier() -> None:
    method = new(own_classifier=False)
    assert method.classifier is None
    assert method.convolution_2.out_features == CLASSES
    phase = one_phase(method, batch())
    sum(phase.terms.values()).backward()
    assert method.convolution_2.weight.grad is not None
    assert method.convolution_2.weight.grad.any()
    assert method.predict(torch.ones(2, method.backbone.features)).shape == (2, CLASSES)


@pytest.mark.parametrize(("hidden", "found"), [(7, 7), (10_000, 128)])
def test_the_hidden_layer_is_no_wider_than_the_embedding(hidden: int, found: int) -> None:
    method = new(hidden=hidden)
    assert method.convolution_1.weight.shape == (found, method.backbone.features)
    assert method.convolution_2.weight.shape == (method.backbone.features, found)
    step(method, batch())
    read, _ = method.eval().predictor()(torch.ones(2, method.backbone.features))
    torch.testing.assert_close(read, method.predict(torch.ones(2, method.backbone.features)))


def test_what_a_query_hears_is_the_weight_of_its_edges() -> None:
    near, far = (float(step(new(sigma=sigma), batch()).shown["heard"]) for sigma in (10.0, 0.01))
    assert near == pytest.approx(2 * CLASSES, rel=0.1)  # all prototypes of both sources, with a weight of nearly 1
    assert far < 0.1


def test_prototypes_are_stored_without_gradient_and_train_all_the_same() -> None:
    method = new()
    phase = one_phase(method, batch())
    assert not any(buffer.requires_grad for buffer in method.buffers())
    assert all(buffer.grad_fn is None for buffer in method.buffers())
    # the global alignment hangs on the prototypes alone, and reaches the backbone through this batch's means
    (gradient,) = torch.autograd.grad(phase.terms["global"], [next(method.backbone.parameters())])
    assert gradient.abs().sum() > 0


class Probe:
    """Hangs on a node of the autograd graph and lives as long as that does."""

    def __call__(self, *gradients: object) -> None:
        return None


def test_no_graph_is_carried_from_step_to_step() -> None:
    method = new()
    probes: list[weakref.ref[Probe]] = []

    def watch(module: object, inputs: object, embedding: Tensor) -> None:
        if embedding.grad_fn is not None:
            probe = Probe()
            embedding.grad_fn.register_hook(probe)
            probes.append(weakref.ref(probe))

    method.backbone.register_forward_hook(watch)
    for seed in range(3):
        phase = step(method, batch(seed))
        assert len(probes) == seed + 1
        assert probes[-1]() is not None  # the losses of this step still hold the graph
        del phase
        gc.collect()
        assert [probe() for probe in probes] == [None] * len(probes)
        assert all(buffer.grad_fn is None for buffer in method.buffers())


def test_prototypes_that_hear_the_query_change_the_loss() -> None:
    both, one = new(two_way=True, sigma=2.0), new(two_way=False, sigma=2.0)
    a, b = values(one_phase(both, batch())), values(one_phase(one, batch()))
    assert a["source"] != pytest.approx(b["source"], rel=1e-4)
    assert a["global"] == pytest.approx(b["global"])
    assert a["prototype"] == pytest.approx(b["prototype"])


@pytest.mark.parametrize("normalise", ["symmetric", "row", "none"])
@pytest.mark.parametrize("scale", ["relative", "mean", "sum"])
def test_readings_differ_and_are_finite(normalise: str, scale: str) -> None:
    method = new(normalise=normalise, scale=scale, sigma=2.0)
    for seed in range(2):
        assert all(map(math.isfinite, values(step(method, batch(seed))).values()))
    predictions = method.eval().predict(method.embed(batch(2).target))
    torch.testing.assert_close(predictions.exp().sum(1), torch.ones(20))
    if (normalise, scale) != ("symmetric", "relative"):
        usual = values(one_phase(new(sigma=2.0), batch()))
        assert values(one_phase(new(normalise=normalise, scale=scale, sigma=2.0), batch())) != usual


def entropy(log_probabilities: Tensor) -> Tensor:
    return -(log_probabilities.exp() * log_probabilities).sum(1)


@pytest.mark.parametrize(("rule", "threshold"), [("entropy", 0.9), ("confidence", 0.5), ("accuracy", 0.0)])
def test_each_rule_believes_whom_it_says(rule: str, threshold: float) -> None:
    method = new(pseudo_labels=rule, threshold=threshold)
    for seed in (0, 0, 0, 0):
        step(method, batch(seed), lr=0.1)
    given = batch(0)
    embedded = method.embed_batch(given)
    with torch.no_grad():
        predictions = method.predict(embedded.target)
        x, y, _ = embedded.flat()
        accuracy = (method.predict(x).argmax(1) == y).float().mean()
    expected = {
        "entropy": entropy(predictions) < threshold,
        "confidence": predictions.exp().amax(1) > threshold,
        "accuracy": predictions.exp().amax(1) > 1 / (1 + math.exp(-3 * accuracy)),
    }[rule].float()
    before, seen = method.prototypes.clone(), method.seen.clone()
    phase = one_phase(method, given)
    assert float(phase.shown["pseudo-labelled"]) == pytest.approx(float(expected.mean()))
    label = predictions.argmax(1)
    for k in range(CLASSES):
        chosen = (label == k) & (expected > 0)
        if not chosen.any():
            assert torch.equal(method.prototypes[-1, k], before[-1, k])
            continue
        mean = embedded.target[chosen].mean(0).detach()
        updated = method.beta * before[-1, k] + (1 - method.beta) * mean if seen[-1, k] else mean
        torch.testing.assert_close(method.prototypes[-1, k], updated, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("weight", "term"),
    [
        ("lambda_1", "global"),
        ("lambda_2", "local"),
        ("prototype_weight", "prototype"),
        ("entropy_weight", "entropy"),
        ("edge_weight", "edges"),
    ],
)
def test_weights_scale_their_terms(weight: str, term: str) -> None:
    alone = {"edge_weight": 0.0}  # whose term has a share of the entropy
    one, three, none = (values(one_phase(new(**(alone | {weight: factor})), batch())) for factor in (1.0, 3.0, 0.0))
    assert one[term] > 0
    assert three[term] == pytest.approx(3 * one[term], rel=1e-5)
    assert none[term] == 0
    assert {k: v for k, v in one.items() if k != term} == {k: v for k, v in three.items() if k != term}


def test_entropy_per_class() -> None:
    whole, share = (values(one_phase(new(entropy_per_class=flag), batch())) for flag in (False, True))
    assert whole["entropy"] == pytest.approx(CLASSES * share["entropy"], rel=1e-5)


def test_edges_are_classified_by_hand() -> None:
    method, given = new(edge_weight=2.0, entropy_weight=3.0, sigma=0.6, ramp=0.0), batch()
    for _ in range(2):
        step(method, given, lr=0.0)
    with torch.no_grad():
        embedded = method.embed_batch(given)
    phase = one_phase(method, given)  # which leaves behind the prototypes that its graphs had
    nodes, seen = method.prototypes.flatten(0, 1), method.seen.flatten()
    scale = distance_scale(method.prototypes, method.seen, reading="relative")

    def share(z: Tensor, k: int) -> Tensor:
        edges = [math.exp(-(z - node).square().sum() / (2 * 0.6**2 * scale)) for node in nodes]
        votes = [edge if met else 0.0 for edge, met in zip(edges, seen, strict=True)]
        return torch.tensor(sum(votes[k::CLASSES]) / sum(votes))

    risks = [[-share(z, int(y)).log() for z, y in zip(part.x, part.y, strict=True)] for part in embedded.sources]
    risk = torch.stack([torch.stack(some).mean() for some in risks]).mean()
    shares = torch.stack([torch.stack([share(z, k) for k in range(CLASSES)]) for z in embedded.target])
    uncertain = -(shares * shares.log().nan_to_num(neginf=0.0)).sum(1).mean() / CLASSES
    assert values(phase)["edges"] == pytest.approx(2 * float(risk + 3 * uncertain), rel=1e-4)


@pytest.mark.parametrize(
    ("graph_teaches", "edge_weight", "taught"), [(False, 1.0, False), (True, 1.0, True), (False, 0.0, True)]
)
def test_the_graph_shapes_the_embedding_where_it_teaches(graph_teaches: bool, edge_weight: float, taught: bool) -> None:
    method = new(graph_teaches=graph_teaches, edge_weight=edge_weight, ramp=0.0)
    step(method, batch())
    phase = one_phase(method, batch(1))
    shaped = method.backbone.body[1].weight
    layers = [method.convolution_1.weight, method.convolution_2.weight, method.classifier.weight]

    def pull(term: str) -> list[bool]:
        found = torch.autograd.grad(phase.terms[term], [shaped, *layers], retain_graph=True, allow_unused=True)
        return [gradient is not None and bool(gradient.any()) for gradient in found]

    for term in ("source", "entropy", "prototype"):
        assert pull(term) == [taught, True, True, True]
    assert pull("edges") == [edge_weight > 0, False, False, False]
    assert pull("global") == [True, False, False, False]


def test_whether_the_graph_teaches_changes_no_value() -> None:
    found = []
    for graph_teaches in (False, True):
        method = new(graph_teaches=graph_teaches)
        found.append([values(one_phase(method, batch(seed))) for seed in range(2)])
    assert found[0] == found[1]


def test_edges_may_lead_to_prototypes_that_are_learned() -> None:
    method, averages = new(ramp=0.0), new(ramp=0.0, learn_edges=False)
    assert averages.edge_prototypes is None
    assert new(edge_weight=0.0).edge_prototypes is None
    learned = method.edge_prototypes
    assert learned is not None
    first, same = one_phase(method, batch()), one_phase(averages, batch())
    assert values(first) == pytest.approx(values(same), rel=1e-5)  # they start at the first class means
    assert torch.equal(learned[:-1], method.prototypes[:-1])
    (pull,) = torch.autograd.grad(first.terms["edges"], learned)
    with torch.no_grad():
        learned += 0.1 * torch.randn(learned.shape, generator=torch.Generator().manual_seed(3))
    kept = learned.detach().clone()
    second = one_phase(method, batch(1))
    assert pull[:-1].any()
    assert torch.equal(learned[:-1], kept[:-1])
    assert not torch.equal(learned[:-1], method.prototypes[:-1])

    given = new(ramp=0.0).embed_batch(batch(1))
    seen = method.seen.clone()
    unit = 2 * method.sigma**2 * float(distance_scale(learned, seen, reading="relative"))
    total = 0.0
    for z, y in [(z, int(y)) for part in given.sources for z, y in zip(part.x, part.y, strict=True)]:
        share = torch.stack([torch.exp(-(z - c).square().sum() / unit) for c in learned.detach().flatten(0, 1)])
        share = (share * seen.flatten()).view(DOMAINS, CLASSES).sum(0)
        total -= float((share[y] / share.sum()).log().detach()) / sum(len(part.y) for part in given.sources)
    entropy = [torch.exp(-(z - learned.detach()).square().sum(2) / unit) * seen for z in given.target]
    chances = [one.sum(0) / one.sum() for one in entropy]
    target = sum(-float((p * p.clamp(min=1e-30).log()).sum().detach()) for p in chances) / len(chances) / CLASSES
    assert values(second)["edges"] == pytest.approx(total + target, rel=1e-3)


def test_learned_edges_take_no_weight_decay() -> None:
    method = new()
    groups = build_optimiser(method, Settings(lr=0.01, weight_decay=0.1)).param_groups
    (spared,) = [group["params"] for group in groups if group["weight_decay"] == 0]
    assert [parameter is method.edge_prototypes for parameter in spared] == [True]


def test_the_local_term_is_eq_14_by_hand() -> None:
    method, given = new(lambda_2=1.0, scale="sum", sigma=5.0), batch()
    embedded = new(lambda_2=1.0, scale="sum", sigma=5.0).embed_batch(given)
    phase = one_phase(method, given)
    total, count = 0.0, len(embedded.target)  # no target sample is believed in the first step, and all count
    for part in embedded.sources:
        for z, y in zip(part.x, part.y, strict=True):
            total += float((z - part.x[part.y == y].mean(0)).square().sum().detach())
            count += 1
    assert values(phase)["local"] == pytest.approx(total / count, rel=1e-4)


def test_dropout_acts_in_training_alone() -> None:
    method = new(dropout=0.5)
    one_phase(method, batch())
    losses = {values(one_phase(new(dropout=0.5), batch()))["source"], values(one_phase(new(), batch()))["source"]}
    assert len(losses) == 2
    z = torch.randn(4, 128)
    assert torch.equal(method.predict(z), method.predict(z))


def test_training_lowers_the_loss() -> None:
    method = new()
    losses = [values(step(method, batch(), lr=0.05))["source"] for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
