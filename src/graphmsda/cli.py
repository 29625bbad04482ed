"""The command line: commands, nothing else."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from graphmsda import __version__, data_commands
from graphmsda.errors import UserError
from graphmsda.export import commands as export_commands
from graphmsda.figures import commands as figure_commands
from graphmsda.garbage import garbage_left
from graphmsda.reading import READING, add_reading, recipe_data, refuse
from graphmsda.report import commands as report_commands
from graphmsda.selection import commands as select_commands
from graphmsda.serve import commands as serve_commands
from graphmsda.study import commands as study_commands
from graphmsda.tuning import commands as tune_commands


class Parser(argparse.ArgumentParser):
    """Tells a mistake in one sentence, without the page of usage around it."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing and leaving."""
        raise UserError(f"{message}; `{self.prog} --help` shows what can be given")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 for a user's mistake, 130 when interrupted."""
    first = os.environ.get("LOCAL_RANK", "0") == "0" and os.environ.get("NODE_RANK", "0") == "0"
    given = argparse.Namespace()
    try:
        given = build_parser().parse_args(arguments)
        given.command(given)
        sys.stdout.flush()
    except UserError as error:
        if first:
            print(f"graphmsda: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if first:
            further = "; the same command goes on from there" if getattr(given, "resumes", False) else ""
            print(f"graphmsda: interrupted{further}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def build_parser() -> Parser:
    """Build the parser; flags of `fit` are derived from `Settings`."""
    parser = Parser("graphmsda", description="Multi-source domain adaptation with graphical models.")
    parser.add_argument("--version", action="version", version=f"graphmsda {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=Parser)

    demo = commands.add_parser("demo", help="train on the embedded data and print one table")
    demo.add_argument("--targets", nargs="+", default=None, metavar="NAME", help="domains to adapt to (default: three)")
    demo.add_argument("--methods", nargs="+", default=["source-only", "crf", "mrf"], metavar="NAME")
    demo.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N", help="average over these seeds")
    demo.add_argument("--epochs", type=int, default=None, help="epochs of each run")
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), metavar="DIR", help="where the runs go")
    demo.set_defaults(command=command_demo, resumes=True)

    fit = commands.add_parser("fit", help="train a model on labelled sources and an unlabelled target")
    fit.add_argument("--out", type=Path, required=True, metavar="DIR", help="run directory; the same one resumes")
    fit.add_argument("--extend", action="store_true", help="go on to more epochs than the run was begun with")
    fit.add_argument("--log", nargs="+", default=[], metavar="NAME", help="also log to tensorboard, mlflow or both")
    add_training(fit)
    fit.set_defaults(command=command_fit, resumes=True)

    tune_commands.add_parser(commands)

    evaluate = commands.add_parser("evaluate", help="compare a model's predictions with labels")
    evaluate.add_argument("run", type=Path, help="run directory")
    evaluate.add_argument("--data", metavar="PATH", help="labelled data (default: a benchmark target's test part)")
    add_reading(evaluate, "format", "root", "data_root", "variant", "cache")
    evaluate.add_argument("--json", action="store_true", help="print JSON; accuracies are fractions")
    evaluate.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    evaluate.set_defaults(command=command_evaluate)

    predict = commands.add_parser("predict", help="label new images")
    predict.add_argument("run", type=Path, help="run directory")
    predict.add_argument("inputs", nargs="+", metavar="PATH", help="images, or folders and files of any format")
    add_reading(predict, "format", "root")
    predict.add_argument("--out", type=Path, metavar="FILE", help="CSV file (default: standard output)")
    predict.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    predict.set_defaults(command=command_predict)

    data_commands.add_parsers(commands.add_parser("data", help="benchmarks, checks of your data, the cache"), Parser)

    study_commands.add_parsers(commands.add_parser("study", help="many runs: tables, ablations, timing"), Parser)

    figure_commands.add_parsers(commands.add_parser("figure", help="draw finished runs as a paper would"), Parser)

    for part in (select_commands, report_commands, export_commands, serve_commands):
        part.add_parser(commands)

    methods = commands.add_parser("methods", help="what methods there are, with citation and hyper-parameters")
    methods.add_argument("name", nargs="?", help="one of them, in full")
    methods.set_defaults(command=command_methods)
    return parser


def add_training(parser: Parser, without: Sequence[str] = ()) -> None:
    """Add the flags that say what to train on and how, but for some settings."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="a recipe or config.yaml with data and settings")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="hyper-parameters of the method")
    data = parser.add_argument_group("data")
    data.add_argument(
        "--sources", nargs="+", metavar="PATH",
        help="labelled domains: class/image folders, archives of them, list files, .npz, .mat, .parquet or .csv",
    )  # fmt: skip
    data.add_argument("--target", metavar="PATH", help="unlabelled samples; class folders and labels are not looked at")
    data.add_argument(
        "--task", metavar="NAME", help="a benchmark and its target instead, e.g. digits-five:mm, demo:neon"
    )
    add_reading(data, *READING)
    add_settings(parser.add_argument_group("training"), without)


def add_settings(group: Any, without: Sequence[str] = ()) -> None:
    """Add a flag for each field of `Settings`, but for some."""
    from graphmsda.engine.settings import Settings

    kinds = typing.get_type_hints(Settings)
    for field in dataclasses.fields(Settings):
        if not field.metadata or field.name in without:
            continue
        kind = kinds[field.name]
        if isinstance(kind, types.UnionType):
            kind = next(k for k in typing.get_args(kind) if k is not type(None))
        told = field.default is None or "(0:" in field.metadata["text"]
        default = "" if told else f" (default: {field.default})"
        group.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=kind,
            choices=field.metadata["choices"] or None,
            default=argparse.SUPPRESS,
            metavar=None if field.metadata["choices"] else {int: "N", float: "X"}.get(kind, "NAME"),
            help=field.metadata["text"] + default,
        )


def given_settings(given: argparse.Namespace) -> dict[str, Any]:
    """Return the settings typed on the command line, hyper-parameters included."""
    from graphmsda.engine.settings import Settings, read_recipe

    recipe = {} if given.config is None else read_recipe(given.config)[1]
    typed = {f.name: getattr(given, f.name) for f in dataclasses.fields(Settings) if hasattr(given, f.name)}
    # Hyper-parameters of a recipe belong to its method; another method on the command line takes none of them.
    same = typed.get("method", recipe.get("method")) == recipe.get("method")
    parameters = dict(recipe.get("parameters", {})) if same else {}
    for pair in given.set:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--set {pair}: there is no '='; give NAME=VALUE, for example lambda_1=5")
        parameters[name] = read_value(value)
    return recipe | typed | {"parameters": parameters}


def read_value(text: str) -> Any:
    """Return the number, truth value or text that was typed.

    >>> read_value("1e-3"), read_value("true"), read_value("log")
    (0.001, True, 'log')
    """
    import yaml

    try:
        value = yaml.safe_load(text)
        return float(text) if isinstance(value, str) else value  # YAML reads 1e-3 as text; people mean the number
    except (ValueError, yaml.YAMLError):
        return text


def take_recipe_data(given: argparse.Namespace) -> None:
    """Put what the recipe says of data where the command line says nothing of them."""
    if given.config is not None and not (given.task or given.sources or given.target):
        for name, value in recipe_data(given.config).items():
            if getattr(given, name) is None:
                setattr(given, name, value)


def command_fit(given: argparse.Namespace) -> None:
    """Train, and say where the model lies and what to type next."""
    from graphmsda.data.named import find_task
    from graphmsda.data.task import load_task_report
    from graphmsda.engine.early import begin_early
    from graphmsda.engine.fit import fit
    from graphmsda.engine.settings import Settings
    from graphmsda.engine.sinks import check_sinks, log_result

    take_recipe_data(given)
    settings = given_settings(given)
    check_sinks(given.log)
    begin_early(Settings(**settings))
    reading = {name: getattr(given, name) for name in READING if getattr(given, name) is not None}
    origin: dict[str, Any] = {"reading": {name: str(v) if isinstance(v, Path) else v for name, v in reading.items()}}
    root, variant = reading.pop("data_root", None), reading.pop("variant", None)
    named = None
    if given.task is not None:
        if given.sources or given.target:
            raise UserError("--task was given with --sources or --target; give either a task or your own folders")
        with garbage_left():
            named = find_task(given.task, root=root, variant=variant, progress=True, **reading)
        task, remarks = named.task, named.notes
        origin |= named.record
        if settings.get("backbone", "auto") == "auto":
            settings["backbone"] = named.backbone
    elif given.sources and given.target:
        refuse(given, ["variant"], "without --task, but only benchmarks have variants")
        task, remarks = load_task_report(given.sources, given.target, progress=True, **reading)
        origin = {**task.origin, **origin}
    else:
        raise UserError("no data: give --sources PATH PATH ... and --target PATH, or --task NAME such as demo:neon")
    if os.environ.get("LOCAL_RANK", "0") == "0":
        for remark in dict.fromkeys(remarks):
            print(f"graphmsda: {remark}", file=sys.stderr)
    told: dict[str, Any] = {"extend": given.extend, "progress": True, "log": given.log}
    run = fit(task, out=given.out, origin=origin, data_root=root, **told, **settings)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    about = run.about
    print(f"{about['method']} on {about['backbone']}: {' + '.join(run.domains[:-1])} -> {run.domains[-1]}, "
          f"{len(run.classes)} classes, {about['steps']} steps")  # fmt: skip
    if named is not None:
        for name, part in named.validation.items():
            print(f"accuracy on the held-out part of source {name}: "
                  f"{100 * run.evaluate(part, domain=name).accuracy:.1f} % of {len(part.y):,} images")  # fmt: skip
        result = run.evaluate(named.test)
        log_result(given.log, given.out, {"accuracy": result.accuracy})
        print(f"accuracy on the target's test part: {100 * result.accuracy:.1f} % of {len(named.test.y):,} images")
    else:
        select_commands.print_estimate(run, task)
    print(f"the run lies in {given.out}; next:")
    if named is None:
        print(f"  graphmsda evaluate {given.out} --data LABELLED-FOLDER")
    print(f"  graphmsda predict {given.out} NEW-IMAGES --out predictions.csv")


def command_evaluate(given: argparse.Namespace) -> None:
    """Print accuracy, per class and confusion."""
    from graphmsda.data.named import find_test
    from graphmsda.run import Run
    from graphmsda.tables import evaluation_json, evaluation_table

    run = Run.load(given.run, device=given.device)
    about = run.about["data"]
    if given.data is not None:
        refuse(given, ("data_root", "variant", "cache"), "with --data, which is read as it is")
        result = run.evaluate(given.data, format=given.format, root=given.root)
    elif "task" in about:
        refuse(given, ("format", "root"), "without --data")
        then = about.get("reading") or {}
        root, variant, cache = (getattr(given, name) or then.get(name) for name in ("data_root", "variant", "cache"))
        options = {"root": root, "variant": variant or about.get("variant"), "cache": cache}
        test = find_test(about["task"], run.classes, image_size=run.image_size, progress=True, **options)
        of = f"{about['task']}, variant {options['variant']}" if options["variant"] else about["task"]
        result = dataclasses.replace(run.evaluate(test), notes=[f"the test part of {of}"])
    else:
        select_commands.evaluate_without_labels(run, given)
        return
    print(evaluation_json(result) if given.json else evaluation_table(result))


def command_predict(given: argparse.Namespace) -> None:
    """Write one CSV row per input, in order."""
    from graphmsda.run import Run
    from graphmsda.tables import write_predictions

    run = Run.load(given.run, device=given.device)
    rows, failures = write_predictions(run, given.inputs, given.out, format=given.format, root=given.root)
    if given.out is not None:
        skipped = f"; {failures} could not be read, see the column error" if failures else ""
        print(f"{rows} rows in {given.out}{skipped}")


def command_methods(given: argparse.Namespace) -> None:
    """Print what the signatures and docstrings say."""
    from graphmsda.tables import method_page, methods_page

    print(methods_page() if given.name is None else method_page(given.name))


def command_demo(given: argparse.Namespace) -> None:
    """Run the main job on the embedded data."""
    from graphmsda.demo import run_demo

    run_demo(given.out, targets=given.targets, methods=given.methods, seeds=given.seeds, epochs=given.epochs)


if __name__ == "__main__":
    sys.exit(main())
