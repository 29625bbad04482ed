"""Methods by name, hyper-parameters by signature, and mistakes in either told in one sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any, ClassVar, Literal

import pytest
from torch import Tensor

from graphmsda.backbones import Backbone, build_backbone
from graphmsda.domains import Batch
from graphmsda.errors import UserError
from graphmsda.methods import METHODS, build_method, complete_parameters, find_method, hyperparameters
from graphmsda.methods.base import Method, Phase
from graphmsda.methods.source_only import SourceOnly


class Mine(Method):
    """Mine (Me, 2024).

    A method of another package.

    Args:
        speed: How fast,
            told over two lines.
        mode: How: by day.
        count: How often.

    What comes after is no argument: of any kind.
    """

    presets: ClassVar[dict[str, dict[str, Any]]] = {"fast": {"speed": 9.0}}

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        domains: int,
        *,
        speed: float = 1.0,
        mode: Literal["day", "night"] = "day",
        count: int = 2,
        loud: bool = False,
    ) -> None:
        super().__init__(backbone, classes, domains)
        self.speed = speed

    def phases(self, batch: Batch) -> Iterator[Phase]:
        yield Phase({"nothing": batch.target.sum()})

    def predict(self, embedding: Tensor) -> Tensor:
        return embedding[:, : self.classes].log_softmax(1)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("mine", f"{__name__}:Mine", "graphmsda.methods")

    def entry_points(*, group: str) -> list[EntryPoint]:
        return [entry] if group == "graphmsda.methods" else []

    monkeypatch.setattr("graphmsda.methods.entry_points", entry_points)


def sentence(act: Callable[..., object], *arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        act(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def backbone() -> Backbone:
    return build_backbone("mlp", (5,), 3)


def test_our_own_methods() -> None:
    assert list(METHODS)[:2] == ["source-only", "adabn"]
    for name, method in METHODS.items():
        assert find_method(name) is method
        assert issubclass(method, Method)
        assert isinstance(build_method(name, backbone(), 4, 3, complete_parameters(name, {})), method)


def test_unknown_methods_get_a_suggestion() -> None:
    text = sentence(find_method, "mfr")
    assert text.startswith("--method: unknown method 'mfr'; did you mean ")
    assert "mrf" in text
    assert "did you mean source-only" in sentence(find_method, "sourceonly")
    assert "there are source-only, adabn, crf, mrf" in sentence(find_method, "zzzzzzzz")
    assert "did you mean" in sentence(find_method, "CRF-MSDA".lower())


@pytest.mark.usefixtures("installed")
def test_a_method_of_another_package() -> None:
    assert find_method("mine").__name__ == "Mine"
    method = build_method("mine", backbone(), 4, 3, complete_parameters("mine", {"speed": 3}, "fast"))
    assert method.speed == 3.0
    assert complete_parameters("mine", {}, "fast") == {"speed": 9.0, "mode": "day", "count": 2, "loud": False}
    assert "did you mean mine" in sentence(find_method, "minne")
    assert "mine" in sentence(find_method, "zzzzzzzz")
    assert find_method("crf") is METHODS["crf"]


def test_hyperparameters_are_read_from_signature_and_docstring() -> None:
    found = hyperparameters(Mine)
    assert list(found) == ["speed", "mode", "count", "loud"]
    assert [p.default for p in found.values()] == [1.0, "day", 2, False]
    assert [p.kind for p in found.values()] == [float, Literal["day", "night"], int, bool]
    assert found["speed"].text == "How fast, told over two lines."
    assert found["mode"].text == "How: by day."
    assert found["count"].text == "How often."
    assert found["loud"].text == ""
    assert hyperparameters(SourceOnly) == {}
    for name, method in METHODS.items():
        keywords = [p.name for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY]
        assert list(hyperparameters(method)) == keywords, name


def test_defaults_then_preset_then_given() -> None:
    assert complete_parameters("mrf", {})["tau"] == hyperparameters(METHODS["mrf"])["tau"].default
    paper = complete_parameters("mrf", {"alpha": 7}, "paper")
    assert paper["likelihood"] == "verbatim"
    assert paper["alpha"] == 7.0
    assert type(paper["alpha"]) is float
    assert paper["clique_weight"] == 1.0
    assert complete_parameters("source-only", {}) == {}
    for method in METHODS.values():
        assert method.pretrained.keys() <= hyperparameters(method).keys()
    assert complete_parameters("crf", {}, pretrained=True)["edge_weight"] == 0.0
    assert complete_parameters("crf", {"edge_weight": 3}, pretrained=True)["edge_weight"] == 3.0
    for method in METHODS.values():
        for preset in method.presets.values():
            assert set(preset) <= set(hyperparameters(method))


def test_unknown_presets() -> None:
    assert "method mrf has no preset 'papre'; there is paper" in sentence(complete_parameters, "mrf", {}, "papre")
    assert "there is none" in sentence(complete_parameters, "source-only", {}, "paper")


def test_unknown_hyperparameters_get_a_suggestion() -> None:
    text = sentence(complete_parameters, "crf", {"lamda_1": 3})
    assert text.startswith("--set lamda_1: method crf has no hyper-parameter 'lamda_1'; did you mean lambda_1")
    assert "it has tau, scale" in sentence(complete_parameters, "mrf", {"zzzzzzz": 1})
    assert "it has none" in sentence(complete_parameters, "adabn", {"tau": 1})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("tau", "warm", "a number"),
        ("tau", True, "a number"),
        ("tau", None, "a number"),
        ("tau", [1.0], "a number"),
        ("wrong_edges", 2.5, "a whole number"),
        ("wrong_edges", True, "a whole number"),
        ("wrong_edges", "6", "a whole number"),
        ("entropy_per_class", 1, "true or false"),
        ("entropy_per_class", "maybe", "true or false"),
        ("scale", "metres", "one of relative, mean, sum"),
        ("scale", 1, "one of relative, mean, sum"),
        ("pseudo_labels", None, "one of entropy, confidence, accuracy"),
    ],
)
def test_wrong_types(name: str, value: object, expected: str) -> None:
    assert (
        sentence(complete_parameters, "mrf", {name: value}) == f"--set {name}={value}: not understood; give {expected}"
    )


NAN = float("nan")


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        *[("crf", "sigma", v) for v in (0.0, -1.0, NAN)],
        *[("crf", "beta", v) for v in (-0.1, 1.0, NAN)],
        *[("crf", "dropout", v) for v in (-0.1, 1.0)],
        *[("crf", name, -1.0) for name in ("threshold", "lambda_1", "lambda_2", "prototype_weight", "entropy_weight")],
        ("crf", "edge_weight", -1.0),
        *[("mrf", "tau", v) for v in (0.0, -1.0, NAN)],
        ("mrf", "wrong_edges", -1),
        *[("mrf", name, -1.0) for name in ("threshold", "alpha", "clique_weight", "entropy_weight")],
    ],
)
def test_values_out_of_range(method: str, name: str, value: Any) -> None:
    parameters = complete_parameters(method, {name: value})
    text = sentence(build_method, method, backbone(), 4, 3, parameters)
    assert text.startswith(f"--set {name}={value}: out of range; give a ")
