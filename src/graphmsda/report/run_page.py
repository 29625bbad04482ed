"""The report of a run: its sections in order."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from graphmsda import __version__
from graphmsda.report import classes, combination, overview
from graphmsda.report.data_warnings import data_warnings
from graphmsda.report.embedding_map import embedding_map
from graphmsda.report.gallery import extremes
from graphmsda.report.material import COUNT, Material, gather
from graphmsda.report.page import Section, check_bokeh, page
from graphmsda.report.repetition import repetition
from graphmsda.run import Run


def run_report(
    place: Path,
    *,
    data: str | None = None,
    count: int = COUNT,
    device: str = "auto",
    command: str = "",
    progress: bool = False,
    **reading: Any,
) -> str:
    """Return the report of a finished run as one HTML page.

    Args:
        place: The run directory.
        data: Path of labelled samples of the target.
        count: How many of the target's samples to look at, at most.
        device: Where the model computes: auto, cpu or cuda.
        command: The command that makes this report, for the page to say.
        progress: Show progress on stderr.
        reading: How `data` or a benchmark is read, see `gather`.
    """
    check_bokeh()
    material = gather(Run.load(place, device=device), data=data, count=count, progress=progress, **reading)
    footer = f"Made by graphmsda {__version__} on {datetime.now():%d %B %Y at %H:%M}."
    subtitle = f"Report of the run in {place}"
    return page(overview.title_of(material), sections_of(material, command), subtitle=subtitle, footer=footer)


def sections_of(material: Material, command: str) -> list[Section]:
    """Return the sections; those on data are left out where the data cannot be read."""
    with_data = [classes.per_class, classes.confusion, combination.leaning, combination.posteriors, combination.nearest]
    looked = [embedding_map, extremes]
    there = material.target is not None
    return [
        overview.overview(material),
        overview.training(material),
        *(make(material) for make in with_data if there),
        combination.adjacency(material),
        *(make(material) for make in looked if there),
        data_warnings(material),
        repetition(material, command),
    ]
