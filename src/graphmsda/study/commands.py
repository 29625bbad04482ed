"""The commands below ``graphmsda study``: tables, ablations, sensitivity, timing, and what came of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmsda.errors import UserError
from graphmsda.study import search_commands
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
    from graphmsda.study.cells import Cell
    from graphmsda.study.data import Data

FORMATS = ("text", "markdown", "latex", "csv", "json")
STANDARDS = ("single-best", "source-combine", "multi-source")


def add_parsers(parser: Any, kind: Any) -> None:
    """Add the sub-commands to the parser of ``graphmsda study``; `kind` is the class of parser to use."""
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=kind)

    table = commands.add_parser("table", help="methods by targets under the three standards (Tables 2-5)")
    table.add_argument("--methods", nargs="+", default=["all"], metavar="NAME", help="default: all")
    table.add_argument(
        "--standards", nargs="+", choices=STANDARDS, help="default: those under which the paper has each method"
    )
    recipes = "folder with METHOD.yaml recipes, whose settings hold where the command line says nothing"
    table.add_argument("--recipes", type=Path, metavar="DIR", help=recipes)
    search_commands.add_flags(table)
    add_common(table)
    table.set_defaults(command=command_table, resumes=True)

    ablation = commands.add_parser("ablation", help="every combination of a method's loss terms (Tables 6, 7)")
    ablation.add_argument("--method", required=True, metavar="NAME", help="crf, mrf or any other")
    terms = "loss terms to leave out in turn, or weights to set to 0 (default: those of the paper)"
    ablation.add_argument("--terms", nargs="+", metavar="NAME", help=terms)
    add_common(ablation, config=True)
    ablation.set_defaults(command=command_ablation, resumes=True)

    sensitivity = commands.add_parser("sensitivity", help="accuracy over the values of a hyper-parameter (Figs. 3, 4)")
    sensitivity.add_argument("--method", required=True, metavar="NAME")
    values = "values of a hyper-parameter or training setting; several --param are varied one at a time"
    sensitivity.add_argument(
        "--param", nargs="+", action="append", default=[], metavar=("NAME", "VALUE"), help=values
    )  # fmt: skip
    add_common(sensitivity, config=True)
    sensitivity.set_defaults(command=command_sensitivity, resumes=True)

    search_commands.add_parser(commands)

    timing = commands.add_parser("timing", help="seconds of training and inference (Table 8)")
    timing.add_argument("--methods", nargs="+", default=["all"], metavar="NAME", help="default: all")
    timing.add_argument("--iterations", type=int, default=100, metavar="N", help="of each timing (default: 100)")
    timing.add_argument("--repeats", type=int, default=10, metavar="N", help="timings of each method (default: 10)")
    add_common(timing, timing=True)
    timing.set_defaults(command=command_timing, resumes=True)

    show = commands.add_parser("show", help="the tables of a study, finished or not")
    show.add_argument("study", type=Path, metavar="DIR", help="the --out of one of the other commands")
    show.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    by = "score without target labels that chooses among settings, and the source of single best (there: information)"
    show.add_argument("--by", metavar="SCORE", help=by)
    show.set_defaults(command=command_show)


def command_table(given: argparse.Namespace) -> None:
    """Run methods under the standards and print a table like the paper's."""
    from graphmsda.study.grids import table_cells
    from graphmsda.study.protocol import all_methods

    data = data_of(given)
    methods, targets = all_methods(given.methods), targets_of(given, data)
    settings = settings_of(given)
    recipes = search_commands.tune_first(given, data, methods, targets, settings)
    cells = table_cells(data, methods, targets, given.seeds, settings, standards=given.standards, recipes=recipes)
    _run(given, "table", data, cells)


def command_ablation(given: argparse.Namespace) -> None:
    """Run every combination of loss terms."""
    from graphmsda.study.grids import ablation_cells

    data = data_of(given)
    cells = ablation_cells(given.method, targets_of(given, data), given.seeds, settings_of(given), terms=given.terms)
    _run(given, "ablation", data, cells)


def command_sensitivity(given: argparse.Namespace) -> None:
    """Run a method over the values of its parameters."""
    from graphmsda.cli import read_value
    from graphmsda.study.grids import N_NEG, sensitivity_cells
    from graphmsda.tuning.grid import read_parameters

    data = data_of(given)
    named = [typed for typed in given.param if typed[0] == N_NEG]
    values = read_parameters(given.method, [typed for typed in given.param if typed[0] != N_NEG], read_value)
    if named:
        values[N_NEG] = [read_value(text) for typed in named for text in typed[1:]]
    cells = sensitivity_cells(data, given.method, values, targets_of(given, data), given.seeds, settings_of(given))
    _run(given, "sensitivity", data, cells)


def command_timing(given: argparse.Namespace) -> None:
    """Time methods one after the other."""
    from graphmsda.study.cells import Cell
    from graphmsda.study.data import NOISE, Data
    from graphmsda.study.protocol import all_methods

    for name in ("iterations", "repeats"):
        if getattr(given, name) < 1:
            raise UserError(f"--{name} {getattr(given, name)}: out of range; give a whole number from 1")
    data = Data(NOISE) if given.benchmark is None and given.domains is None else data_of(given)
    target = data.domain(given.targets[0]) if given.targets else data.domains[0]
    varied = {"iterations": given.iterations, "repeats": given.repeats}
    settings = settings_of(given)
    settings.pop("parameters", None)
    cells = [
        Cell("multi-source", target, name, 0, settings=settings, varied=varied) for name in all_methods(given.methods)
    ]
    given.executor, given.jobs = "local", 1  # side by side they would slow each other down
    _run(given, "timing", data, cells)


def command_show(given: argparse.Namespace) -> None:
    """Print the tables of a study."""
    from graphmsda.study.cells import read_study
    from graphmsda.study.formats import show

    if given.by is not None:
        check_score("--by", given.by)
    study = read_study(given.study)
    if given.by is not None and study.about["kind"] in ("timing", "search"):
        raise UserError(f"--by {given.by}: a {study.about['kind']} has nothing to choose from by it; leave it out")
    print(show(study, given.format, by=given.by))
    for path, error in study.errors.items():
        print(f"graphmsda: {path} failed: {error}", file=sys.stderr)


def _run(given: argparse.Namespace, kind: str, data: Data, cells: Sequence[Cell]) -> None:
    from graphmsda.study.formats import show
    from graphmsda.study.run import run_study

    check_seeds(given)
    executor, jobs = executor_of(given)
    watch = getattr(given, "watch", False)
    study = run_study(given.out, kind, data, cells, executor=executor, jobs=jobs, progress=True, watch=watch)
    print(show(study))
    asked = {cell.path for cell in cells}
    tell_failed({path: error for path, error in study.errors.items() if path in asked}, len(cells))
    print(f"graphmsda: the study lies in {given.out}; `graphmsda study show {given.out}` shows it", file=sys.stderr)
