"""From what was asked on the command line to the cells of a study."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphmsda.engine.settings import read_recipe
from graphmsda.errors import UserError
from graphmsda.methods import find_method, hyperparameters
from graphmsda.study.cells import Cell
from graphmsda.study.data import Data
from graphmsda.study.protocol import standards_of
from graphmsda.tuning.cells import plain
from graphmsda.tuning.grid import place_of, told

# The loss terms of a method and the hyper-parameters that are 0 without them. Those of the paper's Tables 6 and 7 come
# first and are what an ablation takes by default; with none of the classification terms MRF has nothing to learn from.
TERMS: dict[str, dict[str, tuple[str, ...]]] = {
    "crf": {
        "global": ("lambda_1",),
        "local": ("lambda_2",),
        "prototype": ("prototype_weight",),
        "entropy": ("entropy_weight",),
        "edges": ("edge_weight",),
    },
    "mrf": {
        "cls": ("classification_weight", "entropy_weight"),
        "MLE": ("alpha",),
        "clique": ("clique_weight",),
        "entropy": ("entropy_weight",),
    },
}
PRINTED = {"crf": ("global", "local"), "mrf": ("cls", "MLE")}
NEEDED = {"mrf": ("cls", "MLE")}  # at least one of these
N_NEG = "N_neg"  # the paper's name for wrong_edges + K - 1


def table_cells(
    data: Data,
    methods: Sequence[str],
    targets: Sequence[str],
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    *,
    standards: Sequence[str] | None = None,
    recipes: Path | None = None,
) -> list[Cell]:
    """Return the cells of Tables 2 to 5, the first seed of everything first.

    Args:
        data: The data.
        methods: Names of methods.
        targets: Domains to adapt to.
        seeds: Seeds.
        settings: What all runs have in common.
        standards: For all methods; by default those under which the paper's tables have each.
        recipes: A folder with files ``METHOD.yaml`` or ``TARGET/METHOD.yaml``, whose settings hold for the method where
            `settings` say nothing.
    """
    found = []
    recipe = {(method, target): recipe_settings(recipes, method, target) for method in methods for target in targets}
    for seed, target, method in itertools.product(seeds, targets, methods):
        own = recipe[method, target]
        chosen = {**own, **settings}
        parameters = {**own.get("parameters", {}), **settings.get("parameters", {})}
        chosen.pop("parameters", None)
        for standard in standards or standards_of(method):
            sources = [name for name in data.domains if name != target] if standard == "single-best" else [None]
            found += [
                Cell(standard, target, method, seed, source, parameters=parameters, settings=chosen)
                for source in sources
            ]
    return found


def ablation_cells(
    method: str,
    targets: Sequence[str],
    seeds: Sequence[int],
    settings: Mapping[str, Any],
    *,
    terms: Sequence[str] | None = None,
) -> list[Cell]:
    """Return the cells of Tables 6 and 7: every combination of loss terms, those left out having weight 0.

    Args:
        method: Name of the method.
        targets: Domains to adapt to.
        seeds: Seeds.
        settings: What all runs have in common.
        terms: Names in `TERMS`, or of hyper-parameters that are weights; by default those of the paper's table.
    """
    known = TERMS.get(method, {})
    names: list[str] = list(terms if terms is not None else PRINTED.get(method, ()))
    weights = {name: known.get(name, (name,)) for name in names}
    has = hyperparameters(find_method(method))
    if not names:
        numbers = [name for name, one in has.items() if one.kind is float] or ["none"]
        raise UserError(f"--terms was not given: name weights of {method} to set to 0, among {', '.join(numbers)}")
    for name, fields in weights.items():
        for field in fields:
            if field not in has:
                choice = ", ".join([*known, *(each for each, one in has.items() if one.kind is float)])
                raise UserError(f"--terms {name}: {method} has no hyper-parameter {field}; choose from {choice}")
    base = dict(settings.get("parameters", {}))
    rest = {name: value for name, value in settings.items() if name != "parameters"}
    combinations = []
    for kept in itertools.product((False, True), repeat=len(names)):
        varied = dict(zip(names, kept, strict=True))
        needed = [name for name in NEEDED.get(method, ()) if name in varied]
        if len(needed) < 2 or any(varied[name] for name in needed):
            off = {field: 0.0 for name in names if not varied[name] for field in weights[name]}
            on = "+".join(name for name in names if varied[name]) or "none"
            combinations.append((on, varied, {**base, **off}))
    combinations.sort(key=lambda one: (sum(one[1].values()), [not each for each in one[1].values()]))
    return [
        Cell("multi-source", target, method, seed, None, name, parameters, rest, varied)
        for seed, target, (name, varied, parameters) in itertools.product(seeds, targets, combinations)
    ]


def sensitivity_cells(
    data: Data,
    method: str,
    values: Mapping[str, Sequence[Any]],
    targets: Sequence[str],
    seeds: Sequence[int],
    settings: Mapping[str, Any],
) -> list[Cell]:
    """Return the cells of Figs. 3 and 4: each parameter takes its values in turn, the others staying as they are.

    Args:
        data: The data.
        method: Name of the method.
        values: Values of hyper-parameters or settings; ``N_neg`` is the paper's number of negative networks.
        targets: Domains to adapt to.
        seeds: Seeds.
        settings: What all runs have in common.
    """
    if not values:
        raise UserError("--param was not given: name a hyper-parameter and values, for example --param tau 0.05 0.1")
    chosen = []
    for name, several in values.items():
        if not several:
            raise UserError(f"--param {name}: no value was given; name some, for example --param {name} 0.05 0.1")
        for value in dict.fromkeys(several):
            home, field = ("method", "wrong_edges") if name == N_NEG else place_of(method, name)
            number = _wrong_edges(value, data.classes) if name == N_NEG else value
            parameters = dict(settings.get("parameters", {}))
            rest = {key: old for key, old in settings.items() if key != "parameters"}
            (parameters if home == "method" else rest)[field] = number
            chosen.append((f"{name}={told(value)}", {name: value}, parameters, rest))
    return [
        Cell("multi-source", target, method, seed, None, name, parameters, rest, varied)
        for seed, target, (name, varied, parameters, rest) in itertools.product(seeds, targets, chosen)
    ]


def recipe_settings(folder: Path | None, method: str, target: str = "") -> dict[str, Any]:
    """Return the settings of a method's recipe in a folder, for a target or for all; none where there is none."""
    if folder is None:
        return {}
    if not folder.is_dir():
        raise UserError(f"--recipes {folder}: there is no such folder; give one with files such as mrf.yaml")
    files = [folder / plain(target) / f"{method}.yaml"] if target else []
    file = next((each for each in [*files, folder / f"{method}.yaml"] if each.is_file()), None)
    if file is None:
        return {}
    return {name: value for name, value in read_recipe(file)[1].items() if name not in ("method", "seed")}


def _wrong_edges(value: Any, classes: int | None) -> int:
    if classes is None:
        raise UserError("--param N_neg: the number of classes is not known beforehand; give wrong_edges, N_neg - K + 1")
    if not isinstance(value, int) or value < classes - 1:
        raise UserError(f"--param N_neg {value}: out of range; give a whole number from K - 1 = {classes - 1}")
    return value - classes + 1
