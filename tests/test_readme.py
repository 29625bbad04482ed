"""What the README and CONTRIBUTING promise, run as it stands there."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

import graphmsda.demo
from graphmsda import METHODS
from graphmsda.cli import main
from tests.methods import test_contract
from tests.test_cli import make_domain

ROOT = Path(__file__).parents[1]


def blocks(file: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / file).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the data that the README speaks of."""
    for number, name in enumerate("abcd"):
        make_domain(tmp_path / "data" / name, 20 + 40 * number, seed=number)
    shutil.copytree(tmp_path / "data" / "d", tmp_path / "data" / "d-labelled")
    (tmp_path / "new-images").mkdir()
    shutil.copy(tmp_path / "data" / "d" / "cat" / "0.jpg", tmp_path / "new-images" / "one.jpg")
    shutil.copy(tmp_path / "data" / "d" / "dog" / "0.jpg", tmp_path / "more.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_commands_and_python_in_their_order(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    ran = 0
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language == "python":
            exec(compile(block, "README.md", "exec"), {})
            continue
        for line in (line for line in block.splitlines() if line.startswith("graphmsda ")):
            assert main(shlex.split(line)[1:]) == 0, line
            assert capsys.readouterr().out
            ran += 1
    assert ran >= 10
    assert len((place / "predictions.csv").read_text().splitlines()) == 3
    assert (place / "runs" / "from-python" / "model.json").is_file()
    assert (place / "report.html").stat().st_size > 100_000


def test_make_demo_runs_the_demo_command(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = (ROOT / "Makefile").read_text()
    assert re.search(r"^demo: .*\n\t\$\(BIN\)/graphmsda demo$", recipe, re.MULTILINE)
    monkeypatch.setattr(graphmsda.demo, "TARGETS", ("neon",))
    monkeypatch.setattr(graphmsda.demo, "EPOCHS", 1)
    assert main(["demo"]) == 0
    assert (place / "runs" / "demo" / "results.json").is_file()


def test_contributing_example_passes_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The method that CONTRIBUTING.md writes, through every part of the contract test."""
    code, line = blocks("CONTRIBUTING.md", "python")
    names: dict[str, object] = {"__name__": "minimum_entropy"}
    exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    monkeypatch.setitem(METHODS, "minimum-entropy", names["MinimumEntropy"])
    assert line.strip() == 'METHODS["minimum-entropy"] = MinimumEntropy'
    test_contract.test_any_number_of_sources("minimum-entropy", 3)
    test_contract.test_unequal_batch_sizes("minimum-entropy", [1, 6, 6])
    test_contract.test_class_missing_from_a_batch_and_from_everywhere("minimum-entropy")
    for precision in ("32", "bf16"):
        test_contract.test_three_steps_are_finite_in_both_precisions("minimum-entropy", precision)
    test_contract.test_predictions_do_not_depend_on_the_rest_of_the_batch("minimum-entropy")
    test_contract.test_save_and_load("minimum-entropy", tmp_path / "saved")
    test_contract.test_same_seed_same_weights("minimum-entropy", tmp_path / "seeds")
    test_contract.test_every_hyperparameter_is_described("minimum-entropy")


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert link.startswith("http") or (page.parent / link).exists(), f"{page.name}: {link}"
