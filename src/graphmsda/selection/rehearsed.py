"""Rehearsals as a measure of estimates: runs in which a source played the unlabelled target, its labels at hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from graphmsda.engine import folder
from graphmsda.errors import UserError
from graphmsda.figures.runs import run_folders
from graphmsda.run import Run
from graphmsda.selection.combination import true_logit
from graphmsda.selection.data import find_data
from graphmsda.selection.gather import gather, read_test
from graphmsda.selection.residuals import target_parts

Rehearsed = tuple[str, dict[str, float], float]
"""The player, what each estimator said, and the logit of the true accuracy."""


def read_rehearsals(
    places: Sequence[str | Path], run: Run, *, paired: bool = False, device: str = "auto", **reading: Any
) -> list[Rehearsed]:
    """Return what estimators said in each rehearsal of a run's kind, and what was true.

    Of the rehearsals of the run's method on some of its sources, those with its hyper-parameters are taken where there
    are any.

    Args:
        places: Folders with rehearsals.
        run: The run.
        paired: Whether to compare each with one of the same player and another seed, where there is one.
        device: Where to compute.
        **reading: As of `gather`.
    """
    alike: list[Path] = []
    same: list[Path] = []
    for path in run_folders([Path(place) for place in places]):
        config = folder.read_config(path)
        # One in which the run's target had a part would tell its labels.
        is_apart = set(config["data"]["domains"]) <= set(run.domains[:-1])
        if "rehearsal" not in config["data"] or not is_apart or config["settings"]["method"] != run.about["method"]:
            continue
        if not (path / folder.MODEL_ABOUT).is_file():
            continue
        alike.append(path)
        if config["settings"]["parameters"] == run.about["settings"]["parameters"]:
            same.append(path)
    chosen = same or alike
    if not chosen:
        raise UserError(
            f"{places[0]}: there is no finished rehearsal of {run.about['method']} on the sources of {run.path} "
            f"alone; run `graphmsda tune --method {run.about['method']}` on the same sources"
        )
    found = []
    for path in chosen:
        one = Run.load(path, device=device)
        data = find_data(one, **reading)
        test = read_test(one, data)
        assert test is not None  # a player has labels
        found.append((one, gather(one, data, mixed=False, shifted=False), true_logit(test)))
    rows = []
    for one, evidence, truth in found:
        twins = [other for another, other, _ in found if paired and _is_twin(one, another)]
        rows.append((one.domains[-1], target_parts(evidence, twins[0] if twins else None), truth))
    return rows


def _is_twin(one: Run, other: Run) -> bool:
    """Return whether two rehearsals differ in nothing but the seed."""
    mine, its = (dict(run.about["settings"]) for run in (one, other))
    return one.domains == other.domains and mine.pop("seed") != its.pop("seed") and mine == its
