"""The command ``graphmsda select``, and the estimate that ``fit`` and ``evaluate`` print where there are no labels."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmsda.reading import add_reading, refuse

if TYPE_CHECKING:
    from graphmsda.domains import Task
    from graphmsda.run import Run

READ = ("data_root", "variant", "cache")
QUICK = 1000  # target samples that are looked at for the estimate of `fit` and `evaluate`


def add_parser(commands: Any) -> None:
    """Add ``select`` to the commands."""
    select = commands.add_parser("select", help="rank finished runs, and say how good they are, without target labels")
    select.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="runs of one task, or folders of them")
    select.add_argument(
        "--by", metavar="SCORE", help="one score, or estimate (default: what docs/selection.md advises)"
    )
    tuned = "folders of `graphmsda tune` on the same sources, for a better interval"
    select.add_argument("--rehearsals", nargs="+", type=Path, default=[], metavar="DIR", help=tuned)
    add_reading(select, *READ)
    select.add_argument("--json", action="store_true", help="print JSON; accuracies are fractions")
    select.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    select.set_defaults(command=command_select)


def command_select(given: argparse.Namespace) -> None:
    """Print the ranking."""
    from graphmsda.selection.ranking import DEFAULT, ESTIMATE, ranked, ranking_text, score_runs
    from graphmsda.selection.scores import SCORES

    ranked([], given.by or DEFAULT)  # a misspelt score is told before any work
    reading = {name: getattr(given, name) for name in READ}
    found = score_runs(given.runs, rehearsals=given.rehearsals, device=given.device, **reading)
    if not given.json:
        print(ranking_text(found, given.by))
        return
    order = ranked(found, given.by or DEFAULT)
    names = [given.by] if given.by else [*SCORES, ESTIMATE]
    choices = {name: str(ranked(found, name)[0].path) for name in names}
    rows = [one.as_dict() for one in order]
    print(json.dumps({"by": given.by or DEFAULT, "runs": rows, "choices": choices}, indent=2, ensure_ascii=False))


def print_estimate(run: Run, task: Task | None = None, *, as_json: bool = False, **reading: Any) -> None:
    """Print what a run's accuracy on its unlabelled target probably is."""
    from graphmsda.selection.data import find_data
    from graphmsda.selection.estimate import estimate
    from graphmsda.selection.gather import gather

    data = find_data(run, task, **reading)
    found = estimate(run, evidence=gather(run, data, most=QUICK, mixed=False))
    if as_json:
        print(json.dumps({"estimate": found.as_dict()}, indent=2, ensure_ascii=False))
    else:
        print(f"{found.told}; without labels, calibrated on {found.calibrated_on}")


def evaluate_without_labels(run: Run, given: argparse.Namespace) -> None:
    """Do what ``evaluate`` can for a run on data of one's own, without ``--data``."""
    refuse(given, ("format", "root", "data_root", "variant"), "without --data")
    print_estimate(run, as_json=given.json, cache=given.cache)
    if not given.json:
        print("give --data PATH with labelled samples of the target to measure it")
