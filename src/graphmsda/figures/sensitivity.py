"""Accuracy against the value of a hyper-parameter, a band for the seeds (the paper's Figs. 3 and 4)."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphmsda.errors import UserError
from graphmsda.figures import style
from graphmsda.figures.runs import told
from graphmsda.study.cells import STUDY, read_study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
WIDE = 8.0  # a ratio of values from which the axis is logarithmic


def read_rows(places: Sequence[Path]) -> list[Row]:
    """Return the finished rows of studies and tunings: folders with a file of results, or such files themselves."""
    rows: list[Row] = []
    for place in places:
        if (place / STUDY).is_file():
            rows += _study_rows(place)
            continue
        files = [place] if place.is_file() else sorted(place.glob("*.json"))
        found = [row for file in files for row in _rows_of(file, strict=place.is_file())]
        if not found:
            raise UserError(
                f"{place}: holds no finished run of a study (rows with parameters and an accuracy); give the --out of "
                "`graphmsda study sensitivity` or of `graphmsda tune`"
            )
        rows += found
    return rows


def _study_rows(place: Path) -> list[Row]:
    study = read_study(place)
    kind = study.about.get("kind")
    if kind != "sensitivity":
        raise UserError(f"{place}: is a study of kind {kind}; give the --out of `graphmsda study sensitivity`")
    if not study.rows:
        raise UserError(f"{place}: no run of this study is finished yet; wait for some")
    kept = ("accuracy", "seed", "target", "method")
    return [{"values": row["varied"], "default": False} | {k: row[k] for k in kept} for row in study.rows.values()]


def _rows_of(file: Path, *, strict: bool) -> list[Row]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        rows = content if isinstance(content, list) else content.get("runs", content.get("cells", []))
        method = None if isinstance(content, list) else content.get("method")
    except (OSError, ValueError, AttributeError) as error:
        if strict:
            raise UserError(
                f"{file}: is not a file of results ({error}); give tune.json or a study's folder"
            ) from error
        return []
    return [
        {
            "values": dict(row.get("parameters") or row.get("values") or {}),
            "accuracy": float(row["accuracy"]),
            "seed": row.get("seed", 0),
            "target": str(row.get("player") or row.get("target") or ""),
            "method": str(row.get("method") or method or ""),
            "default": row.get("setting") == "default",
        }
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("accuracy"), int | float)
    ]


def varied(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return for each parameter of more than one value the rows in which only it differs from what is usual.

    Usual is the default where a row says that it is one, else the value that most rows have.
    """
    values: dict[str, Counter[Any]] = {}
    usual: dict[str, Any] = {}
    for row in rows:
        for name, value in row["values"].items():
            values.setdefault(name, Counter())[value] += 1
            if row["default"]:
                usual[name] = value
    several = [name for name, counts in values.items() if len(counts) > 1]
    usual = {name: counts.most_common(1)[0][0] for name, counts in values.items()} | usual
    return {
        name: [
            row
            for row in rows
            if name in row["values"]
            and all(row["values"].get(other, usual[other]) == usual[other] for other in several if other != name)
        ]
        for name in several
    }


def draw(
    rows: Sequence[Row],
    *,
    parameters: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    width: float | None = None,
) -> Figure:
    """Draw a panel for each parameter with a line for each target: mean over seeds, and a band of one deviation.

    Args:
        rows: From `read_rows`.
        parameters: Which parameters; by default all that have several values.
        targets: Which targets; by default all.
        width: Inches.
    """
    there = list(dict.fromkeys((row["method"], row["target"]) for row in rows))
    for target in targets or ():
        if target not in [known for _, known in there]:
            known = ", ".join(dict.fromkeys(name for _, name in there))
            raise UserError(f"--targets {target}: the study has no such target; it has {known}")
    there = [pair for pair in there if not targets or pair[1] in targets]
    found = varied(rows)
    for name in parameters or ():
        if name not in found:
            raise UserError(
                f"--param {name}: has not been varied there; varied were {', '.join(found) or 'none'}"
                "; choose one of them"
            )
    chosen = list(parameters or found)
    if not chosen:
        raise UserError("no parameter has more than one value there; give a study of several values")
    columns = min(3, len(chosen))
    lines = math.ceil(len(chosen) / columns)
    width = width or (style.COLUMN if columns == 1 else style.PAGE)
    keys = min(len(there), 3 if width < style.PAGE else 6)
    figure = style.new_figure(width, lines * 2.3 + 0.18 * math.ceil(len(there) / keys))
    grid = figure.subplots(lines, columns, squeeze=False)
    several = len({method for method, _ in there}) > 1
    for number, (axes, name) in enumerate(zip(grid.flat, chosen, strict=False)):
        draw_parameter(axes, found[name], name, there)
        if len(chosen) > 1:
            style.letter(axes, number)
        if number % columns == 0:
            axes.set_ylabel("accuracy (%)")
    for axes in grid.flat[len(chosen) :]:
        axes.set_axis_off()
    from matplotlib.lines import Line2D

    names = [style.plain(f"{method} → {target}" if several else f"→ {target}") for method, target in there]
    handles = [Line2D([], [], **style.line_style(number), label=name) for number, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside lower center", ncols=keys, handlelength=3)
    return figure


def draw_parameter(axes: Axes, rows: Sequence[Row], name: str, lines: Sequence[tuple[str, str]]) -> None:
    """Draw accuracy against one parameter; numbers lie on a scale, other values stand side by side.

    Args:
        axes: Where.
        rows: The rows to draw.
        name: The parameter.
        lines: Method and target of each line.
    """
    given = list(dict.fromkeys(row["values"][name] for row in rows))
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in given)
    given = sorted(given) if numeric else given
    logarithmic = numeric and given[0] > 0 and given[-1] >= WIDE * given[0]
    # Values that are no numbers, or 0 among powers of ten, get places of equal distance.
    even = not numeric or (given[0] <= 0 < given[-1] and given[-1] > WIDE * min(v for v in given if v > 0))
    place = {value: float(number if even else value) for number, value in enumerate(given)}
    for number, pair in enumerate(lines):
        of_line = [row for row in rows if (row["method"], row["target"]) == pair]
        groups = {v: [100 * row["accuracy"] for row in of_line if row["values"][name] == v] for v in given}
        groups = {value: shares for value, shares in groups.items() if shares}
        x = np.array([place[value] for value in groups])
        mean = np.array([np.mean(shares) for shares in groups.values()])
        spread = np.array([np.std(shares, ddof=1) if len(shares) > 1 else 0.0 for shares in groups.values()])
        look = style.line_style(number)
        axes.plot(x, mean, **look)
        axes.fill_between(x, mean - spread, mean + spread, color=look["color"], alpha=0.14, linewidth=0)
    if logarithmic:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(_apart([place[value] for value in given], logarithmic), None)
    ticks = axes.get_xticks()
    names = {place[value]: style.plain(told(value)) for value in given}
    axes.set_xticklabels([names[float(tick)] for tick in ticks])
    for usual in {row["values"][name] for row in rows if row["default"]}:
        axes.axvline(place[usual], color="0.5", linewidth=0.8, linestyle=":", zorder=0)
        where: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        where |= {"ha": "center", "va": "bottom", "fontsize": 6, "color": "0.35"}
        axes.annotate("default", (place[usual], 1), (0, 1), **where)
    axes.set_xlabel(style.sign(name))


def _apart(places: Sequence[float], logarithmic: bool, least: float = 0.09) -> list[float]:
    """Return places for ticks such that no two stand closer than a share of the axis; the ends are kept.

    >>> _apart([1.0, 2.0, 2.1, 10.0], False)
    [1.0, 2.0, 10.0]
    """
    scaled = [math.log(place) if logarithmic else place for place in places]
    length = (scaled[-1] - scaled[0]) or 1.0
    kept = [0]
    for number in range(1, len(places)):
        far = (scaled[number] - scaled[kept[-1]]) / length >= least
        before_end = number == len(places) - 1 or (scaled[-1] - scaled[number]) / length >= least
        if far and before_end:
            kept.append(number)
    return [places[number] for number in kept]
