"""The commands below ``graphmsda data``: what there is, whether it is sound, where decoded pictures are kept."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmsda.errors import UserError

if TYPE_CHECKING:
    from graphmsda.data.listing import Listing


def add_parsers(parser: Any, kind: Any) -> None:
    """Add the sub-commands to the parser of ``graphmsda data``; `kind` is the class of parser to use."""
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", parser_class=kind)

    listing = commands.add_parser("list", help="the benchmarks: domains, classes, licence, and what is on disk")
    listing.add_argument("--data-root", metavar="DIR", help="where benchmarks lie (default: $GRAPHMSDA_DATA)")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(command=command_list)

    prepare = commands.add_parser("prepare", help="fetch a benchmark, or say which file to put where by hand")
    prepare.add_argument("name", help="digits-five, office-31, pacs or domainnet")
    prepare.add_argument("--root", metavar="DIR", help="where to put it (default: $GRAPHMSDA_DATA)")
    prepare.add_argument("--only", nargs="+", metavar="FILE", help="these files alone")
    prepare.set_defaults(command=command_prepare, resumes=True)

    check = commands.add_parser("check", help="counts, unreadable files, duplicates and leaks, contact sheets")
    check.add_argument("places", nargs="+", metavar="PATH", help="domains of any format, or the name of a benchmark")
    check.add_argument("--format", metavar="NAME", help="folder, archive, list, npz, mat, parquet or csv")
    check.add_argument("--root", type=Path, metavar="DIR", help="folder to which the paths in a list file relate")
    check.add_argument("--sheets", type=Path, default=Path("sheets"), metavar="DIR", help="where contact sheets go")
    check.add_argument("--no-sheets", action="store_true", help="draw none")
    check.add_argument("--data-root", metavar="DIR", help="where benchmarks lie (default: $GRAPHMSDA_DATA)")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(command=command_check)

    cache = commands.add_parser("cache", help="show or clear the decoded pictures")
    cache.add_argument("--cache", metavar="DIR", help="where they are kept (default: ~/.cache/graphmsda)")
    cache.add_argument(
        "--clear", nargs="*", metavar="NAME", help="remove all, or those whose name or origin holds NAME"
    )
    cache.set_defaults(command=command_cache)

    digits = commands.add_parser("render-digits", help="draw Synthetic Digits anew from fonts")
    digits.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .zip, such as digits-five/syn.zip")
    digits.add_argument(
        "--fonts", nargs="+", type=Path, metavar="PATH", help="fonts or folders (default: the system's)"
    )
    digits.add_argument("--train", type=int, default=25_000, metavar="N", help="training images (default: 25,000)")
    digits.add_argument("--test", type=int, default=9_000, metavar="N", help="test images (default: 9,000)")
    digits.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all that is random")
    digits.set_defaults(command=command_render_digits)

    blend = commands.add_parser("build-mnist-m", help="blend MNIST with photographs into MNIST-M")
    blend.add_argument("--mnist", type=Path, required=True, metavar="PATH", help="MNIST in any format")
    blend.add_argument("--photographs", type=Path, required=True, metavar="DIR", help="a folder of pictures")
    blend.add_argument("--out", type=Path, required=True, metavar="FILE", help="a .zip, such as digits-five/mnistm.zip")
    blend.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all that is random")
    blend.set_defaults(command=command_build_mnist_m)


def command_list(given: argparse.Namespace) -> None:
    """Print what benchmarks there are and which lie on disk."""
    from graphmsda.data.benchmarks.benchmark import data_root
    from graphmsda.data.benchmarks.catalogue import list_page, list_rows

    root = data_root(given.data_root)
    print(json.dumps(list_rows(root), indent=2, ensure_ascii=False) if given.json else list_page(root))


def command_prepare(given: argparse.Namespace) -> None:
    """Fetch a benchmark and print what is there and what has to be put there by hand."""
    from graphmsda.data.benchmarks.benchmark import data_root
    from graphmsda.data.obtain.prepare import prepare, prepare_page

    report = prepare(given.name, data_root(given.root), only=given.only or (), progress=True)
    print(prepare_page(report))
    report.require()


def command_check(given: argparse.Namespace) -> None:
    """Look through domains and print what was found, leaks between parts and domains first."""
    from graphmsda.data.checks.check import check, check_listings
    from graphmsda.data.checks.page import report_page
    from graphmsda.data.checks.report import report_json

    sheets = None if given.no_sheets else given.sheets
    listings = [part for place in given.places for part in _benchmark_parts(place, given.data_root)]
    if not listings:
        report = check(given.places, format=given.format, root=given.root, sheets=sheets, progress=True)
    elif len(given.places) > 1:
        raise UserError("a benchmark was given together with other places; check them one by one")
    else:
        names = [listing.name for listing in listings]
        report = check_listings(listings, names=names, sheets=sheets, progress=True)
    print(report_json(report) if given.json else report_page(report))


def _benchmark_parts(name: str, root: str | None) -> list[Listing]:
    """Return all parts of all domains of a benchmark, or nothing where `name` is a path or no benchmark."""
    from graphmsda.data.benchmarks.benchmark import data_root
    from graphmsda.data.benchmarks.catalogue import BENCHMARKS

    place = data_root(root) / name
    close = difflib.get_close_matches(name.lower(), BENCHMARKS, n=1, cutoff=0.7)
    if close and name != close[0] and not Path(name).exists():
        raise UserError(f"{name}: not found; did you mean the benchmark {close[0]}?")
    if name not in BENCHMARKS or (Path(name).exists() and Path(name).resolve() != place.resolve()):
        return []
    benchmark = BENCHMARKS[name]
    parts = ("all",) if benchmark.transductive else ("train", "test")
    return [
        dataclasses.replace(listing, parts=None if part == "all" else (part,) * len(listing))
        for domain in benchmark.domains
        for part in parts
        for listing in [benchmark.open(place, domain, part, labelled=True)]
    ]


def command_render_digits(given: argparse.Namespace) -> None:
    """Draw Synthetic Digits."""
    from graphmsda.data.obtain.render_digits import render_digits

    done = render_digits(
        given.out, fonts=given.fonts, train=given.train, test=given.test, seed=given.seed, progress=True
    )
    for note in done.notes:
        print(f"graphmsda: {note}", file=sys.stderr)
    print(f"{done.path}: {done.train:,} training and {done.test:,} test images in {done.fonts} fonts, re-synthesised")


def command_build_mnist_m(given: argparse.Namespace) -> None:
    """Blend MNIST with photographs."""
    from graphmsda.data.obtain.mnist_m import build_mnist_m

    done = build_mnist_m(given.mnist, given.photographs, given.out, seed=given.seed, progress=True)
    for note in done.notes:
        print(f"graphmsda: {note}", file=sys.stderr)
    train, test = done.photographs
    print(
        f"{done.path}: {done.train:,} training and {done.test:,} test images over {train} and {test} photographs, "
        "re-synthesised"
    )


def command_cache(given: argparse.Namespace) -> None:
    """Show the cache, or clear it."""
    from graphmsda.data.cache import cache_page, clear, entries
    from graphmsda.data.store import cache_folder

    folder = cache_folder(given.cache)
    if given.clear is None:
        print(cache_page(folder, entries(folder)))
        return
    gone = clear(folder, given.clear or None)
    print(f"{folder}: removed {len(gone)} entries, {sum(entry.bytes for entry in gone) / 1e6:,.1f} MB")
