"""`graphmsda figure` as it is typed, on runs that have trained for two steps."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from graphmsda.cli import main
from tests.test_cli import CLASSES, make_domain

QUICK = ["--epochs", "2", "--steps-per-epoch", "1", "--batch-size", "6", "--device", "cpu", "--backbone", "small"]
BEGINS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on the demo, and one on folders of images."""
    place = tmp_path_factory.mktemp("runs")
    for method in ("source-only", "crf", "mrf"):
        assert main(["fit", "--task", "demo:neon", "--method", method, "--out", str(place / method), *QUICK]) == 0
    for number, name in enumerate(("shop", "studio", "phone")):
        make_domain(place / name, 20 + 60 * number, count=6, seed=number)
    sources, target = [str(place / "shop"), str(place / "studio")], str(place / "phone")
    own = ["fit", "--sources", *sources, "--target", target, "--method", "mrf", "--image-size", "32"]
    assert main([*own, "--out", str(place / "own"), *QUICK]) == 0
    return place


COMMANDS = {
    "adjacency crf": "svg",
    "posterior mrf --classes 1 5": "pdf",
    "embedding source-only mrf --domains plain neon --count 20": "png",
    "curves source-only crf mrf": "pdf",
    "embedding own --count 12 --labels mine": "svg",
    "posterior own --data phone --classes cat": "png",
}


@pytest.mark.parametrize("typed", COMMANDS)
def test_each_figure_is_drawn(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], typed: str) -> None:
    kind, *words = typed.split()
    out = tmp_path / f"figure.{COMMANDS[typed]}"
    words = [str(runs / word) if (runs / word).exists() else word for word in words]
    assert main(["figure", kind, *words, "--out", str(out)]) == 0, capsys.readouterr().err
    assert out.read_bytes().startswith(BEGINS[COMMANDS[typed]])
    assert f"{out}: " in capsys.readouterr().out


MISTAKES = {
    "adjacency mrf --out a.png": "is a run of mrf, which has no adjacency matrix",
    "adjacency nothing --out a.png": "nothing: there is no such folder",
    "adjacency crf --out a.gif": "--out a.gif: its ending '.gif' is no kind of figure",
    "adjacency crf --out a.png --width 0": "--width 0: out of range",
    "adjacency crf --out a.png --dpi 1": "--dpi 1: out of range",
    "curves mrf --out a.png --width 1": "--width: there is no room for all panels",
    "posterior crf --out a.png": "is a run of crf, which has no joint posterior",
    "posterior mrf --classes ten --out a.png": "--classes ten: the run",
    "posterior own --out a.png": "give --data PATH with labelled samples",
    "posterior mrf --format csv --out a.png": "--format was given without --data; leave it out",
    "posterior own --data phone --variant b --out a.png": "--variant was given with --data",
    "embedding mrf --root phone --out a.png": "--root was given without --data; leave it out",
    "embedding mrf own --out a.png": "give runs of one task",
    "embedding mrf --domains moon --out a.png": "--domains moon: there is no such domain; choose from plain",
    "embedding mrf --count 0 --out a.png": "--count 0: out of range",
    "embedding mrf --count 2 --out a.png": "t-SNE needs 5: raise --count",
    "curves mrf --terms loss --out a.png": "--terms loss: the runs have no such column",
    "curves mrf --labels a b --out a.png": "--labels: 2 were given for 1 runs",
    "sensitivity mrf --out a.png": "holds no finished run of a study",
    "pie mrf --out a.png": "invalid choice: 'pie'",
    "curves mrf": "the following arguments are required: --out",
}


@pytest.mark.parametrize("typed", MISTAKES)
def test_mistakes_are_one_sentence(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [str(runs / word) if (runs / word).is_dir() else word for word in typed.split()]
    assert main(["figure", *words]) == 2
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith("graphmsda: ")
    assert MISTAKES[typed] in told
    assert not list(tmp_path.iterdir())


def test_an_unfinished_run_is_refused(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs / "crf", tmp_path / "half")
    (tmp_path / "half" / "model.json").unlink()
    assert main(["figure", "adjacency", str(tmp_path / "half"), "--out", str(tmp_path / "a.png")]) == 2
    assert "has not finished training" in capsys.readouterr().err


def test_classes_are_those_of_the_images(runs: Path) -> None:
    from graphmsda.figures.runs import shown_domains
    from graphmsda.run import Run

    run = Run.load(runs / "own", device="cpu")
    shown = shown_domains(run, ["studio", "phone"], classes=range(3), count=9, data=str(runs / "phone"))
    assert [(part.name, part.number, part.guessed) for part in shown] == [("studio", 1, False), ("phone", 2, False)]
    assert all(sorted(part.y.tolist()) == [0, 0, 0, 1, 1, 1, 2, 2, 2] for part in shown)
    assert run.classes == CLASSES
    guessed = shown_domains(run, ["phone"], classes=range(3), count=9)
    assert guessed[0].guessed
