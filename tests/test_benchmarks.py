"""The benchmarks' own parts: that the yardstick is what it claims to be, and that sections run at a small size."""

from __future__ import annotations

import dataclasses
import doctest
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphmsda.backbones import three_conv_two_fc
from graphmsda.domains import Batch, Labelled
from graphmsda.methods import Method
from tests.test_readme import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import alive
import growth
import kernels
import processor
import record
import runs
import speed_tables
import steps
import textbook

CLASSES, SOURCES, FEATURES = 3, 2, 6
TINY = steps.Options(batch=4, turns=1, seconds=0.0)


def given(batch: int = 9) -> Batch:
    """Embeddings of two sources and a target."""
    generator = torch.Generator().manual_seed(3)
    sources = [Labelled(torch.randn(batch, FEATURES, generator=generator), torch.arange(batch) % CLASSES)] * SOURCES
    target = torch.randn(batch, FEATURES, generator=generator)
    return Batch(tuple(sources), target, torch.tensor(0.5), torch.tensor(1))


def ours(name: str, **parameters: Any) -> Method:
    method = growth.graph_alone(name, CLASSES, SOURCES + 1, FEATURES, **parameters)
    method.backbone.mixed = None  # the textbook's is float32
    for other in ("seen", "prototypes", "edge_prototypes"):
        if getattr(method, other, None) is not None:
            getattr(method, other).data.copy_(torch.ones(()) if other == "seen" else places())
    return method


def places() -> Tensor:
    return torch.randn(SOURCES + 1, CLASSES, FEATURES, generator=torch.Generator().manual_seed(5))


def terms_of(method: Method, batch: Batch) -> dict[str, Tensor]:
    (phase,) = method.phases(batch)
    return dict(phase.terms)


def both(name: str, theirs: nn.Module, method: Method) -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    batch = given()
    with torch.no_grad():
        for name_of_places in ("prototypes", "edge_prototypes"):
            if hasattr(theirs, name_of_places):
                getattr(theirs, name_of_places).copy_(places())
        x = [*(part.x for part in batch.sources), *([batch.target] if name != "source-only" else [])]
        return [(theirs.losses(x, [part.y for part in batch.sources]), terms_of(method, batch))]  # type: ignore[operator]


def test_textbook_source_only_is_ours() -> None:
    method, theirs = ours("source-only"), textbook.SourceOnly(CLASSES, SOURCES + 1, FEATURES)
    theirs.head.load_state_dict(method.head.state_dict())  # type: ignore[union-attr]
    for a, b in both("source-only", theirs, method):
        assert a.keys() == b.keys()
        torch.testing.assert_close(a["source"], b["source"])


def test_textbook_mrf_is_ours() -> None:
    # Which wrong edges are drawn is chance, so none are; and the paper knows no balance.
    method = ours("mrf", wrong_edges=0, balance_weight=0.0)
    for a, b in both("mrf", textbook.MRF(CLASSES, SOURCES + 1, FEATURES, wrong_edges=0), method):
        assert a.keys() == b.keys()
        for name in a:
            torch.testing.assert_close(a[name], b[name], msg=lambda text, name=name: f"{name}: {text}")


def test_textbook_crf_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without normalisation ours is the exact graph of n + 1 nodes; eq. 7 is taken on the prototypes' own graph.
    monkeypatch.setattr(textbook, "normalised", lambda adjacency: adjacency)
    method = ours("crf", normalise="none", dropout=0.0, sigma=1.0)
    theirs = textbook.CRF(CLASSES, SOURCES + 1, FEATURES, dropout=0.0, sigma=1.0)
    layers = (theirs.one, method.convolution_1), (theirs.two, method.convolution_2), (theirs.head, method.classifier)
    for one, other in layers:
        one.load_state_dict(other.state_dict())  # type: ignore[union-attr]
    for a, b in both("crf", theirs, method):
        assert a.keys() == b.keys()
        for name in a.keys() - {"prototype"}:
            torch.testing.assert_close(a[name], b[name], msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("method", textbook.METHODS)
def test_textbook_step_trains(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[nn.Module] = []

    def narrow(shape: Any, dropout: float) -> tuple[nn.Module, int]:
        made.append(nn.Sequential(nn.Flatten(), nn.Linear(192, FEATURES), nn.BatchNorm1d(FEATURES)))
        return made[0], FEATURES

    monkeypatch.setattr(textbook, "three_conv_two_fc", narrow)
    step = textbook.textbook_step(method, steps.noise_task(2, 8, side=8), 4, torch.device("cpu"), loading=True)
    before = [p.detach().clone() for p in made[0].parameters()]
    for _ in range(3):  # passes the end of an epoch
        step()
    after = list(made[0].parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(bool(p.isfinite().all()) for p in after)


def test_textbook_network_is_ours() -> None:
    """Both train the same number of parameters."""
    training = steps.new_training(steps.noise_task(2, 4, side=8), "source-only", "eager", batch_size=2)
    network, _ = three_conv_two_fc((3, 8, 8), 0.5)
    sizes = [p.shape for p in training.method.backbone.parameters()]
    assert sizes == [p.shape for p in network.parameters()]


def test_engine_step_is_the_engines() -> None:
    training = steps.new_training(steps.noise_task(2, 8, side=8), "mrf", "eager", batch_size=4, backbone="small")
    step = steps.stepper(training)
    before = training.method.prototypes.detach().clone()  # type: ignore[operator]
    step()
    step()
    assert training.step == 2
    assert not torch.equal(before, training.method.prototypes)  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["bf16", "32"])
def test_step_on_a_cpu_in_each_form(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "CUDA", False)
    monkeypatch.setattr(processor, "SHAPES", {"small": (8, 3, 3, 2)})
    monkeypatch.setattr(processor, "usual_precision", lambda *_, **__: precision)
    rows = list(processor.measure_cpu(dataclasses.replace(TINY, methods=("mrf",))))
    (row,) = rows
    forms = list(processor.FORMS) if precision == "bf16" else ["float32, memory returned", "float32"]
    assert list(row["ms"]) == forms
    assert list(row["pages"]) == forms
    assert row["images"] == 6
    assert row["ratio"] == row["seconds"][forms[0]][0] / row["seconds"][forms[-1]][0]


def test_growth_of_a_series() -> None:
    shape = {"classes": 3, "sources": 2, "batch": 4, "features": 8}
    for method in ("crf", "mrf"):
        make = lambda m=method, **kind: growth.graph_step(m, **kind)  # noqa: E731
        row = growth.series(method, "batch", (2, 4, 8), shape, make, TINY)
        assert len(row["seconds"]) == 3
        assert row["exponent"] is not None
        assert "batch (3 classes, 2 sources, 8 features)" in row["what"]
    row = growth.series("eq. 13", "sources", (1, 2, 3), {"classes": 3, "sources": 1}, growth.alignment_step, TINY)
    assert row["axis"] == "sources"


def test_exponent_needs_three_points() -> None:
    assert growth.exponent([1, 2, 4], [1.0, 8.0, 64.0]) == 3.0
    assert growth.exponent([1, 2, 4], [None, None, None]) is None


@pytest.mark.parametrize("module", [growth, kernels, record, speed_tables])
def test_examples(module: Any) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_accuracy_of_a_run(tmp_path: Path) -> None:
    accuracy, took = runs.accuracy_of("demo:neon", "mrf", 0, {"steps_per_epoch": 2}, 1, str(tmp_path / "run"))
    assert 0 <= accuracy <= 1
    assert took > 0


def test_kernels_are_added_up_and_grouped() -> None:
    names = ["void at::native::FusedAdam", "void at::native::FusedAdam", "sm90_xmma_fprop_implicit_gemm", "Memcpy DtoD"]
    events = [{"cat": "kernel", "name": name, "dur": 3.0} for name in names] + [{"cat": "cpu_op", "name": "x"}]
    found = kernels.summarise(events, steps=2)
    assert found[0] == ("FusedAdam", 3.0, 1.0)
    told = kernels.described(found)
    assert told["kernels a step"] == 2
    assert told["groups"]["optimiser and combined"] == 3.0
    assert told["groups"]["convolution"] == told["groups"]["copies"] == 1.5
    assert kernels.group("_sum_over_prototypes") == kernels.REST
    assert kernels.group("triton_poi_fused__to_copy_4") == "copies"


def entry(section: str, hardware: str, value: float, what: str = "a", commit: str = "abc") -> dict[str, Any]:
    made = {"section": section, "hardware": hardware, "command": f"measure {what}", "commit": commit, "torch": "2"}
    return {**made, "rows": [{"what": what, "ratio": value}]}


def test_results_of_a_section_replace_only_themselves(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    record.merge(file, [entry("steps", "gpu", 1.0), entry("steps", "cpu", 2.0), entry("price", "gpu", 3.0)])
    record.merge(file, [entry("steps", "gpu", 4.0)])
    found = {(run["section"], run["hardware"]): run["rows"][0]["ratio"] for run in record.read(file)}
    assert found == {("steps", "gpu"): 4.0, ("steps", "cpu"): 2.0, ("price", "gpu"): 3.0}


def test_rows_of_one_commit_come_together(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    record.merge(file, [entry("accuracy", "gpu", 1.0, "crf"), entry("accuracy", "gpu", 2.0, "mrf")])
    record.merge(file, [entry("accuracy", "gpu", 3.0, "crf")])
    (run,) = record.read(file)
    assert {row["what"]: row["ratio"] for row in run["rows"]} == {"mrf": 2.0, "crf": 3.0}
    assert run["command"] == "measure crf; measure mrf"
    record.merge(file, [entry("accuracy", "gpu", 4.0, "crf", commit="def")])
    (run,) = record.read(file)
    assert [row["ratio"] for row in run["rows"]] == [4.0]


def test_a_failing_section_leaves_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def bad() -> Any:
        yield {"what": "first", "ratio": 0.123456}
        raise RuntimeError("broken")

    out = tmp_path / "speed.json"
    options = record.parser_of(None, {"bad": 0, "good": 0}).parse_args(["--out", str(out), "--commit", "abc"])
    good = lambda: iter([{"what": "second", "seconds": 0.002}])  # noqa: E731
    assert record.run_and_merge("make", options, {"bad": bad, "good": good}) == 1
    rows = {run["section"]: run["rows"] for run in json.loads(out.read_text())["runs"]}
    assert rows["bad"] == [{"what": "first", "ratio": 0.1235}]
    assert "second: 2.00 ms" in capsys.readouterr().out


def results() -> list[dict[str, Any]]:
    """What each section writes, with made-up numbers."""
    made = {"command": "python benchmarks/speed.py", "commit": "abc", "hardware": "x86_64, 2 cores", "torch": "2"}
    rows: dict[str, list[dict[str, Any]]] = {
        "steps": [
            {"method": "crf", "batch": 8, "ms": {"eager": 2.0, "textbook": 4.0}, "ratio": 2.0,
             "textbook, one batch / engine": 1.5, **kernels.described([("nvjet", 3.0, 1.0), ("triton_poi", 1.0, 2.0)])}
        ],
        "price": [{"method": "mrf", "batch": 8, "ms": {"plain": 1.0, "mrf": 1.04}, "ratio": 1.04}],
        "run": [{"method": "mrf", "steps": 19_500, "cold": {"seconds": 60.0, "accuracy": 0.8},
                 "warm": {"seconds": 30.0, "accuracy": 0.8}}],
        "resnet": [{"method": "mrf", "batch": 16, "images a second": {"mrf": 90.0, "bare": 100.0}, "ratio": 0.9}],
        "inference": [{"method": "crf", "side": 32, "images a second": {"predict": 95.0, "bare": 100.0},
                       "fastest": "bare", "ratio": 0.95}],
        "cpu": [{"method": "mrf", "backbone": "small", "images": 8, "ms": {"float32": 4.0, "bfloat16": 2.0},
                 "pages": {"float32": 1234, "bfloat16": 0}, "ratio": 2.0}],
        "growth": [
            {"of": of, "axis": axis, "what": "growth", "values": [1, 2, 4], "seconds": [0.1, 0.2, 0.4],
             "bytes": [2**20, 2**30, 2**31], "exponent": 1.0, "exponent of memory": 5.0}
            for of in ("crf", "mrf") for axis in ("classes", "sources", "batch", "features")
        ] + [{"what": "DomainNet", "seconds": 0.02, "bytes": None}],
        "accuracy": [{"method": "mrf", "task": "demo", "runs": ["a", "b"], "difference": 0.001,
                      "means": {"accelerated": 0.801, "eager float32": 0.8}, "standard error": 0.002}],
        "together": [{"runs": 2, "steps a second": [900.0, 1000.0, 1100.0], "ratio": 1.2}],
    }  # fmt: skip
    return [{"section": name, **made, "rows": some} for name, some in rows.items()]


def test_tables_of_all_sections() -> None:
    found = speed_tables.tables(results())
    assert "| `mrf`, 8 of each domain | 1 | 1.04 | 1.040 |" in found["price"]
    assert "| 2 | 1,000 | 1.20 |" in found["together"]
    assert "| `mrf` on demo, 2 runs | 80.10 | 80.00 | +0.10 | 0.20 |" in found["accuracy"]
    assert "| `mrf`, small, 8 images | 4 | 2 | 2 × | 1,234, 0 |" in found["cpu"]
    assert "| DomainNet | 20 |  | – |  |" in found["growth"]
    assert all("commit abc" in text for text in found.values())
    assert "Not measured yet" in speed_tables.tables([])["steps"]


def test_page_has_a_place_for_each_table() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    once = speed_tables.fill(page, speed_tables.tables(results()))
    for name, text in speed_tables.tables(results()).items():
        assert once.count(f"<!-- table:{name} -->\n{text}\n<!-- /table:{name} -->") == 1
    assert speed_tables.fill(once, speed_tables.tables(results())) == once


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("agg")
    import plot_speed

    for name, draw in (("growth", plot_speed.draw_growth), ("steps", plot_speed.draw_step)):
        run = plot_speed.pictured(results(), name)
        assert run is not None
        draw(run, tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


def test_alive_tells_silent_terms(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--method", "mrf", "--backbone", "small", "--epochs", "1", "--set", "likelihood=verbatim"]
    assert alive.main(words) == 0
    head, _, row = capsys.readouterr().out.splitlines()
    cells = dict(zip(*([cell.strip() for cell in line.split("|")[1:-1]] for line in (head, row)), strict=True))
    assert cells["likelihood"] == "0, pulls 0"
    assert float(cells["source"].split()[-1]) > 0.1


def test_alive_tells_a_mistake_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert alive.main(["--method", "crf", "--set", "sigma=-1", "--task", "demo:nowhere"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
