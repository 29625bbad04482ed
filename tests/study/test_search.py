"""A search: trials proposed from what came before, stopped, resumed and shared like any study."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from graphmsda import UserError
from graphmsda.cli import main, read_value
from graphmsda.engine.settings import read_recipe
from graphmsda.run import Run
from graphmsda.study import run as run_module
from graphmsda.study import search as search_module
from graphmsda.study import work
from graphmsda.study.cells import Cell, read_study
from graphmsda.study.data import Data
from graphmsda.study.formats import show
from graphmsda.study.grids import table_cells
from graphmsda.study.search import run_search
from graphmsda.study.space import Choice, Past, Range, propose, read_space
from graphmsda.study.trials import Search, judge, make_trial, ranked, read_trials
from tests.study.test_commands import FLAGS, write_domains
from tests.test_cli import told

pytest.importorskip("optuna", reason="Optuna is not installed")

DEMO = Data("demo")
TAU = {"tau": Range(0.01, 1.0, log=True)}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Cells are trained in no time, best at a tau of 0.05; returns which."""
    found: list[str] = []
    monkeypatch.setattr(work, "train_cell", lambda cell, data, out, **_: pretend(cell, found))
    monkeypatch.setattr(search_module, "_check_held_out", lambda *_: None)
    for module in (run_module, search_module):
        monkeypatch.setattr(module, "check_cells", lambda *_: None)
    monkeypatch.setattr(search_module, "default_values", lambda search, data: dict.fromkeys(search.space, 0.2))
    monkeypatch.setattr(run_module, "PAUSE", 0.02)
    monkeypatch.setattr("gc.collect", int)  # which takes longer than all the rest
    return found


def pretend(cell: Cell, found: list[str]) -> dict[str, Any]:
    found.append(cell.path)
    distance = abs(math.log(cell.parameters.get("tau", 0.2) / 0.05))
    return {**cell.named(), "accuracy": math.exp(-distance), "scores": {"entropy": distance, "information": -distance}}


def search_of(score: str = "information", space: Mapping[str, Range | Choice] = TAU) -> Search:
    return Search("mrf", space, score, "neon", [0], {"epochs": 2})


def test_ranges_and_choices_as_they_are_typed() -> None:
    typed = [["tau", "0.05", "0.4"], ["alpha", "1e-2", "1", "log"], ["wrong_edges", "1", "9"], ["lr", "1", "2", "3"],
             ["augment", "none", "weak"]]  # fmt: skip
    assert read_space("mrf", typed, read_value) == {
        "tau": Range(0.05, 0.4),
        "alpha": Range(0.01, 1, log=True),
        "wrong_edges": Range(1, 9, whole=True),
        "lr": Choice((1, 2, 3)),
        "augment": Choice(("none", "weak")),
    }


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([], "--param was not given"),
        ([["tau"]], "--param tau: nothing was given"),
        ([["tau", "0.1"]], "--param tau: 0.1 was given; give the ends of a range"),
        ([["tau", "0.4", "0.1"]], "--param tau 0.4 0.1: no range; give two numbers, the lower one first"),
        ([["tau", "0", "1", "log"]], "the lower one first, above 0"),
        ([["tau", "1", "2", "3", "log"]], "give the ends of a range"),
        ([["wrong_edges", "0.5", "3"]], "give two whole numbers"),
        ([["tua", "0", "1"]], "did you mean tau"),
        ([["tau", "[1]", "[2]", "[3]"]], "several values to choose from"),
        ([["lr", "1", "2"], ["training.lr", "3", "4"]], "--param training.lr: the same parameter as lr; give it once"),
    ],
)
def test_ranges_that_are_none(typed: list[list[str]], said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_space("mrf", typed, read_value)


def test_proposals_follow_from_the_past_alone() -> None:
    space = {"tau": Range(0.01, 1.0, log=True), "wrong_edges": Range(1, 30, whole=True), "augment": Choice(("a", "b"))}
    past: list[Past] = []
    for number in range(30):
        values = propose(space, past)
        assert values is not None
        assert values == propose(space, list(past))
        assert 0.01 <= values["tau"] <= 1
        assert float(f"{values['tau']:.4g}") == values["tau"]
        assert isinstance(values["wrong_edges"], int)
        good = -abs(math.log(values["tau"] / 0.05)) - (values["augment"] == "b")
        past.append(Past(values, None if number % 7 == 3 else good, running=number % 14 == 3))
    early, late = ([abs(math.log(one.values["tau"] / 0.05)) for one in part] for part in (past[:10], past[-10:]))
    assert sum(late) < sum(early)  # it learns
    assert sum(one.values["augment"] == "a" for one in past[-10:]) >= 7


def test_nothing_is_proposed_twice_and_the_end_is_noticed() -> None:
    space = {"augment": Choice(("none", "weak", "strong")), "wrong_edges": Range(1, 2, whole=True)}
    past: list[Past] = [Past({"augment": "auto", "wrong_edges": 1}, 0.5)]  # a default outside of the choices
    while (values := propose(space, past)) is not None:
        past.append(Past(values, 0.1))
    assert len({tuple(one.values.items()) for one in past}) == len(past)
    assert len(past) == 7


def test_a_search_finds_what_is_good(tmp_path: Path, made: list[str]) -> None:
    study = run_search(tmp_path, DEMO, search_of(), trials=15)
    trials = read_trials(tmp_path, "neon")
    assert list(trials) == list(range(1, 16))
    assert trials[1] is None
    assert len(made) == len(set(made)) == 15
    cells = {number: search_of().cells(DEMO, values) for number, values in trials.items()}
    best = trials[ranked(study, cells, "information")[0][0]]
    assert best is not None
    assert 0.03 < best["tau"] < 0.08
    recipe = read_recipe(tmp_path / "recipes" / "neon" / "mrf.yaml")[1]
    assert recipe == {"method": "mrf", "epochs": 2, "parameters": best}


def test_where_less_is_better(tmp_path: Path, made: list[str]) -> None:
    study = run_search(tmp_path, DEMO, search_of("entropy"), trials=10)
    cells = {number: search_of().cells(DEMO, values) for number, values in read_trials(tmp_path, "neon").items()}
    values = [judge(study, cells[number], "entropy") for number, _ in ranked(study, cells, "entropy")]
    assert values == sorted(value for value in values if value is not None)
    recipe = read_recipe(tmp_path / "recipes" / "neon" / "mrf.yaml")[1]
    assert abs(math.log(recipe["parameters"]["tau"] / 0.05)) == pytest.approx(values[0])
    text = show(study)
    assert "mean entropy of target predictions (Morerio et al., ICLR 2018), less is better" in text
    assert "in one run of each, which cannot tell a lead from noise" in text
    assert [line for line in text.splitlines() if "* " in line or line.endswith("*")]


def test_a_stopped_search_goes_on_as_if_nothing_had_been(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_search(tmp_path / "whole", DEMO, search_of(), trials=12)
    made.clear()

    def interrupted(cell: Cell, data: Data, out: Path, **_: Any) -> dict[str, Any]:
        if len(made) == 9:
            raise KeyboardInterrupt
        return pretend(cell, made)

    monkeypatch.setattr(work, "train_cell", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_search(tmp_path / "stopped", DEMO, search_of(), trials=12)
    monkeypatch.setattr(work, "train_cell", lambda cell, data, out, **_: pretend(cell, made))
    run_search(tmp_path / "stopped", DEMO, search_of(), trials=12)
    assert read_trials(tmp_path / "stopped", "neon") == read_trials(tmp_path / "whole", "neon")
    assert len(made) == len(set(made)) == 12
    made.clear()
    run_search(tmp_path / "stopped", DEMO, search_of(), trials=14)  # more can be asked for
    assert len(made) == 2


def test_several_commands_share_a_search(tmp_path: Path, made: list[str]) -> None:
    counts: list[int] = []
    workers = [
        threading.Thread(target=lambda: counts.append(len(run_search(tmp_path, DEMO, search_of(), trials=12).rows)))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert counts == [12] * 4  # none returns before all is done
    assert len(made) == len(set(made)) == len(read_trials(tmp_path, "neon")) == 12


def test_a_trial_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("graphmsda.files.os.link", kill)
        with pytest.raises(KeyboardInterrupt):
            make_trial(tmp_path, "neon", 1, None, {"tau": 0.2})
    assert read_trials(tmp_path, "neon") == {}
    assert make_trial(tmp_path, "neon", 1, None, {"tau": 0.2})  # else everybody would wait for its maker
    assert not make_trial(tmp_path, "neon", 1, {"tau": 0.3}, {"tau": 0.3})
    assert read_trials(tmp_path, "neon", "all") == {1: {"tau": 0.2}}


def test_a_failed_trial_does_not_stop_the_others(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(cell: Cell, data: Data, out: Path, **_: Any) -> dict[str, Any]:
        if cell.parameters.get("tau", 0.2) > 0.3:
            made.append(cell.path)
            raise UserError("training stopped: it became infinite")
        return pretend(cell, made)

    monkeypatch.setattr(work, "train_cell", fail)
    study = run_search(tmp_path, DEMO, search_of(), trials=10)
    assert study.errors
    assert len(study.rows) + len(study.errors) == len(made) == 10  # a failed one is not tried again by this command
    assert "failed: the same command tries them again" in show(study)


@pytest.mark.parametrize(
    ("score", "why"), [("information", "the first failed with: too cold"), ("mixval", "mixval says nothing")]
)
def test_a_search_that_finds_nothing_says_so(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch, score: str, why: str
) -> None:
    def fail(cell: Cell, data: Data, out: Path, **_: object) -> dict[str, Any]:
        raise UserError("too cold")

    if score == "information":
        monkeypatch.setattr(work, "train_cell", fail)
    with pytest.raises(UserError, match=f"no trial for neon has a score, {why}"):
        run_search(tmp_path, DEMO, search_of(score), trials=2)


def test_a_missing_package_is_told_before_any_training(
    tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match="Optuna is not installed"):
        run_search(tmp_path / "out", DEMO, search_of(), trials=2)
    assert made == []
    assert not (tmp_path / "out").exists()


def test_trials_side_by_side(tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def count(*given: Any, **named: Any) -> Any:
        sizes.append(len(given[3]))
        return run_module.run_study(*given, **named)

    monkeypatch.setattr(search_module, "run_study", count)
    run_search(tmp_path, DEMO, search_of("rehearsal"), trials=5, jobs=8)  # 4 players each
    assert sizes == [8, 8, 4]


def test_a_rehearsal_has_a_run_for_each_player(tmp_path: Path, made: list[str]) -> None:
    study = run_search(tmp_path, DEMO, search_of("rehearsal"), trials=4)
    assert len(study.rows) == 16
    assert {cell.source for cell in study.cells} == {"plain", "texture", "camera", "chalk"}
    assert study.cells[0].label.startswith("mrf")
    assert " -> neon played by " in study.cells[0].label
    text = show(study)
    assert text.splitlines()[1].split()[:2] == ["trial", "tau"]
    assert "1 (default)" in text
    assert json.loads(show(study, "json"))["tables"][0]["lines"][0]["labels"].keys() == {"trial", "tau"}


def test_another_search_in_the_same_folder_is_refused(tmp_path: Path, made: list[str]) -> None:
    run_search(tmp_path, DEMO, search_of(), trials=2)
    with pytest.raises(UserError, match=r"holds a study with search .* choose another --out"):
        run_search(tmp_path, DEMO, search_of("entropy"), trials=2)
    with pytest.raises(UserError, match="holds a study with search"):
        run_search(tmp_path, DEMO, search_of(space={"tau": Range(0.1, 1.0)}), trials=2)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_domains(tmp_path_factory.mktemp("data"), "abcd")


def test_the_command_line(places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "search"
    command = [
        "study",
        "search",
        "--method",
        "mrf",
        "--param",
        "tau",
        "0.05",
        "2",
        "log",
        "--param",
        "lr",
        "1e-3",
        "1e-2",
    ]
    data = ["--domains", *places, "--targets", "d"]
    assert main([*command, "--trials", "3", *data, "--set", "alpha=0.5", "--out", str(out), *FLAGS]) == 0
    output = capsys.readouterr()
    assert "Search of MRF-MSDA on your domains -> d" in output.out
    assert "trial 3 of 3, tau" in output.err
    study = read_study(out)
    assert len(study.rows) == 9
    for cell in study.cells:
        assert cell.parameters["alpha"] == 0.5
        run = Run.load(out / "runs" / cell.path)
        assert run.domains[-1] == cell.source  # which plays the target
        assert "d" not in run.domains
        assert run.about["data"]["rehearsal"]["player"] == cell.source
    table = [
        "study",
        "table",
        "--methods",
        "mrf",
        *data,
        "--recipes",
        str(out / "recipes"),
        "--out",
        str(tmp_path / "t"),
    ]
    assert main(table) == 0
    (row,) = read_study(tmp_path / "t").rows.values()
    assert row["parameters"]["alpha"] == 0.5
    assert row["epochs"] == 2


def test_by_a_score_without_labels(places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["study", "search", "--method", "mrf", "--param", "tau", "0.05", "2", "--score", "information"]
    assert (
        main([*command, "--trials", "2", "--domains", *places, "--targets", "d", "--out", str(tmp_path), *FLAGS]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["trial", "tau", "information", "│", "target", "accuracy"]
    from graphmsda.selection import SCORES

    for row in read_study(tmp_path).rows.values():
        assert row["scores"].keys() == SCORES.keys()
        assert row["scores"]["information"] == pytest.approx(row["label_free"]["information"], abs=1e-3)


def test_no_accuracy_on_what_was_trained_on(
    places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study", "search", "--method", "mrf", "--param", "tau", "0.05", "2", "--score", "source-accuracy"]
    said = told(capsys, [*command, "--domains", *places, "--targets", "d", "--out", str(tmp_path / "study"), *FLAGS])
    assert "no part of the sources is kept apart here" in said
    assert not (tmp_path / "study").exists()


def test_a_table_of_methods_that_are_tuned_first(
    places: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table"
    command = ["study", "table", "--methods", "mrf", "crf", "--domains", *places[:3], "--targets", "a", "b"]
    command += [
        "--search",
        "2",
        "--param",
        "mrf.tau",
        "0.05",
        "0.1",
        "--score",
        "information",
        "--out",
        str(out),
        *FLAGS,
    ]
    assert main(command) == 0
    for target in "ab":
        chosen = read_recipe(tmp_path / "table-search" / "recipes" / target / "mrf.yaml")[1]["parameters"]
        (row,) = (row for row in read_study(out).rows.values() if (row["method"], row["target"]) == ("mrf", target))
        assert row["parameters"] == chosen
        trials = read_trials(tmp_path / "table-search" / "mrf", target)
        assert chosen in [values or {} for values in trials.values()]
        assert len(trials) == 2
    assert "Accuracy on your domains" in capsys.readouterr().out
    assert main(command) == 0  # nothing is left to do
    assert "0 of them done before" not in capsys.readouterr().err


def test_other_recipes_for_other_targets(tmp_path: Path) -> None:
    (tmp_path / "neon").mkdir()
    (tmp_path / "neon" / "mrf.yaml").write_text("settings: {parameters: {tau: 0.5}}")
    (tmp_path / "mrf.yaml").write_text("settings: {epochs: 3}")
    first, second = table_cells(DEMO, ["mrf"], ["neon", "chalk"], [0], {}, recipes=tmp_path)
    assert (first.parameters, first.settings) == ({"tau": 0.5}, {})
    assert (second.parameters, second.settings) == ({}, {"epochs": 3})


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--search", "0", "--param", "mrf.tau", "0.1", "0.4"], "--search 0: out of range"),
        (["--search", "2"], "--param nothing: names no method of the table; with --search give METHOD.NAME LOW HIGH"),
        (["--search", "2", "--param", "tau", "0.1", "0.4"], "--param tau: names no method of the table"),
        (["--param", "mrf.tau", "0.1", "0.4"], "--param was given without --search N"),
        (
            ["--search", "2", "--recipes", "there", "--param", "mrf.tau", "0.1", "0.4"],
            "--recipes was given with --search",
        ),
    ],
)
def test_mistakes_in_a_table_of_tuned_methods(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study", "table", "--methods", "mrf", "--benchmark", "demo", "--out", str(tmp_path / "study")]
    assert said in told(capsys, [*command, *flags])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--param", "tau", "0.1", "0.4", "--trials", "0"], "--trials 0: out of range"),
        (
            ["--param", "tau", "0.1", "0.4", "--score", "luck"],
            "--score luck: there is no such score; choose from rehears",
        ),
        (["--param", "tau", "-1", "0.4"], "--param tau=-1.0: out of range"),
        (["--param", "seed", "1", "4"], "--param seed: a seed is not chosen but averaged over"),
    ],
)
def test_mistakes_are_one_sentence(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "study"
    command = ["study", "search", "--method", "mrf", "--benchmark", "demo", "--targets", "neon", "--out", str(out)]
    assert said in told(capsys, [*command, *flags])
    assert not out.exists()
