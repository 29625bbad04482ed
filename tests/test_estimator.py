"""The scikit-learn face: scikit-learn's own checks, skada's pipelines and scorers, arrays of all kinds, files."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, ShuffleSplit, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import graphmsda
from graphmsda import GraphMSDAClassifier, Run, UserError, fit
from graphmsda.backbones import BACKBONES
from graphmsda.cli import main
from tests.conftest import QUICK, feature_task
from tests.test_readme import ROOT, blocks

Array = NDArray[Any]

# Checks of scikit-learn that are not passed, each with the reason.
EXPECTED_FAILURES: dict[str, str] = {}
SKIPPED = {"check_array_api_input": "scikit-learn runs it only where SCIPY_ARRAY_API is set; arrays become tensors"}


@pytest.fixture(autouse=True)
def routing() -> Iterator[None]:
    """Importing skada turns metadata routing on for the whole process: each test begins without."""
    with sklearn.config_context(enable_metadata_routing=False):
        yield


def data(sources: int = 2, size: int = 40, classes: int = 3, seed: int = 0) -> tuple[Array, Array, Array]:
    """Gaussian classes in shifted domains, the target last: X, true y, sample_domain."""
    rng = np.random.default_rng(seed)
    y = np.tile(np.arange(size) % classes, sources + 1)
    domain = np.repeat([*range(1, sources + 1), -2], size)
    shift = rng.normal(size=(sources + 1, 5)).repeat(size, axis=0)
    return 3 * np.eye(5)[y] + shift + 0.5 * rng.normal(size=(len(y), 5)), y, domain


def pictures(seed: int = 0, side: int = 12) -> tuple[Array, Array, Array]:
    """Images whose brightness tells the class, uint8 (N, H, W, 3)."""
    rng = np.random.default_rng(seed)
    y = np.arange(36) % 2
    X = rng.integers(0, 100, (36, side, side, 3)) + 120 * y[:, None, None, None]
    return X.astype(np.uint8), y, np.repeat([0, 1, -1], 12)


def quick(method: str = "mrf", **more: Any) -> GraphMSDAClassifier:
    return GraphMSDAClassifier(method, **{"epochs": 6, "random_state": 0} | more)


@pytest.fixture(scope="module")
def fitted() -> GraphMSDAClassifier:
    X, y, domain = data()
    return quick(epochs=15).fit(X, np.where(domain < 0, -1, y), domain)


# --- scikit-learn -----------------------------------------------------------------------------------------------------


def run_checks(estimator: GraphMSDAClassifier) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(
            estimator, expected_failed_checks=EXPECTED_FAILURES, on_skip=None, on_fail="raise", legacy=True
        )
    assert {result["check_name"] for result in results if result["status"] == "skipped"} <= set(SKIPPED)
    assert sum(result["status"] == "passed" for result in results) >= 55


def test_scikit_learns_checks() -> None:
    run_checks(GraphMSDAClassifier("adabn", epochs=2))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["source-only", "crf", "mrf", "mrf-plus", "mcd", "m3sda"])
def test_scikit_learns_checks_with_defaults(method: str) -> None:
    run_checks(GraphMSDAClassifier(method))


def test_adapts_and_remembers_what_it_saw(fitted: GraphMSDAClassifier) -> None:
    X, y, domain = data()
    target = domain < 0
    assert fitted.score(X[target], y[target]) > 0.9
    assert fitted.score(X, y, sample_domain=domain) > 0.9
    assert fitted.classes_.tolist() == [0, 1, 2]
    assert fitted.source_domains_.tolist() == [1, 2]
    assert fitted.domains_ == ("source 1", "source 2", "target")
    assert fitted.n_features_in_ == 5
    assert fitted.history_[-1]["step"] == fitted.run_.about["steps"]
    assert np.allclose(fitted.predict_proba(X).sum(1), 1)
    assert np.allclose(np.log(fitted.predict_proba(X)), fitted.predict_log_proba(X))
    assert fitted.transform(X).shape == (120, 128)
    assert fitted.get_feature_names_out()[0] == "graphmsdaclassifier0"


def test_rows_of_a_source_are_read_as_its_own(fitted: GraphMSDAClassifier) -> None:
    X, _, domain = data()
    run: Run = fitted.run_
    both = fitted.transform(X, domain)
    for number, source in enumerate((1, 2, -2)):
        rows = domain == source
        with torch.no_grad():
            own = run.method.embed(torch.tensor(X[rows], dtype=torch.float32), number)
        assert np.allclose(both[rows], own)
    assert np.allclose(fitted.transform(X[domain == 1], 1), both[domain == 1])
    assert not np.allclose(fitted.transform(X[domain == 1]), both[domain == 1])
    with pytest.raises(ValueError, match=r"source 7 was not there .* it knows 1, 2"):
        fitted.predict(X, np.full(len(X), 7))


def test_domain_posterior_is_eq_18_over_classes(fitted: GraphMSDAClassifier) -> None:
    X, _, domain = data()
    X = X[domain < 0][:6]
    found = fitted.predict_domain_proba(X)
    method: Any = fitted.run_.method
    prototypes, scale = method.prototypes.detach().numpy(), float(method.temperature())
    for row, query in zip(found, fitted.transform(X), strict=True):
        likelihood = np.array(
            [[np.exp(-((query - prototype) ** 2).sum() / scale) for prototype in own] for own in prototypes]
        )
        assert np.allclose(row, likelihood.sum(1) / likelihood.sum(), atol=1e-6)
    assert found.shape == (6, len(fitted.domains_))
    assert not hasattr(GraphMSDAClassifier("source-only"), "predict_domain_proba")
    with pytest.raises(AttributeError, match="predict_domain_proba"):
        GraphMSDAClassifier("crf").predict_domain_proba(X)


def test_target_labels_are_never_looked_at() -> None:
    X, y, domain = data()
    masked = np.where(domain < 0, -1, y)
    first = quick().fit(X, masked, domain).predict_proba(X)
    for hidden in (np.where(domain < 0, 77, y), np.where(domain < 0, np.nan, y.astype(float)), y):
        model = quick().fit(X, hidden, domain)
        assert np.array_equal(model.predict_proba(X), first)
        assert model.classes_.tolist() == [0, 1, 2]
    named = np.array(["ant", "bee", "cat"], dtype=object)[y]
    named[domain < 0] = None
    model = quick().fit(X, named, domain)
    assert np.array_equal(model.predict_proba(X), first)
    assert set(model.predict(X)) <= {"ant", "bee", "cat"}


def test_masked_labels_tell_the_target_where_no_domain_is_given() -> None:
    X, y, domain = data(sources=1)
    masked = np.where(domain < 0, -1, y)
    inferred, told = quick().fit(X, masked), quick().fit(X, masked, np.where(domain < 0, -1, 0))
    assert np.array_equal(inferred.predict_proba(X), told.predict_proba(X))
    two = quick().fit(X, np.where(y == 0, -1, 1))  # -1 is a class where nothing else is left to tell apart
    assert two.classes_.tolist() == [-1, 1]


def test_sources_and_target_apart_are_the_same() -> None:
    X, y, domain = data()
    named = np.array(["ant", "bee", "cat"])[y]
    together = quick().fit(X, named, np.where(domain < 0, -1, domain - 1))
    parts = [(X[domain == source].tolist(), named[domain == source].tolist()) for source in (1, 2)]
    apart = quick().fit(sources=parts, target=X[domain < 0])
    assert np.array_equal(apart.predict_proba(X), together.predict_proba(X))
    assert apart.classes_.tolist() == ["ant", "bee", "cat"]
    assert apart.source_domains_.tolist() == [0, 1]


def test_several_targets_are_one() -> None:
    X, y, domain = data()
    split = np.where((domain < 0) & (np.arange(len(X)) % 2 == 0), -5, domain)
    assert np.array_equal(quick().fit(X, y, split).predict(X), quick().fit(X, y, domain).predict(X))


def test_images_of_any_layout() -> None:
    X, y, domain = pictures()
    model = quick("adabn").fit(X, y, domain)
    assert not hasattr(model, "n_features_in_")
    expected = model.predict_proba(X)
    assert model.score(X[domain < 0], y[domain < 0]) > 0.8
    for same in (X.transpose(0, 3, 1, 2), X / 255, (X / 255).transpose(0, 3, 1, 2).astype(np.float32), X.astype(int)):
        assert np.allclose(quick("adabn").fit(same, y, domain).predict_proba(same), expected)
        assert np.allclose(model.predict_proba(same), expected)
    grey = quick("adabn").fit(X[..., 0], y, domain)
    assert grey.predict(X[..., 0]).shape == y.shape
    with pytest.raises(ValueError, match=r"found images \[3, 10, 12\]; this estimator was fitted on .*\[3, 12, 12\]"):
        model.predict(X[:, :10])
    with pytest.raises(ValueError, match="fitted on images"):
        model.predict(X.reshape(len(X), -1))
    again = model.fit(X.reshape(len(X), -1), y, domain)  # the same object on other data
    assert again.n_features_in_ == 432


X0, Y0, D0 = data()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (lambda: quick().fit(X0, Y0, D0[:-1]), "sample_domain: found 119 values for 120 samples"),
        (lambda: quick().fit(X0, Y0[:-1], D0), "y: found 119 values for 120 samples"),
        (lambda: quick().fit(X0, Y0, np.abs(D0)), "no row is below 0, so there is no target"),
        (lambda: quick().fit(X0, Y0, -np.abs(D0)), "all rows are below 0, so no source has labels"),
        (lambda: quick().fit(X0, Y0, D0 + 0.5), "give one whole number for each row"),
        (lambda: quick().fit(X0, np.zeros(120, int), D0), "sources have one class only"),
        (lambda: quick().fit(X0, None, D0), "requires y to be passed"),
        (lambda: quick().fit(X0, np.array(["a", None] * 60, dtype=object), D0), "of several types"),
        (lambda: quick().fit(X0, np.array(["a", 3] * 60, dtype=object), D0), "several types"),
        (lambda: quick().fit(X0, np.where(D0 > 0, np.nan, 1.0), D0), "y contains NaN"),
        (lambda: quick().fit(X0, X0[:, 0], D0), "Unknown label type"),
        (lambda: quick().fit(), "no samples were given; give X, y and sample_domain, or sources and target"),
        (lambda: quick().fit(X0, Y0, sources=[(X0, Y0)], target=X0), "give one or the other"),
        (lambda: quick().fit(sources=[], target=X0), r"give sources=\[\(X1, y1\)"),
        (lambda: quick().fit(sources=[(X0, Y0)]), "and target=Xt"),
        (lambda: quick().fit(sources=[(X0, Y0), (X0[:, 1:], Y0)], target=X0), r"sources\[1\]: samples are of shape"),
        (lambda: quick().fit(sources=[(X0, Y0[1:])], target=X0), r"sources\[0\]: found 119 values for 120 samples"),
        (lambda: quick().fit(X0[:, :, None, None], Y0, D0), "images hold values from .* floating-point values from 0"),
        (lambda: quick(epochs="many").fit(X0, Y0, D0), "epochs: found 'many'; give a whole number from 1, or 'auto'"),
        (lambda: quick(epochs=0).fit(X0, Y0, D0), "epochs 0: out of range"),
        (lambda: quick(settings={"epochs": 3}).fit(X0, Y0, D0), "settings: unknown name 'epochs'; there are"),
        (lambda: quick(settings={"rate": 1}).fit(X0, Y0, D0), "settings: unknown name 'rate'; there are"),
        (lambda: quick("mrff").fit(X0, Y0, D0), "unknown method 'mrff'; did you mean mrf"),
        (lambda: quick(params={"tua": 1.0}).fit(X0, Y0, D0), "has no hyper-parameter 'tua'; did you mean tau"),
        (lambda: quick(backbone="small").fit(X0, Y0, D0), "does not read feature vectors"),
        (lambda: quick("adabn", epochs=1).fit(X0, Y0, D0).score(X0, np.full(120, -1)), "every label is masked"),
    ],
)
def test_mistakes_are_told_in_one_sentence(given: Any, expected: str) -> None:
    with pytest.raises((UserError, ValueError), match=expected) as caught:
        given()
    assert "\n" not in str(caught.value)


def test_score_leaves_masked_rows_out(fitted: GraphMSDAClassifier) -> None:
    X, y, domain = data()
    masked = np.where(domain < 0, -1, y)
    sources = domain > 0
    assert fitted.score(X, masked) == fitted.score(X[sources], y[sources])
    weight = np.arange(len(X)) % 2
    expected = fitted.score(X[weight == 1], y[weight == 1])
    assert fitted.score(X, y, sample_weight=weight) == pytest.approx(expected)


def test_epochs_settings_and_seeds() -> None:
    X, y, domain = data()
    model = GraphMSDAClassifier("adabn", params={}, settings={"batch_size": 8}, random_state=3).fit(X, y, domain)
    chosen = model.run_.about["settings"]
    assert chosen["batch_size"] == 8
    assert chosen["seed"] == 3
    assert chosen["accelerate"] == "off"
    assert chosen["epochs"] * chosen["steps_per_epoch"] >= 200  # forty rows in batches of eight
    assert chosen["epochs"] == 40
    generator = np.random.RandomState(0)
    first, second = (quick("adabn", epochs=1, random_state=generator).fit(X, y, domain) for _ in range(2))
    assert not np.array_equal(first.predict_proba(X), second.predict_proba(X))
    np.random.seed(0)
    third = quick("adabn", epochs=1, random_state=None).fit(X, y, domain)
    assert np.array_equal(third.predict_proba(X), first.predict_proba(X))


def test_quiet_and_leaves_the_process_as_it_was(capfd: pytest.CaptureFixture[str]) -> None:
    X, y, domain = data()
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    quick("adabn").fit(X, y, domain).predict(X)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert capfd.readouterr() == ("", "")
    quick("adabn", verbose=True).fit(X, y, domain)
    assert "adabn -> target" in capfd.readouterr().err


def test_clone_and_parameters(fitted: GraphMSDAClassifier) -> None:
    model = quick(params={"tau": 0.3})
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.set_params(method="crf", params={"sigma": 2.0}).params == {"sigma": 2.0}
    with pytest.raises(NotFittedError):
        clone(fitted).predict(X0)


@pytest.mark.parametrize("routed", [False, True])
def test_grid_search(routed: bool) -> None:
    X, y, domain = data()
    masked = np.where(domain < 0, -1, y)
    grid = {"params": [{"tau": 0.2}, {"tau": 1e-9}], "method": ["mrf"]}
    with sklearn.config_context(enable_metadata_routing=routed):
        split = ShuffleSplit(1, test_size=0.3, random_state=0)
        search = GridSearchCV(quick(), grid, cv=split, error_score="raise").fit(X, masked, sample_domain=domain)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_params_["params"] in grid["params"]
    assert search.predict(X).shape == y.shape


def test_metadata_routing_through_a_pipeline() -> None:
    X, y, domain = data()
    named = pd.DataFrame(X, columns=[f"f{number}" for number in range(5)])
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), quick())
        pipeline.fit(named, y, sample_domain=domain)
        assert pipeline[-1].feature_names_in_.tolist() == list(named.columns)
        assert pipeline[-1].source_domains_.tolist() == [1, 2]
        own = pipeline.predict_proba(named, sample_domain=domain)
        assert not np.array_equal(own, pipeline.predict_proba(named))
        scores = cross_val_score(
            quick(), X, y, params={"sample_domain": domain}, cv=ShuffleSplit(2, random_state=0), error_score="raise"
        )
    assert scores.shape == (2,)
    embedded = pipeline[-1].set_output(transform="pandas").transform(pipeline[0].transform(named))
    assert list(embedded.columns[:2]) == ["graphmsdaclassifier0", "graphmsdaclassifier1"]


def test_jobs_in_threads_and_processes_agree() -> None:
    X, y, domain = data(size=20)
    models = [quick(random_state=seed, epochs=3) for seed in range(4)]
    alone = [model.fit(X, y, domain).predict_proba(X) for model in map(clone, models)]
    fits = (delayed(model.fit)(X, y, domain) for model in map(clone, models))
    beside = Parallel(4, backend="threading")(fits)
    for one, other in zip(alone, beside, strict=True):
        assert np.array_equal(one, other.predict_proba(X))
    again = Parallel(4, backend="threading")(delayed(beside[0].predict_proba)(X[: 10 * (n % 5 + 1)]) for n in range(20))
    assert all(np.allclose(found, alone[0][: len(found)]) for found in again)


@pytest.mark.slow
def test_jobs_in_processes_agree() -> None:
    X, y, domain = data()
    alone, beside = (
        cross_val_score(quick(), X, y, params={"sample_domain": domain}, cv=4, n_jobs=jobs, error_score="raise")
        for jobs in (1, 2)
    )
    assert np.array_equal(alone, beside)


# --- skada ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def skada() -> Iterator[Any]:
    module = pytest.importorskip("skada", reason="pip install 'skada>=0.6'")
    with sklearn.config_context(enable_metadata_routing=True):
        yield module


def test_skada_pipeline(skada: Any) -> None:
    X, y, domain = data()
    masked, target = np.where(domain < 0, -1, y), domain < 0
    pipeline = skada.make_da_pipeline(StandardScaler(), quick(epochs=15))
    pipeline.fit(X, masked.copy(), sample_domain=domain)
    assert pipeline.score(X[target], y[target]) > 0.9
    inner = pipeline[-1].get_estimator()
    assert inner.source_domains_.tolist() == [1, 2]
    own = pipeline.predict_proba(X, sample_domain=domain, allow_source=True)
    assert np.allclose(own, inner.predict_proba(pipeline[0].transform(X), domain))
    adapted = skada.make_da_pipeline(skada.CORALAdapter(), quick()).fit(X, masked.copy(), sample_domain=domain)
    assert adapted.predict(X[target]).shape == (40,)
    embedded = skada.make_da_pipeline(quick(), LogisticRegression()).fit(X, masked.copy(), sample_domain=domain)
    assert embedded.score(X[target], y[target]) > 0.8


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("SupervisedScorer", True),
        ("ImportanceWeightedScorer", True),
        ("PredictionEntropyScorer", True),
        ("SoftNeighborhoodDensity", True),
        ("CircularValidation", True),
        ("MixValScorer", True),
        ("DeepEmbeddedValidation", False),  # takes whatever is no pipeline for a network of skorch
        ("MaNoScorer", False),  # the same
    ],
)
def test_skada_scorers(skada: Any, name: str, bare: bool) -> None:
    from skada import metrics
    from skada.model_selection import SourceTargetShuffleSplit

    X, y, domain = data()
    masked = np.where(domain < 0, -1, y)
    more = {"target_labels": y} if name == "SupervisedScorer" else {}
    model = quick("adabn", epochs=3)
    for estimator in (skada.make_da_pipeline(StandardScaler(), model), *([model] if bare else [])):
        scores = cross_val_score(
            estimator,
            X,
            masked.copy(),
            params={"sample_domain": domain, **more},
            cv=SourceTargetShuffleSplit(n_splits=1, test_size=0.3, random_state=0),
            scoring=getattr(metrics, name)(),
            error_score="raise",
        )
        assert np.isfinite(scores).all()


@pytest.mark.slow
def test_comparison_runs(skada: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import skada_comparison

    monkeypatch.setattr(skada_comparison, "OURS", ("adabn",))
    monkeypatch.setattr(skada_comparison, "EPOCHS", 1)
    monkeypatch.setattr(skada_comparison, "GraphMSDAClassifier", partial(GraphMSDAClassifier, epochs=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = {row["what"]: row for row in skada_comparison.measure(skada_comparison.clouds, 1, 1)}
    assert {"skada CORAL", "skada logistic regression", "graphmsda adabn"} <= set(rows)
    assert all(row["accuracy"] > 0.3 and row["seconds"] > 0 for row in rows.values())
    parts = list(skada_comparison.digits(0))
    assert sum(len(y) for _, y in parts) == 1797
    assert all(X.shape == (len(y), 64) and np.isfinite(X).all() and set(y) == set(range(10)) for X, y in parts)


# --- files ------------------------------------------------------------------------------------------------------------


def test_pickle_holds_no_code_but_the_estimators_name(fitted: GraphMSDAClassifier) -> None:
    X, _, domain = data()
    content = pickle.dumps(fitted)
    strings: list[str] = []
    modules = set()
    for opcode, argument, _ in pickletools.genops(io.BytesIO(content)):
        if opcode.name == "STACK_GLOBAL":
            modules.add(strings[-2].partition(".")[0])
        if isinstance(argument, str):
            strings.append(argument)
    assert "graphmsda" in modules
    assert not modules & {"torch", "collections", "safetensors"}
    again = pickle.loads(content)
    assert np.array_equal(again.predict_proba(X, domain), fitted.predict_proba(X, domain))
    assert again.history_ == fitted.history_
    assert pickle.loads(pickle.dumps(quick())).get_params() == quick().get_params()


@pytest.mark.parametrize(
    "names", [np.array([7, 3, 20]), np.array(["ant", "bee", "chat noir é"]), np.array([0.0, 1.0, 2.0]),
              np.array(["x", "yy", "z"], dtype=object), np.array([True, False, True])]
)  # fmt: skip
def test_save_and_load(tmp_path: Path, names: Array, capsys: pytest.CaptureFixture[str]) -> None:
    X, y, domain = data(size=12)
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = quick(epochs=2, params={"tau": np.float64(0.3)}, random_state=np.int64(4)).fit(frame, names[y], domain)
    model.save(tmp_path / "model")
    again = GraphMSDAClassifier.load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(frame, domain), model.predict_proba(frame, domain))
    assert again.predict(frame).dtype == model.predict(frame).dtype
    assert np.array_equal(again.predict(frame), model.predict(frame))
    assert again.get_params() == model.get_params()
    assert again.feature_names_in_.tolist() == list("abcde")
    assert again.n_features_in_ == 5
    again.save(tmp_path / "model")  # over itself
    assert {file.suffix for file in (tmp_path / "model").iterdir()} == {".yaml", ".json", ".jsonl", ".safetensors"}
    np.savez(tmp_path / "new.npz", x=X)
    assert main(["predict", str(tmp_path / "model"), str(tmp_path / "new.npz")]) == 0
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[1] for row in rows] == [str(label) for label in model.predict(frame)]


def test_load_a_run_of_the_command_line(tmp_path: Path) -> None:
    task = feature_task()
    run = fit(task, "mrf", out=tmp_path / "run", **QUICK)
    model = GraphMSDAClassifier.load(tmp_path / "run")
    x = np.asarray(task.target.x[:])
    assert np.allclose(model.predict_proba(x), run.predict(x).probabilities, atol=1e-6)
    assert model.predict(x).tolist() == run.predict(x).labels
    assert model.epochs == QUICK["epochs"]
    with pytest.raises(UserError, match="no saved estimator; choose another folder"):
        model.save(tmp_path / "run")


def test_what_cannot_be_saved_or_loaded(tmp_path: Path, fitted: GraphMSDAClassifier) -> None:
    with pytest.raises(NotFittedError):
        quick().save(tmp_path / "none")
    place = tmp_path / "model"
    fitted.save(place)
    about = json.loads((place / "estimator.json").read_text())
    damaged: list[Any] = [
        about | {"format": 2},
        about | {"classes": {"dtype": "V8", "values": [0, 1, 2]}},
        about | {"classes": {"dtype": "<i8", "values": [0, 1]}},
        about | {"arguments": {"colour": "red"}},
        {"format": 1},
        [],
    ]
    for content in damaged:
        (place / "estimator.json").write_text(json.dumps(content))
        with pytest.raises(UserError, match=r"save (the estimator|it) anew"):
            GraphMSDAClassifier.load(place)
    (place / "estimator.json").write_text("{")
    with pytest.raises(UserError, match="is damaged"):
        GraphMSDAClassifier.load(place)
    odd = clone(fitted).set_params(settings={"lr": {1, 2}})
    odd.__dict__ |= {name: value for name, value in vars(fitted).items() if name.endswith("_") or name[0] == "_"}
    with pytest.raises(ValueError, match="is not plain data"):
        odd.save(tmp_path / "odd")
    generator = clone(fitted).set_params(random_state=np.random.RandomState(0))
    generator.__dict__ |= {name: value for name, value in vars(fitted).items() if name.endswith("_") or name[0] == "_"}
    generator.save(tmp_path / "generator")
    assert GraphMSDAClassifier.load(tmp_path / "generator").random_state is None


# --- the package ------------------------------------------------------------------------------------------------------


def test_importing_graphmsda_does_not_import_scikit_learn() -> None:
    code = "import sys, graphmsda; assert 'sklearn' not in sys.modules; graphmsda.GraphMSDAClassifier"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "GraphMSDAClassifier" in graphmsda.__all__
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = graphmsda.Nothing


@pytest.mark.skipif("identity" not in BACKBONES, reason="there is no identity backbone")
def test_identity_backbone_keeps_features() -> None:
    X, y, domain = data()
    model = quick(backbone="identity", epochs=15).fit(X, y, domain)
    assert model.transform(X).shape == X.shape
    assert model.score(X[domain < 0], y[domain < 0]) > 0.8


def test_page_runs(skada: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    found = blocks("docs/sklearn.md", "python")
    assert len(found) == 4
    for code in found:
        exec(compile(code, "docs/sklearn.md", "exec"), names)
    assert names["model"].score(names["target"], names["y"][100:]) > 0.9
    assert names["again"].predict(names["X"]).tolist() == names["model"].predict(names["X"]).tolist()
