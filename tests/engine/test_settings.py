"""Settings out of range name their flag; `auto` is decided by the data and the machine."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from graphmsda.domains import Domain, Task, Unlabelled
from graphmsda.engine.settings import FREE_TO_CHANGE, Settings
from graphmsda.errors import UserError
from graphmsda.methods import CRF, hyperparameters
from tests.conftest import feature_task, image_task

NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("epochs", [0, -1]),
        ("batch_size", [-1, 1.5, "3", True]),
        ("devices", [0]),
        ("nodes", [-2]),
        ("steps_per_epoch", [-3]),
        ("lr", [-1.0, NAN, INFINITE]),
        ("weight_decay", [-1e-4, NAN, INFINITE]),
        ("clip", [-1.0, NAN]),
        ("checkpoint_seconds", [-1.0, NAN]),
        ("dropout", [-0.1, 1.0, NAN]),
        ("average", [-0.1, 1.0, NAN]),
        ("optimiser", ["adan"]),
        ("schedule", ["step"]),
        ("precision", ["16"]),
        ("device", ["tpu"]),
        ("accelerate", ["on", "no", True]),
    ],
)
def test_out_of_range(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(UserError) as caught:
            Settings(**{name: value})
        text = str(caught.value)
        assert text.startswith(f"--{name.replace('_', '-')} {value}: out of range; give ")
        assert "\n" not in text


def test_choices_are_named() -> None:
    with pytest.raises(UserError, match="one of adam, adamw, sgd"):
        Settings(optimiser="lbfgs")


def test_accelerate_is_a_flag_that_may_change_on_resuming() -> None:
    assert Settings().accelerate == "auto"
    assert Settings(accelerate="off").resolved(feature_task()).accelerate == "off"
    assert "accelerate" in FREE_TO_CHANGE
    with pytest.raises(UserError, match="--accelerate on: out of range; give one of auto, off"):
        Settings(accelerate="on")


def test_edges_of_the_ranges_are_allowed() -> None:
    edges = {"dropout": 0.0, "average": 0.0, "weight_decay": 0.0, "clip": 0.0, "checkpoint_seconds": 0.0}
    edges |= {"epochs": 1, "steps_per_epoch": 1}
    taken = Settings(**edges)
    assert {name: getattr(taken, name) for name in edges} == edges


def test_every_setting_has_a_help_text() -> None:
    for field in dataclasses.fields(Settings):
        assert field.name == "parameters" or field.metadata["text"]


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("GRAPHMSDA_DATA", "nowhere")  # no weights lie there


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize(
    ("task", "backbone", "weights"),
    [
        (feature_task(), "mlp", "none"),
        (image_task(side=64), "small", "none"),
        (image_task(side=65, size=3), "resnet18", "imagenet"),
    ],
)
def test_auto_without_a_gpu(task: Task, backbone: str, weights: str) -> None:
    chosen = Settings().resolved(task)
    assert (chosen.backbone, chosen.weights) == (backbone, weights)
    assert chosen.device == "cpu"


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize(
    ("multiplies", "features", "images"),
    [(lambda: True, "32", "bf16"), (lambda: False, "32", "32"), (None, "32", "32")],
)
def test_precision_is_what_the_processor_multiplies_in(
    multiplies: Any, features: str, images: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if multiplies is None:  # a PyTorch that cannot tell
        monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
    else:
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", multiplies, raising=False)
    assert Settings().resolved(feature_task()).precision == "32"
    assert Settings().resolved(image_task()).precision == images
    assert Settings(precision="64").resolved(image_task()).precision == "64"


@pytest.mark.usefixtures("cuda")
def test_auto_with_a_gpu() -> None:
    chosen = Settings().resolved(image_task())
    assert (chosen.device, chosen.precision, chosen.backbone) == ("cuda", "bf16", "3conv-2fc")
    chosen = Settings(device="cpu").resolved(image_task())
    assert (chosen.device, chosen.backbone) == ("cpu", "small")
    assert Settings(device="cuda", precision="64").resolved(image_task()).precision == "64"


@pytest.mark.usefixtures("no_cuda")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(UserError, match="--device cuda: PyTorch finds no CUDA device"):
        Settings(device="cuda").resolved(feature_task())


@pytest.mark.usefixtures("no_cuda")
def test_what_is_given_is_not_decided_anew() -> None:
    given = Settings(
        backbone="resnet50", weights="mine.pth", precision="bf16", steps_per_epoch=7, epochs=3, device="cpu"
    )
    chosen = given.resolved(image_task())
    assert (chosen.backbone, chosen.weights, chosen.precision) == ("resnet50", "mine.pth", "bf16")
    assert (chosen.steps_per_epoch, chosen.steps) == (7, 21)
    assert chosen.resolved(image_task()) == chosen


def test_an_epoch_is_one_pass_over_the_largest_source() -> None:
    def domain(name: str, size: int) -> Domain:
        return Domain(name, torch.zeros(size, 1), torch.arange(size) % 2)

    task = Task((domain("a", 300), domain("b", 25_000)), Unlabelled("t", torch.zeros(60_000, 1)), ("no", "yes"))
    chosen = Settings(batch_size=128, epochs=2, device="cpu").resolved(task)
    assert chosen.steps_per_epoch == 195
    assert chosen.steps == 390
    assert Settings(batch_size=30_000, device="cpu").resolved(task).steps_per_epoch == 1


def test_hyperparameters_are_completed() -> None:
    task = feature_task()
    chosen = Settings(method="mrf", preset="paper", parameters={"tau": 2}, device="cpu").resolved(task)
    assert chosen.parameters["tau"] == 2.0
    assert chosen.parameters["likelihood"] == "verbatim"
    assert chosen.parameters["clique_weight"] == 1.0
    with pytest.raises(UserError, match="--method: unknown method 'mfr'"):
        Settings(method="mfr").resolved(task)


@pytest.mark.parametrize(
    ("more", "weight"),
    [
        ({"backbone": "resnet18", "weights": "trained.pth"}, 0.0),
        ({"backbone": "resnet18", "weights": "imagenet"}, 0.0),
        ({"backbone": "resnet18", "weights": "none"}, 1.0),
        ({"backbone": "small"}, 1.0),
        ({"backbone": "resnet18", "weights": "imagenet", "parameters": {"edge_weight": 2}}, 2.0),
    ],
)
def test_trained_weights_have_defaults_of_their_own(more: dict[str, Any], weight: float) -> None:
    chosen = Settings(method="crf", device="cpu", **more).resolved(image_task())
    assert chosen.parameters["edge_weight"] == weight
    assert chosen.parameters["sigma"] == hyperparameters(CRF)["sigma"].default
    assert chosen.resolved(image_task()) == chosen


def test_what_may_change_on_resuming_exists() -> None:
    assert set(FREE_TO_CHANGE) <= {field.name for field in dataclasses.fields(Settings)}


@pytest.mark.parametrize(
    ("epochs", "steps", "interval"), [(10, 200, 50), (10, 20, 20), (99, 100, 50), (100, 100, 100), (50, 1000, 200)]
)
def test_long_runs_are_read_more_rarely(epochs: int, steps: int, interval: int) -> None:
    settings = Settings(epochs=epochs, steps_per_epoch=steps)
    read = [step for step in range(1, settings.steps + 1) if settings.is_read(step)]
    assert settings.interval == interval
    assert read == sorted({*range(interval, settings.steps + 1, interval), settings.steps})
