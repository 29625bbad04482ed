"""What every method owes, tested on all of them: a new one in `METHODS` is covered with no new test code."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from graphmsda import METHODS, Domain, Run, Task, fit
from graphmsda.backbones import build_backbone
from graphmsda.domains import Batch, Labelled
from graphmsda.engine.fit import Tally, take_step
from graphmsda.engine.settings import Settings
from graphmsda.engine.training import Training
from graphmsda.methods import Method, build_method, complete_parameters, hyperparameters
from tests.conftest import QUICK, feature_task, image_task

CLASSES = 4
every_method = pytest.mark.parametrize("name", list(METHODS))


def build(name: str, sources: int, dtype: torch.dtype = torch.float32) -> Method:
    torch.manual_seed(0)
    backbone = build_backbone("small", (3, 16, 16), sources + 1)
    return build_method(name, backbone, CLASSES, sources + 1, complete_parameters(name, {})).to(dtype)


def batch_of(sizes: list[int], classes: int = CLASSES, absent: int | None = None, seed: int = 0) -> Batch:
    """Sources of these sizes and a target of the last one; `absent` is missing from every source."""
    generator = torch.Generator().manual_seed(seed)
    present = [k for k in range(classes) if k != absent]
    parts = [
        Labelled(
            torch.randint(0, 256, (n, 3, 16, 16), generator=generator, dtype=torch.uint8),
            torch.tensor([present[i % len(present)] for i in range(n)]),
        )
        for n in sizes
    ]
    return Batch(tuple(parts[:-1]), parts[-1].x, torch.tensor(0.5), torch.tensor(seed))


def step(method: Method, batch: Batch) -> list[float]:
    """One optimiser step per phase, as the engine does; returns all terms."""
    optimiser = torch.optim.Adam(method.parameters(), lr=1e-3)
    values = []
    for phase in method.phases(batch):
        assert phase.terms
        loss = torch.stack(list(phase.terms.values())).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        values += [float(v.detach()) for v in phase.terms.values()]
    return values


def assert_finite(method: Method) -> None:
    for key, tensor in method.state_dict().items():
        assert torch.isfinite(tensor.double()).all(), key


@every_method
@pytest.mark.parametrize("sources", [1, 2, 3, 4, 5])
def test_any_number_of_sources(name: str, sources: int) -> None:
    method = build(name, sources)
    for _ in range(3):
        assert all(torch.isfinite(torch.tensor(step(method, batch_of([6] * (sources + 1))))))
    assert_finite(method)


@every_method
@pytest.mark.parametrize("sizes", [[8, 3, 5], [1, 6, 6], [6, 6, 1], [1, 1, 1], [2, 9, 40]])
def test_unequal_batch_sizes(name: str, sizes: list[int]) -> None:
    method = build(name, 2)
    for seed in range(3):
        assert all(torch.isfinite(torch.tensor(step(method, batch_of(sizes, seed=seed)))))
    assert_finite(method)


@every_method
def test_class_missing_from_a_batch_and_from_everywhere(name: str) -> None:
    method = build(name, 2)
    for absent in (1, 1, 2):  # class 1 is missing at first and comes later; class 3 is missing from a source below
        step(method, batch_of([8, 8, 8], absent=absent))
    assert_finite(method)
    method = build(name, 2)
    for seed in range(3):
        whole = batch_of([8, 8, 8], seed=seed)
        partial = batch_of([8, 8, 8], absent=3, seed=seed)
        step(method, dataclasses.replace(whole, sources=(partial.sources[0], whole.sources[1])))
    assert_finite(method)
    method.eval()
    predictions = method.predict(method.embed(whole.target))
    assert torch.isfinite(predictions.exp()).all()
    torch.testing.assert_close(predictions.exp().sum(1), torch.ones(8))


@every_method
@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_three_steps_are_finite_in_both_precisions(name: str, precision: str) -> None:
    task = image_task()
    settings = Settings(method=name, **QUICK, precision=precision).resolved(task)
    training = Training(task, settings, torch.device("cpu"))
    tally = Tally()
    for _ in range(3):
        training.prepare()
        take_step(training, tally)
        training.step += 1
    row = tally.read()
    assert row["finite"] == 1
    assert_finite(training.method)


@every_method
def test_predictions_do_not_depend_on_the_rest_of_the_batch(name: str) -> None:
    method = build(name, 2)
    for seed in range(3):
        step(method, batch_of([8, 8, 8], seed=seed))
    method = method.double().eval()
    x = batch_of([2, 2, 9], seed=7).target
    together = method.predict(method.embed(x))
    for i in range(len(x)):
        torch.testing.assert_close(method.predict(method.embed(x[i : i + 1]))[0], together[i], rtol=0, atol=1e-10)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(method.predict(method.embed(x[order])), together[order], rtol=0, atol=1e-10)
    assert together.shape == (9, CLASSES)
    torch.testing.assert_close(together.exp().sum(1), torch.ones(9, dtype=torch.float64))
    assert method.source_scores(method.embed(x)).shape == (9, 2)


@every_method
def test_the_predictor_gives_what_predict_and_source_scores_give(name: str) -> None:
    method = build(name, 2)
    for seed in range(3):
        step(method, batch_of([8, 8, 8], absent=3, seed=seed))
    for source in range(2):
        embedding = torch.rand(9, method.backbone.features)
        method.remember_source(source, [(embedding, torch.arange(9) % 3)])
    method = method.eval()
    with torch.inference_mode():
        predictor = method.predictor()
        for seed in (7, 8):
            embedding = method.embed(batch_of([2, 2, 9], seed=seed).target)
            log_probabilities, scores = predictor(embedding)
            torch.testing.assert_close(log_probabilities.exp(), method.predict(embedding).exp(), rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(scores, method.source_scores(embedding), rtol=1e-6, atol=1e-6)


@every_method
def test_save_and_load(name: str, tmp_path: Path) -> None:
    task = image_task()
    run = fit(task, name, out=tmp_path / "run", **QUICK)
    again = Run.load(tmp_path / "run", device="cpu")
    for key, tensor in run.method.state_dict().items():
        assert torch.equal(tensor, again.method.state_dict()[key]), key
    one, two = run.predict(task.target.x), again.predict(task.target.x)
    assert one.labels == two.labels
    assert one.nearest_source == two.nearest_source
    assert set(one.nearest_source) <= {"source-0", "source-1"}
    assert torch.equal(one.probabilities, two.probabilities)


@every_method
def test_same_seed_same_weights(name: str, tmp_path: Path) -> None:
    task = feature_task()
    weights = [fit(task, name, out=tmp_path / str(i), seed=seed, **QUICK).method for i, seed in enumerate((3, 3, 4))]
    one, two, other = (method.state_dict() for method in weights)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@every_method
def test_target_labels_cannot_matter(name: str, tmp_path: Path) -> None:
    """A task whose target's labels are garbage trains to identical weights: the labels have nowhere to go."""
    clean = image_task()
    true = Domain("target", clean.target.x, torch.arange(len(clean.target.x)) % 3)
    garbage = Domain("target", clean.target.x, torch.zeros(len(clean.target.x), dtype=torch.int64))
    states = []
    for i, target in enumerate((true, garbage)):
        task = Task(clean.sources, target.unlabelled(), clean.classes)
        states.append(fit(task, name, out=tmp_path / str(i), **QUICK).method.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@every_method
def test_every_hyperparameter_is_described(name: str) -> None:
    assert (METHODS[name].__doc__ or "").strip()
    for parameter in hyperparameters(METHODS[name]).values():
        assert parameter.text, f"{name}: say what {parameter.name} is in the docstring's Args"
    for preset in METHODS[name].presets:
        method = build_method(
            name, build_backbone("small", (3, 16, 16), 3), CLASSES, 3, complete_parameters(name, {}, preset)
        )
        step(method, batch_of([8, 8, 8]))
        assert_finite(method)
