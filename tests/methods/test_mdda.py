"""MDDA: what each stage moves and by which loss, and how the sources' answers are weighted."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from graphmsda import fit
from graphmsda.backbones import build_backbone
from graphmsda.domains import Batch, Labelled
from graphmsda.engine.fit import Tally, take_step, updated_parameters
from graphmsda.engine.settings import Settings
from graphmsda.engine.training import Training
from graphmsda.errors import UserError
from graphmsda.losses.wasserstein import critic_gap, nearest
from graphmsda.methods import Phase, build_method, complete_parameters
from graphmsda.methods.mdda import MDDA
from tests.conftest import QUICK, feature_task
from tests.engine.test_accelerate import NoReading
from tests.methods.steps import CLASSES

SOURCES = 3


def new(stage: str = "", **given: object) -> MDDA:
    torch.manual_seed(0)
    backbone = build_backbone("mlp", (5,), SOURCES + 1, dropout=0.0)
    method = build_method("mdda", backbone, CLASSES, SOURCES + 1, complete_parameters("mdda", given)).double()
    assert isinstance(method, MDDA)
    method.stage = stage
    return method


def make_batch(seed: int = 0) -> Batch:
    task = feature_task(sources=SOURCES, seed=seed)
    parts = [Labelled(s.x[: 20 - 3 * m].double(), s.y[: 20 - 3 * m]) for m, s in enumerate(task.sources)]
    return Batch(tuple(parts), task.target.x.double(), torch.tensor(0.5), torch.tensor(seed))


def descend(method: MDDA, batch: Batch, lr: float = 0.01) -> Iterator[Phase]:
    """Take the steps as the engine does, by plain gradient descent."""
    for phase in method.phases(batch):
        parameters = updated_parameters(method, phase.updates)
        gradients = torch.autograd.grad(sum(phase.terms.values()), parameters)  # all that it updates takes part
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= lr * gradient
        yield phase


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("pretrain", [("source_networks", "heads")]),
        ("adapt", [("critics",)] * 2 + [("target_networks",)]),
        ("distil", [("heads",)]),
    ],
)
def test_what_a_stage_moves(stage: str, expected: list[tuple[str, ...]]) -> None:
    method = new(stage, critic_steps=2)
    before = {name: p.detach().clone() for name, p in method.named_parameters()}
    assert [phase.updates for phase in descend(method, make_batch())] == expected
    places = {"source_networks": "backbone.body.sources.", "target_networks": "backbone.body.targets."}
    moved = tuple(places.get(name, f"{name}.") for updates in expected for name in updates)
    for name, parameter in method.named_parameters():
        if not name.endswith(".4.bias"):  # a constant that all scores have cancels in a gap
            assert torch.equal(parameter, before[name]) != name.startswith(moved), name


def test_sources_are_trained_apart() -> None:
    """The risk of one source moves that source's network and classifier alone."""
    method, batch = new(), make_batch()
    sources, labels = method.embed_sources(batch)
    risk = -method.heads[1](sources[1]).gather(1, labels[1][:, None]).sum()
    parameters = dict(method.named_parameters())
    found = torch.autograd.grad(risk, list(parameters.values()), allow_unused=True)
    own = ("backbone.body.sources.1.", "heads.1.")
    for name, gradient in zip(parameters, found, strict=True):
        assert bool(gradient is not None and gradient.any()) == name.startswith(own), name


def test_one_network_learns_from_all_sources_and_then_they_part() -> None:
    method, batch = new("common"), make_batch()
    (phase,) = method.phases(batch)
    parameters = dict(method.named_parameters())
    found = torch.autograd.grad(phase.terms["source"], list(parameters.values()), allow_unused=True)
    first = ("backbone.body.sources.0.", "heads.0.")
    for name, gradient in zip(parameters, found, strict=True):
        assert bool(gradient is not None and gradient.any()) == name.startswith(first), name

    method.eval()
    expected = []
    for m, part in enumerate(batch.sources):  # each with its own statistics, which the common network has met
        embedding = method.backbone.parts(method.embed(part.x, m))[m]
        expected.append(method.heads[0](embedding))
    method.stage = "pretrain"
    method.begin_stage("pretrain")
    method.backbone.body.together = False
    for m, part in enumerate(batch.sources):
        torch.testing.assert_close(method.predict(method.embed(part.x, m)), expected[m])
    one, two = (list(network.parameters()) for network in method.source_networks[:2])
    assert all(torch.equal(a, b) and a is not b for a, b in zip(one, two, strict=True))


def test_with_the_papers_settings_the_sources_start_apart() -> None:
    method = new(**MDDA.presets["paper"])
    assert [stage[0] for stage in method.stages] == ["pretrain", "adapt", "distil"]
    before = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    method.begin_stage("pretrain")
    assert all(torch.equal(tensor, before[name]) for name, tensor in method.state_dict().items())


def test_critics_widen_the_gap_and_the_target_closes_it() -> None:
    method, batch = new("adapt"), make_batch()
    method.begin_stage("adapt")

    def gaps() -> Tensor:
        with torch.no_grad():
            sources, _ = method.embed_sources(batch)
            target = method.backbone.parts(method.embed_target(batch, noted=False))
            given = zip(method.critics, sources, target, strict=True)
            return torch.stack([critic_gap(critic(x), critic(y)) for critic, x, y in given])

    seen = [gaps(), *(gaps() for _ in descend(method, batch, lr=0.05))]
    assert len(seen) == 7  # five of the critics and one of the target's networks
    assert (seen[5] > seen[0]).all()
    assert (seen[6] < seen[5]).all()


def test_the_target_networks_start_from_the_sources() -> None:
    method, batch = new("pretrain"), make_batch()
    list(descend(method, batch))
    x = make_batch(1).target
    apart = method.backbone.parts(method.eval().embed(x))
    method.begin_stage("adapt")
    together = method.backbone.parts(method.embed(x))
    for m, part in enumerate(together):
        # A target that no network has met is read with the statistics of the one source that its network has.
        torch.testing.assert_close(part, method.backbone.parts(method.embed(x, m))[m])
        assert not torch.allclose(part, apart[m])


def test_distilling_takes_the_nearest_half(monkeypatch: pytest.MonkeyPatch) -> None:
    method, batch = new("distil"), make_batch()
    seen: list[list[Tensor]] = []
    classify = method.classify

    def noted(sources: list[Tensor], labels: list[Tensor], *, updates: tuple[str, ...]) -> Phase:
        seen.extend([list(sources), list(labels)])
        return classify(sources, labels, updates=updates)

    monkeypatch.setattr(method, "classify", noted)
    with torch.no_grad():
        sources, labels = method.embed_sources(batch)
        target = method.backbone.parts(method.embed_target(batch, noted=False))
    list(method.phases(batch))
    for m, (x, y) in enumerate(zip(*seen, strict=True)):
        rows = nearest(method.critics[m](sources[m]), method.critics[m](target[m]), 0.5)
        torch.testing.assert_close(x, sources[m][rows])
        assert torch.equal(y, labels[m][rows])
        assert len(y) == round(len(labels[m]) / 2)


def test_distances_are_running_means_of_the_gaps() -> None:
    method = new("distil")
    expected = [0.0] * SOURCES
    for seed in range(3):
        batch = make_batch(seed)
        list(method.phases(batch))
        with torch.no_grad():
            sources, _ = method.embed_sources(batch)
            target = method.backbone.parts(method.embed_target(batch, noted=False))
        for m in range(SOURCES):
            gap = abs(float((method.critics[m](sources[m]).mean() - method.critics[m](target[m]).mean()).detach()))
            expected[m] = gap if seed == 0 else 0.95 * expected[m] + 0.05 * gap
    assert method.distances.tolist() == pytest.approx(expected)


def test_the_nearer_source_counts_more() -> None:
    method = new()
    distances = [0.3, 1.5, 4.0]
    method.distances.copy_(torch.tensor(distances))
    embedding = torch.randn(4, SOURCES * method.backbone.width, dtype=torch.float64)
    weights = [math.exp(-(d**2) / 2) for d in distances]
    found = method.predict(embedding).exp()
    for row, probabilities in zip(embedding, found, strict=True):
        answers = [
            method.heads[m](row[None, m * method.backbone.width : (m + 1) * method.backbone.width]).exp()[0]
            for m in range(SOURCES)
        ]
        expected = sum(w * a for w, a in zip(weights, answers, strict=True)) / sum(weights)
        torch.testing.assert_close(probabilities, expected)


def test_a_sample_of_a_source_is_read_by_its_own_classifier() -> None:
    method, batch = new().eval(), make_batch()
    method.distances.copy_(torch.tensor([9.0, 100.0, 0.0]))  # so far away that a plain weight would be zero
    for m, part in enumerate(batch.sources):
        embedding = method.embed(part.x, m)
        torch.testing.assert_close(method.predict(embedding), method.heads[m](method.backbone.parts(embedding)[m]))


def test_the_nearest_source_is_found_in_its_own_part() -> None:
    method, batch = new().eval(), make_batch()
    for m, part in enumerate(batch.sources):
        method.remember_source(m, [(method.embed(part.x, m), part.y)])
    embedding = method.embed(batch.target)
    scores = method.source_scores(embedding)
    for m, part in enumerate(batch.sources):
        own = method.backbone.parts(method.embed(part.x, m))[m]
        means = torch.stack([own[part.y == k].mean(0) for k in range(CLASSES)])
        expected = -torch.cdist(method.backbone.parts(embedding)[m], means).square().amin(1)
        torch.testing.assert_close(scores[:, m], expected)


def test_a_run_goes_through_its_stages_and_reads_no_value() -> None:
    task = feature_task()
    settings = Settings(method="mdda", **(QUICK | {"epochs": 4})).resolved(task)  # 12 steps: 5, 1, 5 and 1
    training = Training(task, settings, torch.device("cpu"))
    method = training.method
    assert isinstance(method, MDDA)
    stages, sources = [], []
    while training.step < settings.steps:
        training.prepare()
        with NoReading():
            take_step(training, Tally())
        training.step += 1
        stages.append(method.stage)
        sources.append(torch.cat([p.detach().flatten() for p in method.source_networks.parameters()]))
    assert stages == ["common"] * 5 + ["pretrain"] + ["adapt"] * 5 + ["distil"]
    assert not torch.equal(sources[0], sources[5])
    assert all(torch.equal(weights, sources[6]) for weights in sources[6:])
    assert (method.distances > 0).all()


def test_a_run_tells_its_stages_and_predicts(tmp_path: object) -> None:
    task = feature_task()
    run = fit(task, "mdda", out=str(tmp_path), epochs=20, steps_per_epoch=3, batch_size=12, device="cpu")
    told = ["source" if "source" in row else "target" for row in run.history()]  # a row for each epoch of three steps
    assert told == ["source"] * 10 + ["target"] * 8 + ["source"] * 2
    truth = torch.arange(len(task.target.x)) % 3
    right = sum(a == f"class-{b}" for a, b in zip(run.predict(task.target.x).labels, truth.tolist(), strict=True))
    assert right >= 0.7 * len(truth)  # three clouds that overlap little: chance is a third


@pytest.mark.parametrize(
    "given",
    [
        {"common": -0.1},
        {"common": 1.0},
        {"pretrain": 0.6},
        {"distil": 0.5},
        {"adapt_rate": 0.0},
        {"critic_steps": 0},
        {"penalty": -1.0},
        {"kept": 0.0},
    ],
)
def test_hyperparameters_out_of_range_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(UserError, match=f"--set {next(iter(given))}="):
        new(**given)
