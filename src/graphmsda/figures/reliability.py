"""Reliability diagrams: whether probabilities are what they say, before and after the sources' temperature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphmsda.figures import style
from graphmsda.figures.runs import name_panels
from graphmsda.run import Run
from graphmsda.selection.calibration import Calibration

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 60.0  # area of the mark of a bin that holds all samples, points squared
LEAST = 3.0
FEW = 0.01  # share of the samples below which a bin is chance and is left out


def draw(
    runs: Sequence[Run],
    found: Sequence[Calibration],
    *,
    labels: Sequence[str] | None = None,
    width: float | None = None,
) -> Figure:
    """Draw a panel for the sources and, where its labels are known, for the target, a row for each run.

    Args:
        runs: The runs.
        found: The calibration of each.
        labels: What to call the runs.
        width: Inches.
    """
    domains = ["sources"] + ["target"] * any(one.target is not None for one in found)
    width = width or (style.COLUMN if len(domains) == 1 else style.PAGE)
    height = width / len(domains) * 0.85 * len(runs)
    figure = style.new_figure(width, height)
    grid = figure.subplots(len(runs), len(domains), squeeze=False, sharex=True, sharey=True)
    for row, (run, one, name) in enumerate(zip(runs, found, name_panels(runs, labels), strict=True)):
        for column, domain in enumerate(domains):
            axes = grid[row, column]
            who = "sources" if domain == "sources" else f"target {style.plain(run.domains[-1])}"
            style.letter(axes, row * len(domains) + column, f"{name}: {who}")
            if domain in one.diagrams:
                draw_panel(axes, one, domain)
            if row == len(runs) - 1:
                axes.set_xlabel("confidence (%)")
        grid[row, 0].set_ylabel("accuracy (%)")
    return figure


def draw_panel(axes: Axes, found: Calibration, domain: str) -> None:
    """Draw accuracy against confidence; the area of a mark tells how many samples it stands for."""
    errors = found.sources if domain == "sources" else found.target
    assert errors is not None
    axes.plot([0, 100], [0, 100], color="0.6", linewidth=0.8)
    states = (("as trained", domain), (f"temperature {found.temperature:.2f}", f"{domain}, tempered"))
    for number, ((state, key), error) in enumerate(zip(states, errors, strict=True)):
        total = sum(row["count"] for row in found.diagrams[key])
        few = max(3, FEW * total)
        rows: list[Mapping[str, Any]] = [row for row in found.diagrams[key] if row["count"] >= few]
        look = style.line_style(number)
        x, y = ([100 * row[what] for row in rows] for what in ("confidence", "accuracy"))
        axes.plot(x, y, color=look["color"], linestyle=look["linestyle"], label=f"{state}: error {100 * error:.1f} %")
        areas = [max(LEAST, LARGEST * row["count"] / total) for row in rows]
        axes.scatter(x, y, areas, color=look["color"], marker=look["marker"], zorder=3)
    axes.set(xlim=(0, 102), ylim=(0, 102))
    axes.legend(loc="best")
