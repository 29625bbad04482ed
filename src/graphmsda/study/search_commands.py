"""``graphmsda study search``, and ``study table --search``, which makes a table of what it finds."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmsda.errors import UserError
from graphmsda.reading import refuse
from graphmsda.study.flags import (
    add_common,
    check_score,
    check_seeds,
    data_of,
    executor_of,
    settings_of,
    targets_of,
    tell_failed,
)

if TYPE_CHECKING:
    from graphmsda.study.data import Data


def add_parser(commands: Any) -> None:
    """Add the command to the others."""
    search = commands.add_parser(
        "search", help="choose hyper-parameters without target labels, one trial after another"
    )
    search.add_argument("--method", required=True, metavar="NAME")
    ranges = (
        "range of a hyper-parameter or training setting, NAME LOW HIGH, NAME LOW HIGH log, or values to choose from"
    )
    search.add_argument("--param", nargs="+", action="append", default=[], metavar=("NAME", "VALUE"), help=ranges)
    search.add_argument("--trials", type=int, default=20, metavar="N", help="settings to try in all (default: 20)")
    judged = "how a setting is judged: rehearsal (sources play the target) or a score of `graphmsda.selection`"
    search.add_argument("--score", default="rehearsal", metavar="NAME", help=f"{judged} (default: rehearsal)")
    add_common(search, config=True, search=True)
    search.set_defaults(command=command_search, resumes=True)


def add_flags(table: Any) -> None:
    """Add the flags with which ``study table`` tunes methods first."""
    found = "first tune the methods of --param by N trials for each target, in the folder OUT-search"
    table.add_argument("--search", type=int, metavar="N", help=found)
    ranges = "with --search: range of a parameter, METHOD.NAME LOW HIGH, as `graphmsda study search` takes it"
    table.add_argument("--param", nargs="+", action="append", metavar=("NAME", "VALUE"), help=ranges)
    table.add_argument("--score", metavar="NAME", help="with --search: how a setting is judged (default: rehearsal)")


def command_search(given: argparse.Namespace) -> None:
    """Try settings, each proposed from what came of those before, and write the best down as a recipe."""
    from graphmsda.cli import read_value
    from graphmsda.study.cells import read_study
    from graphmsda.study.formats import show
    from graphmsda.study.search import RECIPES, run_search
    from graphmsda.study.space import read_space
    from graphmsda.study.trials import Search
    from graphmsda.tuning.cells import plain

    data = data_of(given)
    if given.trials < 1:
        raise UserError(f"--trials {given.trials}: out of range; give a whole number from 1")
    check_score("--score", given.score, "rehearsal")
    check_seeds(given)
    space = read_space(given.method, given.param, read_value)
    settings, targets = settings_of(given), targets_of(given, data)
    executor, jobs = executor_of(given)
    for target in targets:
        search = Search(given.method, space, given.score, target, given.seeds, settings)
        run_search(given.out, data, search, trials=given.trials, executor=executor, jobs=jobs, progress=True)
    study = read_study(given.out)
    print(show(study))
    tell_failed(study.errors, len(study.cells))
    recipe = given.out / RECIPES / plain(targets[0]) / f"{given.method}.yaml"
    typed, folder = (shlex.quote(str(path)) for path in (recipe, given.out / RECIPES))
    print(f"graphmsda: the best setting is in {recipe}, for `graphmsda fit --config {typed}` and "
          f"`graphmsda study table --recipes {folder}`", file=sys.stderr)  # fmt: skip


def tune_first(
    given: argparse.Namespace, data: Data, methods: Sequence[str], targets: Sequence[str], settings: Mapping[str, Any]
) -> Path | None:
    """Do the searches that a table asks for, and return the folder of its recipes."""
    from graphmsda.cli import read_value
    from graphmsda.study.search import RECIPES, run_search
    from graphmsda.study.space import read_space
    from graphmsda.study.trials import Search

    if given.search is None:
        refuse(given, ["param", "score"], "without --search N")
        return None if given.recipes is None else Path(given.recipes)
    refuse(given, ["recipes"], "with --search, which makes its own")
    score = given.score or "rehearsal"
    check_score("--score", score, "rehearsal")
    check_seeds(given)
    if given.search < 1:
        raise UserError(f"--search {given.search}: out of range; give a whole number from 1")
    typed: dict[str, list[list[str]]] = {}
    for name, *texts in given.param or [["nothing"]]:
        method, dot, parameter = name.partition(".")
        if not dot or method not in methods:
            raise UserError(
                f"--param {name}: names no method of the table; with --search give METHOD.NAME LOW HIGH, for example "
                f"--param {methods[0]}.lr 1e-4 1e-2 log"
            )
        typed.setdefault(method, []).append([parameter, *texts])
    spaces = {method: read_space(method, several, read_value) for method, several in typed.items()}
    place: Path = given.out.with_name(f"{given.out.name}-search")
    executor, jobs = executor_of(given)
    for method, space in spaces.items():
        for target in targets:
            search = Search(method, space, score, target, given.seeds[:1], settings)
            run_search(
                place / method, data, search, trials=given.search, executor=executor, jobs=jobs, progress=True,
                recipes=place / RECIPES,
            )  # fmt: skip
    return place / RECIPES
