"""The command ``graphmsda tune``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Add the command to the others."""
    from graphmsda.cli import add_training

    tune = commands.add_parser("tune", help="choose hyper-parameters without target labels: sources play the target")
    grid = "values to compare of a hyper-parameter or training setting; several --param make a grid"
    tune.add_argument("--param", nargs="+", action="append", default=[], metavar=("NAME", "VALUE"), help=grid)
    tune.add_argument("--players", nargs="+", metavar="NAME", help="sources that play the target (default: all)")
    tune.add_argument("--seeds", nargs="+", type=int, metavar="N", help="average over these seeds (default: 0)")
    tune.add_argument("--jobs", type=int, default=1, metavar="N", help="runs side by side (default: 1)")
    tune.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the runs; the same one resumes")
    add_training(tune, without=("seed", "devices", "nodes"))
    tune.set_defaults(command=command_tune, resumes=True)


def command_tune(given: argparse.Namespace) -> None:
    """Compare settings with each source playing the target."""
    from graphmsda.cli import given_settings, read_value, take_recipe_data
    from graphmsda.tune import run_command
    from graphmsda.tuning.grid import read_parameters

    take_recipe_data(given)
    settings = given_settings(given)
    run_command(given, read_parameters(settings.get("method", "mrf"), given.param, read_value), settings)
