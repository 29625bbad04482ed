r"""Accuracy of methods on a benchmark: trains cells of (method, target, seed) and adds a row for each to a file.

    python benchmarks/accuracy.py --benchmark digits-five --methods source-only adabn crf mrf \
        --seeds 0 1 2 --jobs 6 --minutes 8 --out results/digits-five.json
    python benchmarks/accuracy.py --benchmark pacs --methods mrf --set tau=0.1 --rehearse --out rehearsal.json
    python benchmarks/accuracy.py --merge FROM.json --out results/digits-five.json

Cells that the file holds already are not trained again, so the same command goes on where it was stopped, and with
``--keep`` in the middle of the cells it had begun (at the same commit; changes that are not committed are not seen).
What a cell is trained with is the benchmark's recipe (``recipes/<benchmark>/<method>.yaml``, if there is one), then the
settings given here; the accuracy is that of the last step on the target's test part.

With ``--rehearse`` no real target is read for training or scoring: each source in turn plays the target, and its labels
score the setting (leave-one-source-out). This is how settings are chosen.

``--settings FILE`` compares several at once, a YAML file of ``name: {method: mrf, parameters: {tau: 0.1}, settings:
{lr: 0.001}}``. A row's "setting" is that name; rows of ``--methods`` are called "default", or what differs, or what
``--name`` says.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import yaml

from accuracy_rows import add, key_of, line, merge, read, table, write
from cells import Cell, domains_of, fill_store, run_cells
from graphmsda import UserError
from graphmsda.cli import Parser, add_settings, given_settings
from graphmsda.data.benchmarks.benchmark import resolve_domain
from graphmsda.data.benchmarks.catalogue import find_benchmark
from graphmsda.engine.settings import FREE_TO_CHANGE, Settings, read_recipe
from graphmsda.files import explain_write_errors
from graphmsda.methods import complete_parameters
from graphmsda.reading import add_reading
from record import origin

ROOT = Path(__file__).parents[1]
READING = ("data_root", "variant", "cache", "image_size")
NEUTRAL = {*FREE_TO_CHANGE, "epochs"} - {"preset"}  # settings that give a choice of settings no name of its own


def build_parser() -> Parser:
    parser = Parser("accuracy.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", help="digits-five, office-31, pacs, domainnet or demo")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="default: source-only adabn crf mrf")
    parser.add_argument("--targets", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N")
    parser.add_argument("--rehearse", action="store_true", help="leave-one-source-out instead of the real targets")
    parser.add_argument("--players", nargs="+", metavar="NAME", help="sources that play the target (default: all)")
    parser.add_argument("--settings", type=Path, metavar="FILE", help="YAML file of named settings to compare")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the names in --settings")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="hyper-parameters of --methods")
    parser.add_argument("--name", help='what rows of --methods are called (default: "default", or what differs)')
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that train at a time")
    parser.add_argument("--minutes", type=float, default=60.0, metavar="X", help="stop then, keeping what is done")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="where cells that are stopped wait for the same command"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="JSON file; added to where it exists")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="put the rows of these into --out")
    parser.add_argument("--commit", help="commit to record where there is no git (default: the present one)")
    add_reading(parser.add_argument_group("data"), *READING)
    add_settings(parser.add_argument_group("training"), without=("method", "seed"))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        given = build_parser().parse_args(arguments)
        if given.merge is not None:
            merge(given.out, given.merge)
        else:
            measure(given)
    except UserError as error:
        print(f"accuracy.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("accuracy.py: interrupted; the same command goes on with the cells that are left", file=sys.stderr)
        return 130
    return 0


def measure(given: argparse.Namespace) -> None:
    """Train what is not in the file yet, then print the table of all that was asked for."""
    deadline = time.monotonic() + 60 * given.minutes
    asked = list(cells(given))
    if given.keep is not None:
        with explain_write_errors(given.keep, "choose another --keep"):
            given.keep.mkdir(parents=True, exist_ok=True)
    results = read(given.out)
    held = {key_of(row): row for row in results["runs"]}
    for cell in asked:
        refuse_other(cell, held.get(cell.key), given.out)
    todo = together([cell for cell in asked if cell.key not in held])
    fill_store(todo)
    os.environ["OMP_NUM_THREADS"] = "1"
    made = origin(given.commit)
    made["hardware"] += f", {given.jobs} process{'es' if given.jobs > 1 else ''} at a time"
    count, failed = sum(1 + len(cell.also) for cell in todo), 0
    print(f"{len(asked) - count} of {len(asked)} cells are in {given.out}; training {count}", flush=True)
    with tempfile.TemporaryDirectory() if given.keep is None else nullcontext(given.keep) as scratch:
        for cell, found in run_cells(todo, given.jobs, deadline, Path(scratch), made["commit"]):
            made["date"] = time.strftime("%Y-%m-%d")
            if isinstance(found, str):
                rows = [dataclasses.replace(cell, method=name).named() | {"error": found}
                        for name in (cell.method, *cell.also)]  # fmt: skip
            else:
                rows = found
            for row in rows:
                row |= {"command": dataclasses.replace(cell, method=row["method"]).command(), **made}
                print(line(row), flush=True)
            count -= len(rows)
            failed += len(rows) if isinstance(found, str) else 0
            add(results, rows)
            write(given.out, results)
    keys = {cell.key for cell in asked}
    print("\n".join(table([row for row in results["runs"] if key_of(row) in keys])))
    if count or failed:
        print(f"{count} cells are left and {failed} failed; the same command tries them")


def cells(given: argparse.Namespace) -> Iterator[Cell]:
    """Yield all cells asked for, the first seed of everything first."""
    if given.benchmark is None:
        raise UserError("--benchmark was not given; name one, such as digits-five, or demo")
    if given.jobs < 1:
        raise UserError(f"--jobs {given.jobs}: out of range; give a whole number from 1")
    benchmark = given.benchmark if given.benchmark == "demo" else find_benchmark(given.benchmark).name
    reading = {name: getattr(given, name) for name in READING if getattr(given, name) is not None}
    if "data_root" in reading:
        reading["root"] = reading.pop("data_root")
    targets = [domain(benchmark, name) for name in given.targets or domains_of(benchmark)]
    players = None if given.players is None else [domain(benchmark, name) for name in given.players]
    choices = list(named_settings(given))
    for method, _, parameters, settings in choices:  # a mistake is told before anything is trained
        recipe = recipe_of(benchmark, method)
        whole = {**recipe, **settings, "parameters": parameters}
        Settings(**whole | {"method": method})
        complete_parameters(method, parameters, whole.get("preset"))
    for seed in given.seeds:
        for target in targets:
            for playing in playing_for(given, benchmark, target, players):
                for method, name, parameters, settings in choices:
                    recipe = recipe_of(benchmark, method)
                    yield Cell(
                        benchmark, target, playing, method, name, seed, parameters, settings, recipe, reading
                    )  # fmt: skip


def domain(benchmark: str, name: str) -> str:
    """Return a domain by any of its names."""
    if benchmark != "demo":
        return resolve_domain(find_benchmark(benchmark), name)
    if name not in domains_of("demo"):
        raise UserError(f"demo has no domain {name!r}; choose one of {', '.join(domains_of('demo'))}")
    return name


def playing_for(
    given: argparse.Namespace, benchmark: str, target: str, players: Sequence[str] | None
) -> Sequence[str | None]:
    """Return who plays the target: nobody, unless this is a rehearsal."""
    if not given.rehearse:
        if players is not None:
            raise UserError("--players was given without --rehearse; leave it out or rehearse")
        return [None]
    others = [name for name in domains_of(benchmark) if name != target]
    return [name for name in others if players is None or name in players]


def named_settings(given: argparse.Namespace) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """Yield method, name, hyper-parameters and settings of each thing to compare."""
    given.config = None
    typed = given_settings(given)
    parameters = typed.pop("parameters")
    differs = parameters | {name: value for name, value in typed.items() if name not in NEUTRAL}
    name = given.name or ", ".join(f"{key}={value}" for key, value in differs.items()) or "default"
    methods = given.methods or ([] if given.settings else ["source-only", "adabn", "crf", "mrf"])
    for method in methods:
        yield method, name, parameters, typed
    for name, entry in read_settings(given.settings, given.only).items() if given.settings else ():
        yield entry["method"], name, entry.get("parameters") or {}, typed | (entry.get("settings") or {})


def read_settings(path: Path, only: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Return the named settings of a YAML file, or some of them."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"--settings {path}: cannot be read as YAML ({' '.join(str(error).split())})") from error
    example = "name: {method: mrf, parameters: {tau: 0.1}, settings: {lr: 0.001}}"
    if not isinstance(content, dict) or not content:
        raise UserError(f"--settings {path}: holds no named settings; write lines such as {example}")
    for name, entry in content.items():
        if not isinstance(entry, dict) or "method" not in entry or entry.keys() - {"method", "parameters", "settings"}:
            raise UserError(f"--settings {path}: {name!r} is {entry!r}; write it as {example}")
    unknown = [name for name in only or () if name not in content]
    if unknown:
        raise UserError(f"--only {unknown[0]}: not in {path}; it has {', '.join(map(str, content))}")
    return {str(name): entry for name, entry in content.items() if not only or name in only}


def recipe_of(benchmark: str, method: str) -> dict[str, Any]:
    """Return the settings of a benchmark's recipe for a method; none where there is no recipe."""
    folders = {folder.name.replace("-", ""): folder for folder in (ROOT / "recipes").glob("*") if folder.is_dir()}
    folder = folders.get(benchmark.replace("-", ""))
    if folder is None or not (folder / f"{method}.yaml").is_file():
        return {}
    return {k: v for k, v in read_recipe(folder / f"{method}.yaml")[1].items() if k not in ("method", "seed")}


def together(todo: Sequence[Cell]) -> list[Cell]:
    """Leave Source-only out where AdaBN is trained in the same way: its weights are the same."""
    made = [dataclasses.replace(cell, method="source-only") for cell in todo if cell.method == "adabn"]
    shared = [cell for cell in made if cell in todo]
    return [
        dataclasses.replace(cell, also=("source-only",))
        if cell.method == "adabn" and dataclasses.replace(cell, method="source-only") in shared
        else cell
        for cell in todo
        if cell not in shared
    ]


def refuse_other(cell: Cell, row: Mapping[str, Any] | None, out: Path) -> None:
    """Refuse to take a row for a cell that was trained with other parameters under the same name."""
    if row is not None and (row["parameters"], matters(row["settings"])) != (
        dict(cell.parameters),
        matters(cell.settings),
    ):
        raise UserError(
            f"{out} holds {row['method']} called {row['setting']!r} with parameters {row['parameters']} and settings "
            f"{row['settings']}, not those asked for; give another --name"
        )


def matters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings without those that change nothing, or are told apart already."""
    return {name: value for name, value in settings.items() if name not in NEUTRAL}


if __name__ == "__main__":
    sys.exit(main())
