"""Loss terms and accuracies over the epochs of one run or of several, from their ``metrics.jsonl``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphmsda.engine import folder
from graphmsda.errors import UserError
from graphmsda.figures import style
from graphmsda.figures.runs import name_runs, run_folders

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AXES = ("step", "epoch", "seconds")  # what is never drawn as a curve
ON_REQUEST = ("lr", "gradient")  # drawn only where named
MOST_LINES = 14
STEEP = 300.0  # a ratio of the largest to the smallest value from which the axis is logarithmic
Rows = Sequence[Mapping[str, Any]]
Floats = NDArray[np.float64]


def read_curves(places: Sequence[Path], labels: Sequence[str] | None = None) -> dict[str, list[Rows]]:
    """Return the rows of the metrics of each run; those that differ only in their seeds stand under one name.

    Args:
        places: Run directories or folders of them.
        labels: What to call the runs, one for each; the same label twice makes them one line.
    """
    folders = run_folders(places)
    names = name_runs([folder.read_config(path) for path in folders], labels)
    found: dict[str, list[Rows]] = {}
    for path, name in zip(folders, names, strict=True):
        rows = folder.read_metrics(path / folder.METRICS)
        if not rows:
            raise UserError(f"{path / folder.METRICS}: holds no reading yet; wait for the run's first one")
        found.setdefault(name, []).append(rows)
    return found


def term_names(curves: Mapping[str, Sequence[Rows]], chosen: Sequence[str] | None = None) -> list[str]:
    """Return what there is to draw, accuracies first, or what was chosen of it."""
    there = list(dict.fromkeys(name for runs in curves.values() for rows in runs for row in rows for name in row))
    there = [name for name in there if name not in AXES]
    for name in chosen or ():
        if name not in there:
            raise UserError(f"--terms {name}: the runs have no such column; they have {', '.join(there)}")
    if chosen:
        return list(dict.fromkeys(chosen))
    # What a method shows beside its loss terms stands before them; the source's risk is the first term of most.
    first = there.index("source") if "source" in there else 0
    there = [name for name in (*there[first:], *there[:first]) if name not in ON_REQUEST]
    return sorted(there, key=lambda name: "accuracy" not in name)


def averaged(runs: Sequence[Rows], name: str) -> tuple[Floats, Floats, Floats] | None:
    """Return epochs, and mean and standard deviation of a column over runs; None where no run has it.

    The epochs are those that all the runs which have the column have reached.

    >>> epochs, mean, spread = averaged([[{"epoch": 1, "a": 2.0}], [{"epoch": 1, "a": 4.0}]], "a")
    >>> epochs.tolist(), mean.tolist(), [round(value, 2) for value in spread.tolist()]
    ([1.0], [3.0], [1.41])
    """
    series = [{float(row["epoch"]): float(row[name]) for row in rows if name in row} for rows in runs]
    series = [one for one in series if one]
    if not series:
        return None
    shared = sorted(set.intersection(*(set(one) for one in series))) or sorted(series[0])
    series = [one for one in series if set(shared) <= one.keys()]
    values = np.array([[one[epoch] for epoch in shared] for one in series])
    spread = values.std(0, ddof=1) if len(values) > 1 else np.zeros(len(shared))
    return np.array(shared), values.mean(0), spread


def draw(
    curves: Mapping[str, Sequence[Rows]], *, terms: Sequence[str] | None = None, width: float | None = None
) -> Figure:
    """Draw a panel for each loss term or accuracy with a line for each run; seeds are averaged, with a band.

    Args:
        curves: From `read_curves`.
        terms: Columns to draw; by default all but learning rate and gradient.
        width: Inches.
    """
    names = term_names(curves, terms)
    if not names:
        raise UserError("the runs' metrics hold no loss term; give runs that have trained")
    if len(curves) > MOST_LINES:
        raise UserError(
            f"{len(curves)} runs that differ in more than their seeds were found; give up to {MOST_LINES} of them"
        )
    columns = min(3, len(names))
    rows = math.ceil(len(names) / columns)
    width = width or (style.COLUMN if columns == 1 else style.PAGE)
    keys = 1 if width < style.PAGE else min(3, len(curves))
    figure = style.new_figure(width, rows * 1.65 + 0.1 + 0.17 * math.ceil(len(curves) / keys))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=False)
    for number, (axes, name) in enumerate(zip(grid.flat, names, strict=False)):
        style.letter(axes, number, style.plain(name))
        draw_term(axes, curves, name)
        axes.set_xlabel("epoch")
    for axes in grid.flat[len(names) :]:
        axes.set_axis_off()
    if len(curves) > 1 or any(len(runs) > 1 for runs in curves.values()):
        from matplotlib.lines import Line2D

        handles = [
            Line2D([], [], **style.line_style(number), label=_counted(name, runs))
            for number, (name, runs) in enumerate(curves.items())
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=keys, handlelength=3)
    return figure


def draw_term(axes: Axes, curves: Mapping[str, Sequence[Rows]], name: str) -> None:
    """Draw one column of the metrics, a line for each name, in percent where it is an accuracy."""
    from matplotlib.ticker import MaxNLocator

    share = "accuracy" in name
    lowest, highest = math.inf, -math.inf
    for number, runs in enumerate(curves.values()):
        found = averaged(runs, name)
        if found is None:
            continue
        epochs, mean, spread = found
        mean, spread = (100 * mean, 100 * spread) if share else (mean, spread)
        look = style.line_style(number)
        axes.plot(epochs, mean, markevery=max(1, len(epochs) // 6), **look)
        if spread.any():
            axes.fill_between(epochs, mean - spread, mean + spread, color=look["color"], alpha=0.14, linewidth=0)
        lowest, highest = min(lowest, mean.min()), max(highest, mean.max())
    if share:
        axes.set_ylabel("%")
    elif lowest > 0 and STEEP * lowest < highest:
        axes.set_yscale("log")
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))


def _counted(name: str, runs: Sequence[Rows]) -> str:
    return name if len(runs) == 1 else f"{name} (mean of {len(runs)}, band: ± 1 std)"
