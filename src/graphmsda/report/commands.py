"""The command ``graphmsda report``: a run or a study as one HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from graphmsda.errors import UserError
from graphmsda.reading import add_reading, refuse

READ = ("format", "root", "data_root", "variant", "cache")
OF_A_RUN = ("data", "count", "device", *READ)  # what a study's report does not need: it reads results alone


def add_parser(commands: Any) -> None:
    """Add ``report`` to the commands."""
    report = commands.add_parser("report", help="a run or a study as one HTML page")
    report.add_argument("place", type=Path, metavar="RUN_OR_STUDY", help="run directory, or folder of a study")
    report.add_argument("-o", "--out", type=Path, metavar="FILE", help="the page (default: report.html in the folder)")
    run = report.add_argument_group("of a run")
    run.add_argument("--data", metavar="PATH", help="labelled target samples (default: a benchmark's test part)")
    run.add_argument("--count", type=int, metavar="N", help="target samples to look at, at most (default: 5000)")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where the model computes (default: auto)")
    add_reading(run, *READ)
    report.set_defaults(command=command_report)


def command_report(given: argparse.Namespace) -> None:
    """Write the page and say where it lies."""
    from graphmsda.engine import folder
    from graphmsda.files import write_text

    place: Path = given.place
    out: Path = place / "report.html" if given.out is None else given.out
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--out {out}: its ending {out.suffix!r} is not that of a web page; give a .html file")
    if out.is_dir():
        raise UserError(f"--out {out}: a folder is there; give a file")
    if not place.is_dir():
        raise UserError(f"{place}: there is no such folder; give the --out of a `graphmsda fit` or of a study")
    if (place / folder.CONFIG).is_file():
        text = _run_page(given, out)
    else:
        from graphmsda.report.study import study_page

        refuse(given, OF_A_RUN, "for a study, whose report reads its results alone")
        text = study_page(place)
    write_text(out, text)
    print(f"{out}: {len(text.encode()) / 1e6:.1f} MB; open it in a browser")


def _run_page(given: argparse.Namespace, out: Path) -> str:
    from graphmsda.report.material import COUNT
    from graphmsda.report.repetition import report_command
    from graphmsda.report.run_page import run_report

    if given.data is None:
        refuse(given, ("format", "root"), "without --data")
    if given.count is not None and given.count < 10:
        raise UserError(f"--count {given.count}: out of range; give a whole number from 10, such as {COUNT}")
    asked = {name: getattr(given, name) for name in OF_A_RUN}
    return run_report(
        given.place,
        data=given.data,
        count=given.count or COUNT,
        device=given.device or "auto",
        command=report_command(given.place, out, asked),
        progress=True,
        **{name: asked[name] for name in READ},
    )
