"""The little that a study's charts need to be drawn: scales, axes, marks and a legend, as SVG that suits any page.

Charts take the page's own colours, so they are right in light, dark and print. They are narrow on purpose: what is
drawn 420 wide can still be read on a telephone. Nothing in them needs a script.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from graphmsda.report.parts import Html

WIDTH = 420
LETTER = 6.6  # about how wide a letter of 12 units is; bold ones take a tenth more
WIDE = 8.0  # a ratio of values from which an axis is logarithmic
COLOURS = tuple(f"var(--c{place})" for place in (0, 5, 2, 3, 6, 7, 1))  # of the page, neighbours far apart
DASHES = ("", "6 3", "2 3", "8 3 2 3", "4 2", "1 3", "10 4")
MARKS = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "M-3.6,-3.6h7.2v7.2h-7.2z",
    "M0,-4.8L4.6,3.6H-4.6z",
    "M0,-5L5,0L0,5L-5,0z",
    "M0,4.8L4.6,-3.6H-4.6z",
    "M-4.5,-1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3z",
    "M-4,-4L4,4M4,-4L-4,4",
)


def drawing(height: float, parts: Sequence[str]) -> Html:
    """Return a whole drawing."""
    return Html(
        f'<svg class="chart" viewBox="0 0 {WIDTH:g} {height:g}" font-size="12" aria-hidden="true" '
        f'style="width:100%;max-width:{1.35 * WIDTH:g}px">' + "".join(parts) + "</svg>"
    )


def text(x: float, y: float, content: str, *, anchor: str = "start", bold: bool = False, faint: bool = False) -> str:
    """Return a text; `y` is the line it stands on."""
    look = (' font-weight="600"' if bold else "") + (' fill-opacity="0.7"' if faint else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{look}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, *, width: float = 1, strength: float = 1, dash: str = "") -> str:
    """Return a line in the colour of the text; `strength` is how opaque it is."""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="currentColor" stroke-width="{width:g}" '
        f'stroke-opacity="{strength:g}"{dashed}/>'
    )


def mark(x: float, y: float, number: int = 0, told: str = "", *, hollow: bool = False) -> str:
    """Return the mark of the line of a number; `told` appears where the pointer rests on it."""
    colour, shape = COLOURS[number % len(COLOURS)], MARKS[_turn(number)]
    fill = "none" if hollow or _turn(number) == len(MARKS) - 1 else colour
    title = f"<title>{escape(told)}</title>" if told else ""
    return (
        f'<path class="mark" d="{shape}" transform="translate({x:.1f},{y:.1f})" '
        f'style="fill:{fill};stroke:{colour};stroke-width:1.6">{title}</path>'
    )


def curve(points: Sequence[tuple[float, float]], number: int) -> str:
    """Return the line of a number through some points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = DASHES[_turn(number)]
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    colour = COLOURS[number % len(COLOURS)]
    return f'<polyline points="{path}" style="fill:none;stroke:{colour};stroke-width:2"{dashed}/>'


def band(points: Sequence[tuple[float, float, float]], number: int) -> str:
    """Return the area between two lines: x, low y and high y."""
    around = [(x, low) for x, low, _ in points] + [(x, high) for x, _, high in reversed(points)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in around)
    return f'<polygon points="{path}" style="fill:{COLOURS[number % len(COLOURS)]};fill-opacity:0.15"/>'


def legend(names: Sequence[str], top: float) -> tuple[list[str], float]:
    """Return what tells lines apart, in as many columns as there is room for, and how high that is."""
    cell = 34 + LETTER * max(map(len, names), default=0)
    columns = max(1, int((WIDTH - 8) // cell))
    parts = []
    for number, name in enumerate(names):
        x, y = 8 + cell * (number % columns), top + 18 * (number // columns) + 12
        parts += [curve([(x, y - 4), (x + 24, y - 4)], number), mark(x + 12, y - 4, number), text(x + 30, y, name)]
    return parts, 18 * math.ceil(len(names) / columns) + 4


@dataclass(frozen=True)
class Scale:
    """From values to places, with the values to write at the axis and what to write."""

    place: Callable[[float], float]
    ticks: tuple[tuple[float, str], ...]


def linear(low: float, high: float, start: float, end: float, count: int = 6) -> Scale:
    """Return a scale that has some room at either end.

    >>> scale = linear(0.0, 10.0, 0, 100)
    >>> [label for _, label in scale.ticks]
    ['0', '2', '4', '6', '8', '10']
    """
    room = 0.04 * (high - low) or 1.0
    low, high = low - room, high + room
    step = _step((high - low) / count)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = tuple((number * step, f"{number * step:.{digits}f}") for number in range(first, last + 1))
    return Scale(lambda value: start + (value - low) / (high - low) * (end - start), ticks)


def logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """Return a scale of ratios for values above 0.

    >>> scale = logarithmic(0.5, 20.0, 0, 100)
    >>> [label for _, label in scale.ticks]
    ['0.5', '1', '2', '5', '10', '20']
    """
    begin, stop = math.log(low / 1.15), math.log(high * 1.15)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 500 else (1,)
    values = [factor * 10.0**power for power in powers for factor in steps]
    ticks = tuple((value, f"{value:g}") for value in values if begin <= math.log(value) <= stop)
    return Scale(lambda value: start + (math.log(value) - begin) / (stop - begin) * (end - start), ticks)


def side_by_side(labels: Sequence[str], start: float, end: float) -> tuple[dict[str, float], Scale]:
    """Return places at equal distances for labels, and the scale that writes them."""
    step = (end - start) / max(1, len(labels))
    places = {label: start + (number + 0.5) * step for number, label in enumerate(labels)}
    return places, Scale(lambda value: value, tuple((place, label) for label, place in places.items()))


def horizontal(scale: Scale, top: float, bottom: float, start: float, end: float, title: str) -> list[str]:
    """Return an axis below a chart, with a faint line at every value; labels that would touch are left out."""
    parts = [line(start, bottom, end, bottom, strength=0.6)]
    free = -math.inf
    for value, label in scale.ticks:
        x, half = scale.place(value), LETTER * len(label) / 2
        parts.append(line(x, top, x, bottom, strength=0.12))
        if x - half > free:
            parts.append(text(x, bottom + 16, label, anchor="middle"))
            free = x + half + 4
    return [*parts, text((start + end) / 2, bottom + 34, title, anchor="middle", faint=True)]


def vertical(scale: Scale, top: float, bottom: float, start: float, end: float, title: str) -> list[str]:
    """Return an axis left of a chart, its title above."""
    parts = [text(0, top - 10, title, faint=True)]
    for value, label in scale.ticks:
        y = scale.place(value)
        parts += [line(start, y, end, y, strength=0.12), text(start - 6, y + 4, label, anchor="end")]
    return parts


def _turn(number: int) -> int:
    # From the eighth on, the mark moves on against the colour, so that pairs of them differ for 49.
    return (number + number // len(COLOURS)) % len(MARKS)


def _step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
