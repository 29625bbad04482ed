"""From what is asked to cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphmsda import UserError
from graphmsda.methods import find_method, hyperparameters
from graphmsda.study.data import Data, choose_data
from graphmsda.study.grids import ablation_cells, sensitivity_cells, table_cells

DEMO = Data("demo")


def test_a_table_has_every_method_where_it_belongs() -> None:
    cells = table_cells(DEMO, ["source-only", "mrf"], ["neon", "chalk"], [0, 1], {"epochs": 3})
    by_standard = {
        s: sum(cell.standard == s for cell in cells) for s in ("single-best", "source-combine", "multi-source")
    }
    assert by_standard == {"single-best": 4 * 2 * 2, "source-combine": 4, "multi-source": 8}
    assert len({cell.path for cell in cells}) == len(cells)
    assert {cell.seed for cell in cells[: len(cells) // 2]} == {0}  # the first seed of everything first
    assert all(cell.settings == {"epochs": 3} for cell in cells)
    assert all((cell.source is not None) == (cell.standard == "single-best") for cell in cells)
    assert all(cell.source != cell.target for cell in cells)


def test_standards_that_are_asked_for_hold_for_all_methods() -> None:
    cells = table_cells(DEMO, ["mrf"], ["neon"], [0], {}, standards=["source-combine", "multi-source"])
    assert [cell.standard for cell in cells] == ["source-combine", "multi-source"]


def test_recipes_hold_where_nothing_is_asked(tmp_path: Path) -> None:
    text = "settings: {method: mrf, epochs: 7, lr: 0.1, seed: 3, parameters: {tau: 0.5}}"
    (tmp_path / "mrf.yaml").write_text(text)
    cells = table_cells(DEMO, ["mrf", "crf"], ["neon"], [0], {"epochs": 2, "parameters": {}}, recipes=tmp_path)
    assert cells[0].settings == {"epochs": 2, "lr": 0.1}
    assert cells[0].parameters == {"tau": 0.5}
    assert cells[1].settings == {"epochs": 2}
    with pytest.raises(UserError, match=r"--recipes .*nowhere: there is no such folder"):
        table_cells(DEMO, ["mrf"], ["neon"], [0], {}, recipes=tmp_path / "nowhere")


def test_ablation_of_crf_is_table_6() -> None:
    cells = ablation_cells("crf", ["neon"], [0], {"parameters": {"sigma": 0.3}})
    assert [cell.setting for cell in cells] == ["none", "global", "local", "global+local"]
    assert [dict(cell.parameters) for cell in cells] == [
        {"sigma": 0.3, "lambda_1": 0.0, "lambda_2": 0.0},
        {"sigma": 0.3, "lambda_2": 0.0},
        {"sigma": 0.3, "lambda_1": 0.0},
        {"sigma": 0.3},
    ]
    assert cells[1].varied == {"global": True, "local": False}


def test_ablation_of_mrf_is_table_7() -> None:
    if "classification_weight" not in hyperparameters(find_method("mrf")):
        with pytest.raises(UserError, match="--terms cls: mrf has no hyper-parameter classification_weight"):
            ablation_cells("mrf", ["neon"], [0], {})
        return
    cells = ablation_cells("mrf", ["neon"], [0], {})
    assert [cell.setting for cell in cells] == ["cls", "MLE", "cls+MLE"]


def test_ablation_of_any_weights() -> None:
    cells = ablation_cells("mrf", ["neon"], [0], {}, terms=["alpha", "entropy"])
    assert [dict(cell.parameters) for cell in cells] == [
        {"alpha": 0.0, "entropy_weight": 0.0},
        {"entropy_weight": 0.0},
        {"alpha": 0.0},
        {},
    ]
    with pytest.raises(UserError, match="--terms gamma: mrf has no hyper-parameter gamma; choose from cls, MLE"):
        ablation_cells("mrf", ["neon"], [0], {}, terms=["gamma"])
    with pytest.raises(UserError, match="--terms was not given: name weights of source-only"):
        ablation_cells("source-only", ["neon"], [0], {})


def test_sensitivity_varies_one_parameter_at_a_time() -> None:
    values = {"tau": [0.1, 0.2], "lr": [0.01], "N_neg": [15]}
    cells = sensitivity_cells(DEMO, "mrf", values, ["neon"], [0], {"epochs": 2, "parameters": {"alpha": 1.0}})
    assert [cell.setting for cell in cells] == ["tau=0.1", "tau=0.2", "lr=0.01", "N_neg=15"]
    assert cells[0].parameters == {"alpha": 1.0, "tau": 0.1}
    assert cells[2].settings == {"epochs": 2, "lr": 0.01}
    assert cells[3].parameters == {"alpha": 1.0, "wrong_edges": 6}  # the paper's N_neg = K + 5
    with pytest.raises(UserError, match="--param N_neg 3: out of range"):
        sensitivity_cells(DEMO, "mrf", {"N_neg": [3]}, ["neon"], [0], {})
    with pytest.raises(UserError, match="--param taw: neither a hyper-parameter"):
        sensitivity_cells(DEMO, "mrf", {"taw": [3]}, ["neon"], [0], {})
    with pytest.raises(UserError, match="--param tau: no value was given"):
        sensitivity_cells(DEMO, "mrf", {"tau": []}, ["neon"], [0], {})
    with pytest.raises(UserError, match="--param was not given"):
        sensitivity_cells(DEMO, "mrf", {}, ["neon"], [0], {})


def test_data_are_a_benchmark_or_domains() -> None:
    assert choose_data("Digits five", None, {}).benchmark == "digits-five"
    assert choose_data("digits-five", None, {}).domain("MNIST-M") == "mm"
    assert choose_data(None, ["here/a.csv", "there/b"], {}).domains == ("a", "b")
    for domains, said in ((["a/x", "b/x"], "the same name"), (["a"], "at least two")):
        with pytest.raises(UserError, match=said):
            choose_data(None, domains, {})
    with pytest.raises(UserError, match="neither --benchmark nor --domains"):
        choose_data(None, None, {})
    with pytest.raises(UserError, match="both were given"):
        choose_data("demo", ["a", "b"], {})
    with pytest.raises(UserError, match="--targets neo: there is no such domain; choose from plain"):
        DEMO.domain("neo")
