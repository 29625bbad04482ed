"""The commands below ``graphmsda study``: tables, ablations, sensitivity, timing, and what came of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmsda.errors import UserError
from graphmsda.reading import READING, add_reading

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
    _add_common(table)
    table.set_defaults(command=command_table, resumes=True)

    ablation = commands.add_parser("ablation", help="every combination of a method's loss terms (Tables 6, 7)")
    ablation.add_argument("--method", required=True, metavar="NAME", help="crf, mrf or any other")
    terms = "loss terms to leave out in turn, or weights to set to 0 (default: those of the paper)"
    ablation.add_argument("--terms", nargs="+", metavar="NAME", help=terms)
    _add_common(ablation, config=True)
    ablation.set_defaults(command=command_ablation, resumes=True)

    sensitivity = commands.add_parser("sensitivity", help="accuracy over the values of a hyper-parameter (Figs. 3, 4)")
    sensitivity.add_argument("--method", required=True, metavar="NAME")
    values = "values of a hyper-parameter or training setting; several --param are varied one at a time"
    sensitivity.add_argument(
        "--param", nargs="+", action="append", default=[], metavar=("NAME", "VALUE"), help=values
    )  # fmt: skip
    _add_common(sensitivity, config=True)
    sensitivity.set_defaults(command=command_sensitivity, resumes=True)

    timing = commands.add_parser("timing", help="seconds of training and inference (Table 8)")
    timing.add_argument("--methods", nargs="+", default=["all"], metavar="NAME", help="default: all")
    timing.add_argument("--iterations", type=int, default=100, metavar="N", help="of each timing (default: 100)")
    timing.add_argument("--repeats", type=int, default=10, metavar="N", help="timings of each method (default: 10)")
    _add_common(timing, timing=True)
    timing.set_defaults(command=command_timing, resumes=True)

    show = commands.add_parser("show", help="the tables of a study, finished or not")
    show.add_argument("study", type=Path, metavar="DIR", help="the --out of one of the other commands")
    show.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    show.set_defaults(command=command_show)


def _add_common(parser: Any, *, config: bool = False, timing: bool = False) -> None:
    from graphmsda.cli import add_settings

    out = {"default": Path("studies/timing")} if timing else {"required": True}
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the study; the same one goes on", **out)
    data = parser.add_argument_group("data")
    name = "digits-five, office-31, pacs, domainnet or demo"
    if timing:
        name += " (default: noise in the shape of digits-five)"
    data.add_argument("--benchmark", metavar="NAME", help=name)
    data.add_argument(
        "--domains", nargs="+", metavar="PATH", help="labelled domains of your own instead, each the target in turn"
    )
    data.add_argument("--targets", nargs="+", metavar="NAME", help="domains to adapt to (default: all)")
    add_reading(data, *READING)
    training = parser.add_argument_group("training")
    if not timing:
        parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N", help="default: 0")
        parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cells at a time (default: 1)")
    if config:
        training.add_argument("--config", type=Path, metavar="FILE", help="a recipe with settings")
        training.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="hyper-parameters")
    add_settings(training, without=("method", "seed", "devices", "nodes"))


def command_table(given: argparse.Namespace) -> None:
    """Run methods under the standards and print a table like the paper's."""
    from graphmsda.study.grids import table_cells
    from graphmsda.study.protocol import all_methods

    data = _data(given)
    methods, targets = all_methods(given.methods), _targets(given, data)
    cells = table_cells(
        data, methods, targets, given.seeds, _settings(given), standards=given.standards, recipes=given.recipes
    )
    _run(given, "table", data, cells)


def command_ablation(given: argparse.Namespace) -> None:
    """Run every combination of loss terms."""
    from graphmsda.study.grids import ablation_cells

    data = _data(given)
    cells = ablation_cells(given.method, _targets(given, data), given.seeds, _settings(given), terms=given.terms)
    _run(given, "ablation", data, cells)


def command_sensitivity(given: argparse.Namespace) -> None:
    """Run a method over the values of its parameters."""
    from graphmsda.cli import read_value
    from graphmsda.study.grids import N_NEG, sensitivity_cells
    from graphmsda.tuning.grid import read_parameters

    data = _data(given)
    named = [typed for typed in given.param if typed[0] == N_NEG]
    values = read_parameters(given.method, [typed for typed in given.param if typed[0] != N_NEG], read_value)
    if named:
        values[N_NEG] = [read_value(text) for typed in named for text in typed[1:]]
    cells = sensitivity_cells(data, given.method, values, _targets(given, data), given.seeds, _settings(given))
    _run(given, "sensitivity", data, cells)


def command_timing(given: argparse.Namespace) -> None:
    """Time methods one after the other."""
    from graphmsda.study.cells import Cell
    from graphmsda.study.data import NOISE, Data
    from graphmsda.study.protocol import all_methods

    for name in ("iterations", "repeats"):
        if getattr(given, name) < 1:
            raise UserError(f"--{name} {getattr(given, name)}: out of range; give a whole number from 1")
    data = Data(NOISE) if given.benchmark is None and given.domains is None else _data(given)
    target = data.domain(given.targets[0]) if given.targets else data.domains[0]
    varied = {"iterations": given.iterations, "repeats": given.repeats}
    settings = _settings(given)
    settings.pop("parameters", None)
    cells = [
        Cell("multi-source", target, name, 0, settings=settings, varied=varied) for name in all_methods(given.methods)
    ]
    given.jobs = 1  # side by side they would slow each other down
    _run(given, "timing", data, cells)


def command_show(given: argparse.Namespace) -> None:
    """Print the tables of a study."""
    from graphmsda.study.cells import read_study
    from graphmsda.study.formats import show

    study = read_study(given.study)
    print(show(study, given.format))
    for path, error in study.errors.items():
        print(f"graphmsda: {path} failed: {error}", file=sys.stderr)


def _data(given: argparse.Namespace) -> Data:
    from graphmsda.study.data import choose_data

    reading = {name: getattr(given, name) for name in READING if getattr(given, name) is not None}
    return choose_data(given.benchmark, given.domains, reading)


def _targets(given: argparse.Namespace, data: Data) -> list[str]:
    return list(dict.fromkeys(data.domain(name) for name in given.targets or data.domains))


def _settings(given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings typed on the command line, with those of a recipe below them."""
    from graphmsda.cli import given_settings

    if not hasattr(given, "set"):
        given.set, given.config = [], None
    settings = given_settings(given)
    for name in ("method", "seed", "devices", "nodes"):
        settings.pop(name, None)
    return settings


def _run(given: argparse.Namespace, kind: str, data: Data, cells: Sequence[Cell]) -> None:
    from graphmsda.study.executors import choose_executor
    from graphmsda.study.formats import show
    from graphmsda.study.run import run_study

    if len(set(getattr(given, "seeds", ()))) < len(getattr(given, "seeds", ())):
        raise UserError(f"--seeds {' '.join(map(str, given.seeds))}: one is given twice; give each once")
    study = run_study(
        given.out, kind, data, cells, executor=choose_executor(given.jobs), jobs=given.jobs, progress=True
    )
    print(show(study))
    asked = {cell.path for cell in cells}
    failed = {path: error for path, error in study.errors.items() if path in asked}
    for path, error in failed.items():
        print(f"graphmsda: {path} failed: {error}", file=sys.stderr)
    if failed:
        raise UserError(f"{len(failed)} of {len(cells)} cells failed; the same command tries them again")
    print(f"graphmsda: the study lies in {given.out}; `graphmsda study show {given.out}` shows it", file=sys.stderr)
