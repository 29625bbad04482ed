"""Flags that the commands of ``graphmsda study`` share, and what is made of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmsda.errors import UserError
from graphmsda.reading import READING, add_reading, refuse

if TYPE_CHECKING:
    from graphmsda.study.data import Data
    from graphmsda.study.executors import Executor


def add_common(parser: Any, *, config: bool = False, timing: bool = False, search: bool = False) -> None:
    """Add the flags that studies have in common: data, training, where to run."""
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
        if not search:
            watch = "read the accuracy on the target while training too, for the column oracle and nothing else"
            parser.add_argument("--watch", action="store_true", help=watch)
        _add_execution(parser.add_argument_group("execution"))
    if config:
        training.add_argument("--config", type=Path, metavar="FILE", help="a recipe with settings")
        training.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="hyper-parameters")
    add_settings(training, without=("method", "seed", "devices", "nodes"))


def _add_execution(group: Any) -> None:
    group.add_argument("--jobs", type=int, metavar="N", help="cells at a time on this machine (default: 1)")
    group.add_argument("--executor", choices=("local", "ray"), default="local", help="default: local")
    group.add_argument(
        "--address",
        metavar="ADDRESS",
        help="of the Ray cluster, HOST:PORT or auto (default: a new one on this machine)",
    )
    group.add_argument(
        "--gpus-per-run",
        type=float,
        metavar="X",
        help="GPUs of a cell on Ray, such as 0.25 (default: 1 if there is any)",
    )
    group.add_argument("--cpus-per-run", type=float, metavar="X", help="CPUs of a cell on Ray (default: 1)")


def data_of(given: argparse.Namespace) -> Data:
    """Return the data that were named."""
    from graphmsda.study.data import choose_data

    reading = {name: getattr(given, name) for name in READING if getattr(given, name) is not None}
    return choose_data(given.benchmark, given.domains, reading)


def targets_of(given: argparse.Namespace, data: Data) -> list[str]:
    """Return the targets that were named, by default all."""
    return list(dict.fromkeys(data.domain(name) for name in given.targets or data.domains))


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings typed on the command line, with those of a recipe below them."""
    from graphmsda.cli import given_settings

    if not hasattr(given, "set"):
        given.set, given.config = [], None
    settings = given_settings(given)
    for name in ("method", "seed", "devices", "nodes"):
        settings.pop(name, None)
    return settings


def executor_of(given: argparse.Namespace) -> tuple[Executor, int]:
    """Return where cells are worked on, and how many at a time."""
    from graphmsda.study.executors import choose_executor

    if given.executor == "ray":
        from graphmsda.study.on_ray import choose_ray

        refuse(given, ["jobs"], "with --executor ray, where --cpus-per-run and --gpus-per-run say how many cells fit")
        device = getattr(given, "device", "auto")
        return choose_ray(given.address, given.cpus_per_run, given.gpus_per_run, device)
    if hasattr(given, "address"):
        refuse(given, ["address", "gpus_per_run", "cpus_per_run"], "without --executor ray")
    jobs = 1 if given.jobs is None else given.jobs
    return choose_executor(jobs), jobs


def check_score(flag: str, name: str, *others: str) -> None:
    """Refuse a score that does not exist."""
    from graphmsda.selection import SCORES

    if name not in (*others, *SCORES):
        raise UserError(f"{flag} {name}: there is no such score; choose from {', '.join([*others, *SCORES])}")


def check_seeds(given: argparse.Namespace) -> None:
    """Refuse a seed that is given twice."""
    seeds = getattr(given, "seeds", ())
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {' '.join(map(str, seeds))}: one is given twice; give each once")


def tell_failed(failed: Mapping[str, str], cells: int) -> None:
    """Say which cells failed, and end the command where there are any."""
    for path, error in failed.items():
        print(f"graphmsda: {path} failed: {error}", file=sys.stderr)
    if failed:
        raise UserError(f"{len(failed)} of {cells} cells failed; the same command tries them again")
