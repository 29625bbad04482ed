"""The commands below ``graphmsda figure``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmsda.errors import UserError
from graphmsda.reading import add_reading, refuse

if TYPE_CHECKING:
    from matplotlib.figure import Figure

READ = ("format", "root", "data_root", "variant", "cache")


def add_parsers(parser: Any, kind: Any) -> None:
    """Add the figures to the parser of ``graphmsda figure``; `kind` is the class of parser to use."""
    commands = parser.add_subparsers(title="figures", required=True, metavar="FIGURE", parser_class=kind)

    def add(name: str, text: str, draw: Any, *, runs: str = "RUN", places: str) -> Any:
        figure = commands.add_parser(name, help=text)
        figure.add_argument("places", nargs="+", type=Path, metavar=runs, help=places)
        figure.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .png, .svg or .pdf file")
        figure.add_argument("--width", type=float, metavar="INCHES", help="default: a journal's column, or both")
        figure.add_argument("--dpi", type=float, default=300, metavar="N", help="dots to the inch (default: 300)")
        figure.set_defaults(command=command_figure, draw=draw)
        return figure

    def add_labels(figure: Any) -> None:
        figure.add_argument("--labels", nargs="+", metavar="TEXT", help="what to call the runs, one for each")

    def add_samples(figure: Any) -> None:
        figure.add_argument("--data", metavar="PATH", help="labelled target samples (default: a benchmark's test part)")
        figure.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
        add_reading(figure, *READ)

    one = add("adjacency", "the prototypes' adjacency by domain and class", draw_adjacency, places="runs of crf")
    add_labels(one)
    one = add("posterior", "joint posterior of domain and class", draw_posterior, places="runs of mrf or mrf-plus")
    one.add_argument("--classes", nargs="+", metavar="NAME", help="classes whose queries are averaged (default: two)")
    add_labels(one)
    add_samples(one)
    before = "runs of one task, the one before adaptation (source-only) first"
    one = add("embedding", "t-SNE of some domains, before and after adaptation", draw_embedding, places=before)
    one.add_argument("--domains", nargs="+", metavar="NAME", help="domains to show (default: first source and target)")
    one.add_argument("--classes", nargs="+", metavar="NAME", help="classes to show (default: the first ten)")
    one.add_argument("--count", type=int, default=150, metavar="N", help="samples of each domain (default: 150)")
    one.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sample and of t-SNE (default: 0)")
    add_labels(one)
    add_samples(one)
    one = add("reliability", "whether probabilities are what they say", draw_reliability, places="runs of one target")
    add_labels(one)
    add_samples(one)
    several = "run directories, or folders of them; those that differ only in their seeds are averaged"
    one = add("curves", "loss terms and accuracies over epochs", draw_curves, runs="RUN_OR_STUDY", places=several)
    one.add_argument("--terms", nargs="+", metavar="NAME", help="columns of metrics.jsonl (default: terms, accuracies)")
    add_labels(one)
    studies = "folders of studies or tunings, or their files of results"
    one = add("sensitivity", "accuracy against a parameter, with bands", draw_sensitivity, runs="STUDY", places=studies)
    one.add_argument("--param", nargs="+", metavar="NAME", help="parameters to show (default: all that were varied)")
    one.add_argument("--targets", nargs="+", metavar="NAME", help="targets to show (default: all)")


def command_figure(given: argparse.Namespace) -> None:
    """Draw a figure and say where it lies."""
    from graphmsda.figures import style

    style.check_out(given.out)
    if given.width is not None and not 1 <= given.width <= 40:
        raise UserError(f"--width {given.width:g}: out of range; give inches from 1 to 40, such as 3.5")
    if not 10 <= given.dpi <= 2400:
        raise UserError(f"--dpi {given.dpi:g}: out of range; give dots to the inch from 10 to 2400, such as 300")
    with style.styled():
        figure: Figure = given.draw(given)
        style.save(figure, given.out, given.dpi)
    width, height = figure.get_size_inches()
    print(f"{given.out}: {width:.2f} x {height:.2f} inches")


def draw_adjacency(given: argparse.Namespace) -> Figure:
    """Draw the adjacency matrices of runs."""
    from graphmsda.figures import adjacency
    from graphmsda.figures.runs import load_runs

    return adjacency.draw(load_runs(given.places, "cpu"), labels=given.labels, width=given.width)


def draw_posterior(given: argparse.Namespace) -> Figure:
    """Draw the posteriors of runs on the target's labelled samples."""
    from graphmsda.figures import posterior
    from graphmsda.figures.runs import load_runs, target_set

    if given.data is None:
        refuse(given, ("format", "root"), "without --data")
    else:
        refuse(given, ("data_root", "variant", "cache"), "with --data, which is read as it is")
    runs = load_runs(given.places, given.device)
    posterior.check(runs, given.classes)
    samples = target_set(runs[0], given.data, **{name: getattr(given, name) for name in READ})
    return posterior.draw(runs, samples, classes=given.classes, labels=given.labels, width=given.width)


def draw_embedding(given: argparse.Namespace) -> Figure:
    """Draw the embeddings of runs."""
    from graphmsda.figures import embedding
    from graphmsda.figures.runs import chosen_classes, load_runs, shown_domains

    if given.count < 1:
        raise UserError(f"--count {given.count}: out of range; give a whole number from 1, such as 150")
    if given.data is None:
        refuse(given, ("format", "root"), "without --data")
    runs = load_runs(given.places, given.device)
    classes = chosen_classes(runs[0], given.classes, embedding.MOST_CLASSES)
    reading = {name: getattr(given, name) for name in READ}
    shown = shown_domains(
        runs[0], given.domains, classes=classes, count=given.count, seed=given.seed, data=given.data, **reading
    )
    return embedding.draw(runs, shown, labels=given.labels, seed=given.seed, width=given.width)


def draw_reliability(given: argparse.Namespace) -> Figure:
    """Draw the reliability diagrams of runs, on the target too where it has labels."""
    from graphmsda.figures import reliability
    from graphmsda.figures.runs import check_alike, load_runs, target_set
    from graphmsda.selection import gather
    from graphmsda.selection.calibration import calibrate
    from graphmsda.selection.gather import reader

    if given.data is None:
        refuse(given, ("format", "root"), "without --data")
    runs = load_runs(given.places, given.device, most=4)
    check_alike(runs, "reliability diagrams")
    reading = {name: getattr(given, name) for name in READ}
    places = {name: reading[name] for name in ("data_root", "variant", "cache")}
    labelled = given.data is not None or "task" in runs[0].about["data"]
    test = target_set(runs[0], given.data, **reading) if labelled else None
    found = []
    for run in runs:
        evidence = gather(run, mixed=False, shifted=False, **places)
        said = None if test is None else reader(run)(run.domains[-1], test.x, len(run.domains) - 1, test.y)
        found.append(calibrate(evidence, said))
    return reliability.draw(runs, found, labels=given.labels, width=given.width)


def draw_curves(given: argparse.Namespace) -> Figure:
    """Draw what the metrics of runs say."""
    from graphmsda.figures import curves

    return curves.draw(curves.read_curves(given.places, given.labels), terms=given.terms, width=given.width)


def draw_sensitivity(given: argparse.Namespace) -> Figure:
    """Draw what a study or a tuning says of parameters."""
    from graphmsda.figures import sensitivity

    rows = sensitivity.read_rows(given.places)
    return sensitivity.draw(rows, parameters=given.param, targets=given.targets, width=given.width)
