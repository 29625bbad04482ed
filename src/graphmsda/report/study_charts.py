"""The charts of a study: averages, ranks, accuracy over a parameter, accuracy against time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from graphmsda.report import study_svg as svg
from graphmsda.report.parts import Html
from graphmsda.study.entries import Entry, Table
from graphmsda.study.significance import Comparison

ROW = 21.0  # height of a line
LONGEST = 27  # letters of a name before it is cut


def averages(table: Table, column: str) -> Html:
    """Return a column of a table as dots with a bar of one deviation, the paper's numbers as hollow squares."""
    unit = 1.0 if table.seconds else 100.0
    lines = [(line.labels, line.entries[column]) for line in table.lines if _drawn(line.entries.get(column))]
    groups = {name: list(some) for name, some in itertools.groupby(lines, key=lambda line: line[0][0])}
    grouped = table.heads[0] == "standard"
    names = [_short(labels[-1]) for labels, _ in lines]
    start, end, top = _margin(names), svg.WIDTH - 14, 8.0
    values = [v * unit for _, entry in lines for v in _reach(entry)] + [0.0] * table.seconds
    scale = svg.linear(min(values), max(values), start, end, 5)
    bottom = top + ROW * (len(lines) + (len(groups) if grouped else 0))
    title = "seconds" if table.seconds else "accuracy (%)"
    parts, y = svg.horizontal(scale, top, bottom, start, end, title), top
    for name, some in groups.items() if grouped else [("", lines)]:
        if grouped:
            parts.append(svg.text(0, y + 15, name, bold=True))
            y += ROW
        for labels, entry in some:
            middle, mean, std = y + ROW / 2, entry.mean or 0.0, entry.std or 0.0
            parts.append(svg.text(start - 10, middle + 4, _short(labels[-1]), anchor="end", bold=entry.best))
            if std:
                ends = [scale.place(unit * (mean + sign * std)) for sign in (-1, 1)]
                parts.append(svg.line(ends[0], middle, ends[1], middle, width=2, strength=0.5))
            if entry.paper is not None:
                told = f"{labels[-1]}, in the paper: {unit * entry.paper[0]:.1f}"
                parts.append(svg.mark(scale.place(unit * entry.paper[0]), middle, 1, told, hollow=True))
            parts.append(svg.mark(scale.place(unit * mean), middle, 0, f"{labels[-1]}: {unit * mean:.1f}"))
            y += ROW
    return svg.drawing(bottom + 40, parts)


def ranks(found: Comparison) -> Html:
    """Return a critical difference diagram (Demsar, 2006), turned: a line of its own for each method.

    The strokes on the right join methods whose average ranks lie closer than the critical difference.
    """
    names = [_short(name) for name in found.names]
    start, end, top = _margin(names), svg.WIDTH - 20 - 9.0 * len(found.groups), 34.0
    bottom = top + ROW * len(names)
    scale = svg.linear(1, len(names), start + 4, end - 4, 6)
    inside = [tick for tick in scale.ticks if 1 < tick[0] <= len(names) and tick[0] == round(tick[0])]
    whole = svg.Scale(scale.place, ((1.0, "1"), *((rank, f"{rank:.0f}") for rank, _ in inside)))
    parts = svg.horizontal(whole, top, bottom, start, end, "average rank (1 is best)")
    length = min(scale.place(1 + found.difference), end) - scale.place(1)
    first, y = scale.place(1), top - 14
    cut = 1 + found.difference > len(names)
    parts += [svg.line(first, y, first + length, y, width=2), svg.line(first, y - 4, first, y + 4, width=2)]
    parts += [] if cut else [svg.line(first + length, y - 4, first + length, y + 4, width=2)]
    told = f"critical difference {found.difference:.2f}" + (" (longer than the axis)" if cut else "")
    parts.append(svg.text(first, y - 8, told))
    for number, (name, rank) in enumerate(zip(names, found.ranks, strict=True)):
        middle = top + ROW * (number + 0.5)
        parts += [
            svg.text(start - 10, middle + 4, name, anchor="end"),
            svg.line(start, middle, scale.place(rank), middle, strength=0.3),
            svg.mark(scale.place(rank), middle, 0, f"{found.names[number]}: {rank:.2f}"),
        ]
    for number, group in enumerate(found.groups):
        x = end + 14 + 9 * number
        first, last = (top + ROW * (place + 0.5) for place in (group[0], group[-1]))
        parts.append(svg.line(x, first - 5, x, last + 5, width=4, strength=0.75))
    return svg.drawing(bottom + 40, parts)


def sensitivity(table: Table) -> Html:
    """Return accuracy over the values of a parameter: a line for each target, a band of one standard deviation."""
    columns = [column for column in table.columns if any(_drawn(line.entries.get(column)) for line in table.lines)]
    if len(columns) == 2:  # one target and an average of it
        columns = columns[:1]
    labels = [line.labels[0] for line in table.lines]
    drawn = [entry for line in table.lines for column in columns if _drawn(entry := line.entries.get(column, Entry()))]
    start, end, top, bottom = 40.0, svg.WIDTH - 14.0, 30.0, 240.0
    place, scale = _along(labels, start, end)
    values = [100 * value for entry in drawn for value in _reach(entry)]
    height = svg.linear(min(values), max(values), bottom, top)
    parts = svg.horizontal(scale, top, bottom, start, end, table.heads[0])
    parts += svg.vertical(height, top, bottom, start, end, "accuracy (%)")
    over: list[str] = []
    for number, column in enumerate(columns):
        there = [(line.labels[0], e) for line in table.lines if _drawn(e := line.entries.get(column, Entry()))]
        around = [(place[label], e.mean or 0.0, e.std or 0.0) for label, e in there]
        if any(std for *_, std in around):
            rim = [(x, height.place(100 * (mean - std)), height.place(100 * (mean + std))) for x, mean, std in around]
            parts.append(svg.band(rim, number))
        points = [(x, height.place(100 * mean)) for x, mean, _ in around]
        over.append(svg.curve(points, number))
        for (x, y), (label, entry) in zip(points, there, strict=True):
            told = f"{arrow(column)}, {table.heads[0]} {label}: {100 * (entry.mean or 0.0):.1f} %"
            over.append(svg.mark(x, y, number, told))
    key, taken = svg.legend([arrow(column) for column in columns], bottom + 44)
    return svg.drawing(bottom + 48 + taken, [*parts, *over, *key])


def against_time(points: Mapping[str, tuple[float, float]], unit: str) -> Html:
    """Return accuracy against time as numbered points, and a line along those that none beats in both.

    Args:
        points: Time and accuracy by name, in the order in which they are numbered.
        unit: Of the time.
    """
    start, end, top, bottom = 40.0, svg.WIDTH - 20.0, 30.0, 280.0
    times, shares = zip(*points.values(), strict=True)
    low, high = min(times), max(times)
    wide = low > 0 and high >= svg.WIDE * low
    along = svg.logarithmic(low, high, start, end) if wide else svg.linear(low, high, start, end)
    height = svg.linear(100 * min(shares), 100 * max(shares), bottom, top)
    parts = svg.horizontal(along, top, bottom, start, end, f"{unit} for a target and seed")
    parts += svg.vertical(height, top, bottom, start, end, "accuracy (%)")
    places = {name: (along.place(time), height.place(100 * share)) for name, (time, share) in points.items()}
    front = [places[name] for name in unbeaten(points)]
    steps = [each for one, two in itertools.pairwise(front) for each in (one, (two[0], one[1]))] + front[-1:]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in steps)
    parts.append(
        f'<polyline points="{path}" style="fill:none;stroke:currentColor;stroke-opacity:.4;stroke-width:1.5"/>'
    )
    taken: list[tuple[float, float]] = []
    for number, (name, (x, y)) in enumerate(places.items(), 1):
        parts.append(svg.mark(x, y, 0, f"{name}: {100 * points[name][1]:.1f} % in {points[name][0]:.1f} {unit}"))
        a, b = _free(x, y, taken, list(places.values()))
        taken.append((a, b))
        if math.hypot(a - x, b - y) > 16:
            parts.append(svg.line(x, y, a, b, strength=0.4))
        parts.append(svg.text(a, b + 4, str(number), anchor="middle"))
    return svg.drawing(bottom + 40, parts)


def unbeaten(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return those that no other beats in both time and accuracy, the fastest first.

    >>> unbeaten({"slow": (9.0, 0.8), "good": (5.0, 0.9), "fast": (1.0, 0.7)})
    ['fast', 'good']
    """
    found: list[str] = []
    for name in sorted(points, key=lambda name: (points[name][0], -points[name][1])):
        if not found or points[name][1] > points[found[-1]][1]:
            found.append(name)
    return found


def arrow(column: str) -> str:
    """Return the head of a column for people.

    >>> arrow("-> mm"), arrow("Avg")
    ('→ mm', 'average')
    """
    return "average" if column == "Avg" else column.replace("->", "→")


def _free(
    x: float, y: float, taken: Sequence[tuple[float, float]], points: Sequence[tuple[float, float]]
) -> tuple[float, float]:
    """Return the middle of a place near a point where a number would touch neither another one nor a point."""
    best, least = (x, y), math.inf
    for far, turn in itertools.product((13.0, 22.0, 32.0), range(8)):
        a, b = x + far * math.cos(turn * math.pi / 4), y + far * math.sin(turn * math.pi / 4)
        touched = sum(abs(a - p) < 16 and abs(b - q) < 12 for p, q in taken)
        touched += sum(abs(a - p) < 12 and abs(b - q) < 9 for p, q in points)
        if touched < least:
            best, least = (a, b), touched
    return best


def _along(labels: Sequence[str], start: float, end: float) -> tuple[dict[str, float], svg.Scale]:
    """Return where values of a parameter stand: numbers on a scale, words and powers of ten beside 0 side by side."""
    try:
        numbers = {label: float(label) for label in labels}
    except ValueError:
        return svg.side_by_side(labels, start, end)
    low, high = min(numbers.values()), max(numbers.values())
    small = min((value for value in numbers.values() if value > 0), default=high)
    if len(labels) < 2 or (low <= 0 and high > svg.WIDE * small) or not all(map(math.isfinite, numbers.values())):
        return svg.side_by_side(labels, start, end)
    wide = low > 0 and high >= svg.WIDE * low
    scale = svg.logarithmic(low, high, start, end) if wide else svg.linear(low, high, start, end)
    own = svg.Scale(scale.place, tuple((value, label) for label, value in numbers.items()))
    return {label: scale.place(value) for label, value in numbers.items()}, own


def _drawn(entry: Entry | None) -> bool:
    return entry is not None and entry.mean is not None


def _reach(entry: Entry) -> list[float]:
    mean, std = entry.mean or 0.0, entry.std or 0.0
    return [mean - std, mean + std, *(entry.paper or ())[:1]]


def _margin(names: Sequence[str]) -> float:
    return min(0.46 * svg.WIDTH, 1.1 * svg.LETTER * max(map(len, names)) + 14)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"
