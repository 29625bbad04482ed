"""The command ``graphmsda export``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphmsda.errors import UserError
from graphmsda.reading import add_reading, refuse

if TYPE_CHECKING:
    from torch import Tensor

    from graphmsda.domains import Samples
    from graphmsda.run import Run

SUFFIXES = {"onnx": ".onnx", "torchscript": ".pt", "safetensors": ".safetensors"}
READ = ("format", "root", "data_root", "variant", "cache")
MOST = 1000  # samples without labels on which a quantised model is compared


def add_parser(commands: Any) -> None:
    """Add ``export`` to the commands."""
    export = commands.add_parser("export", help="write a model as one file for ONNX, TorchScript or safetensors")
    export.add_argument("run", type=Path, help="run directory")
    export.add_argument("--format", default="onnx", choices=tuple(SUFFIXES), help="default: onnx")
    export.add_argument("--out", type=Path, metavar="FILE", help="default: export.onnx, .pt or .safetensors in the run")
    export.add_argument("--quantise", action="store_true", help="weights of 8 bits (onnx); prints what that costs")
    cost = export.add_argument_group("data on which the cost of --quantise is measured")
    cost.add_argument("--data", metavar="PATH", help="labelled data (default: a benchmark's test part, or the target)")
    cost.add_argument("--data-format", metavar="NAME", help="folder, archive, list, npz, mat, parquet or csv")
    add_reading(cost, *READ[1:])
    export.set_defaults(command=command_export)


def command_export(given: argparse.Namespace) -> None:
    """Write the file and say what is in it."""
    from graphmsda.export import formats
    from graphmsda.run import Run

    if given.quantise and given.format != "onnx":
        raise UserError(f"--quantise: only ONNX files can be quantised, not {given.format}; use --format onnx")
    if not given.quantise:
        refuse(given, ("data", "data_format", *READ[1:]), "without --quantise, whose cost it would measure")
    run = Run.load(given.run, device="cpu")
    file = given.out or given.run / f"export{SUFFIXES[given.format]}"
    if file.is_dir():
        raise UserError(f"--out {file}: a folder is there; give a file")
    difference = None
    if given.format == "safetensors":
        formats.write_safetensors(run, file)
    else:
        difference = {"onnx": formats.write_onnx, "torchscript": formats.write_torchscript}[given.format](run, file)
    about = formats.describe(run)
    print(f"{file}: {file.stat().st_size / 1e6:,.1f} MB, {about['method']} on {about['backbone']}, "
          f"{about['input']} of {' x '.join(map(str, about['shape']))} -> {len(about['classes'])} classes, "
          f"{len(about['domains'])} domains")  # fmt: skip
    if difference is not None:
        print(f"probabilities equal those of `graphmsda predict` within {difference:.0e} on noise")
    if given.quantise:
        _quantise(run, file, given)


def _quantise(run: Run, file: Path, given: argparse.Namespace) -> None:
    from graphmsda.export import formats
    from graphmsda.export.quantise import cost, quantise

    exact, size = formats.read_onnx(file), file.stat().st_size
    quantise(file)
    print(f"quantised: {file.stat().st_size / 1e6:,.1f} MB instead of {size / 1e6:,.1f} MB")
    samples = _samples(run, given)
    if samples is None:
        print("what that costs is not known: the run's target was not found; give --data PATH with labelled samples")
        return
    print(cost(exact, formats.read_onnx(file), *samples).sentence())


def _samples(run: Run, given: argparse.Namespace) -> tuple[Samples, Tensor | None] | None:
    """Return labelled samples of the target, else unlabelled ones of those it was adapted to, else nothing."""
    from graphmsda.data.formats import open_listing
    from graphmsda.figures.runs import target_set

    about = run.about["data"]
    if given.data is not None or "task" in about:
        options = {name: getattr(given, name) for name in READ[1:]}
        found = target_set(run, given.data, format=given.data_format, **options)
        return found.x, found.y
    if "target" not in about or not Path(about["target"]).exists():
        return None
    then = about.get("reading") or {}
    root = then.get("root")
    listing = open_listing(
        about["target"], labelled=False, format=then.get("format"), root=root and Path(root), alone=True
    )
    rows = range(0, len(listing), max(1, len(listing) // MOST))[:MOST]  # spread: folders are sorted by class
    decoded = listing.read(rows, run.image_size)
    return (decoded.x, None) if decoded.kept else None
