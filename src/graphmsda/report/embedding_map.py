"""The embedding map: samples of all domains in the plane, static as SVG and lively with Bokeh."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from graphmsda.errors import UserError
from graphmsda.figures import style
from graphmsda.figures.embedding import plane
from graphmsda.graphs.prototypes import squared_distances
from graphmsda.report.material import Material, Seen
from graphmsda.report.page import Section
from graphmsda.report.parts import Html, as_html, figure, paragraph
from graphmsda.report.pictures import data_uri, thumbnail

POINTS = 600  # of all domains: t-SNE takes seconds, and thumbnails of more would make the page heavy
MOST_CLASSES = 20
THUMB = 44  # pixels
# The target first; outlines of each inside a square of two by two around zero, and what Bokeh calls them.
SHAPES = (
    ("circle", "M-1,0a1,1 0 1,0 2,0a1,1 0 1,0 -2,0"),
    ("square", "M-.85-.85h1.7v1.7h-1.7z"),
    ("triangle", "M0-1.1L1,.8H-1z"),
    ("diamond", "M0-1.25L1,0L0,1.25L-1,0z"),
    ("inverted_triangle", "M0,1.1L1-.8H-1z"),
    ("plus", "M-.4-1.1h.8v.7h.7v.8h-.7v.7h-.8v-.7h-.7v-.8h.7z"),
    ("hex", "M-1,0L-.5-.9H.5L1,0L.5,.9H-.5z"),
    ("star", "M0-1.3L.38-.4L1.3-.35L.6.25L.8,1.1L0,.6L-.8,1.1L-.6.25L-1.3-.35L-.38-.4z"),
)


@dataclass(frozen=True)
class Spot:
    """A sample on the map: its domain's place in the list, its place in that domain, and its class."""

    domain: int
    place: int
    label: int


def embedding_map(material: Material) -> Section:
    """Return the section with the map."""
    title, target = "Embedding map", material.target
    assert target is not None
    seen = [*material.sources, target]
    spots = choose(material, seen)
    try:
        places = plane(torch.stack([seen[spot.domain].embedding[spot.place] for spot in spots]))
    except UserError as error:
        return Section(title, paragraph(f"There is no map: {error}."))
    guessed = target.y is None
    text = f"{len(spots)} samples of {', '.join(part.name for part in seen)}."
    if material.sources:
        share = f"{100 * neighbours_agree(seen):.0f} %"
        text += (
            f" The nearest source sample of {share} of the {target.name} samples looked at has the class that is "
            "predicted for them."
        )
    caption = (
        "Neighbours by t-SNE: what lies next to what means much, distances between groups little. Colour: class"
        f"{' (of the target: as predicted)' if guessed else ''}; shape: domain; the target's points are filled. {text}"
    )
    live = _live(material, seen, spots, places)
    body = _style(material, seen, spots) + figure(
        _static(material, seen, spots, places), caption, description=text, live=live, legend=_legend(seen)
    )
    lead = (
        "Move over a point to see it; zoom with the buttons, drag to move; with the keyboard, + and - zoom and the "
        "arrow keys go from point to point."
    )
    return Section(title, body, Html(f'<span class="needs-script">{as_html(lead)}</span>'))


def choose(material: Material, seen: list[Seen]) -> list[Spot]:
    """Return the samples to show: as many of each domain, of the classes that are predicted most."""
    target = seen[-1]
    often = torch.bincount(target.best, minlength=len(material.run.classes)).argsort(descending=True, stable=True)
    classes = set(often[:MOST_CLASSES].tolist())
    each = max(20, POINTS // len(seen))
    spots = []
    for domain, part in enumerate(seen):
        labels = (part.best if part.y is None else part.y).tolist()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(domain)).tolist()
        chosen = [Spot(domain, place, labels[place]) for place in order if labels[place] in classes]
        spots += chosen[:each]
    return spots


def neighbours_agree(seen: list[Seen]) -> float:
    """Return the share of target samples whose nearest source sample has the predicted class."""
    target, sources = seen[-1], seen[:-1]
    points = torch.cat([part.embedding for part in sources])
    labels = torch.cat([part.y for part in sources if part.y is not None])
    parts = torch.split(target.embedding, 512)
    nearest = torch.cat([squared_distances(part, points).argmin(1) for part in parts])
    return float((labels[nearest] == target.best).float().mean())


def _colour(label: int, labels: list[int]) -> str:
    red, green, blue = style.with_lightness(style.hue(labels.index(label), len(labels)), 58.0)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def _shape(domain: int, domains: int) -> tuple[str, str]:
    return SHAPES[0] if domain == domains - 1 else SHAPES[1 + domain % (len(SHAPES) - 1)]


def _names(
    material: Material, spots: list[Spot], places: NDArray[np.float64], target: int
) -> list[tuple[str, float, float]]:
    """Return the names of classes and where to write them: at the target's point that is most in their midst.

    Of names that would overlap on a wide screen, the class with more points keeps its own.
    """
    members: dict[int, list[int]] = {}
    for number, spot in enumerate(spots):
        members.setdefault(spot.label, []).append(number)
    step = (places.max(0) - places.min(0)).clip(min=1e-9) / (880, 560)  # of a pixel
    found: list[tuple[str, float, float]] = []
    for label, every in sorted(members.items(), key=lambda item: -len(item[1])):
        own = [number for number in every if spots[number].domain == target] or every
        points = places[own]
        x, y = points[int(np.linalg.norm(points[:, None] - points[None], axis=2).sum(1).argmin())].tolist()
        name = style.short(material.run.classes[label], 14)
        room = [4.5 * (len(name) + len(other)) * step[0] for other, _, _ in found]
        if all(abs(x - a) > wide or abs(y - b) > 18 * step[1] for wide, (_, a, b) in zip(room, found, strict=True)):
            found.append((name, x, y))
    return found


def _static(material: Material, seen: list[Seen], spots: list[Spot], places: NDArray[np.float64]) -> Html:
    labels = sorted({spot.label for spot in spots})
    low, high = places.min(0), places.max(0)
    scale = 660 / float(max(high - low))
    spread = 20 + (places - low) * scale
    height = 40 + float(high[1] - low[1]) * scale
    marks, drawn = [], []
    for domain, part in enumerate(seen):
        marks.append(f'<path id="map-{domain}" d="{_shape(domain, len(seen))[1]}" transform="scale(4.2)"/>')
        for number, spot in enumerate(spots):
            if spot.domain == domain:
                last = part is seen[-1]
                x, y = spread[number][0], height - spread[number][1]
                look = 'stroke="var(--ink)" stroke-width=".25"' if last else 'opacity=".5"'
                fill = _colour(spot.label, labels)
                drawn.append(f'<use href="#map-{domain}" x="{x:.0f}" y="{y:.0f}" fill="{fill}" {look}/>')
    names = [
        f'<text x="{20 + (x - low[0]) * scale:.0f}" y="{height - 20 - (y - low[1]) * scale:.0f}">{as_html(name)}</text>'
        for name, x, y in _names(material, spots, places, len(seen) - 1)
    ]
    return Html(
        f'<svg class="map" viewBox="0 0 700 {height:.0f}" aria-hidden="true"><defs>{"".join(marks)}</defs>'
        f"{''.join(drawn)}<g class='names'>{''.join(names)}</g></svg>"
    )


def _legend(seen: list[Seen]) -> Html:
    """Return which shape is which domain; a script makes switches of it."""
    key = []
    for domain, part in enumerate(seen):
        sign = f'<svg viewBox="-1.5 -1.5 3 3" width="13" height="13"><path d="{_shape(domain, len(seen))[1]}"/></svg>'
        role = " (target)" if part is seen[-1] else ""
        key.append(f'<li data-part="domain-{domain}">{sign}{as_html(part.name + role)}</li>')
    return Html(f'<ul class="key">{"".join(key)}</ul>')


def _style(material: Material, seen: list[Seen], spots: list[Spot]) -> Html:
    """Return the thumbnails of all points as one picture that the page's style knows by a name."""
    if not material.is_images:
        return Html()
    from PIL import Image

    columns = math.ceil(math.sqrt(len(spots)))
    sheet = Image.new("RGB", (columns * THUMB, math.ceil(len(spots) / columns) * THUMB), "#808080")
    for number, spot in enumerate(spots):
        picture = thumbnail(seen[spot.domain].picture(spot.place), THUMB)
        scale = THUMB / max(picture.size)
        if scale > 1:
            picture = picture.resize(
                (round(picture.width * scale), round(picture.height * scale)), Image.Resampling.NEAREST
            )
        sheet.paste(picture, (number % columns * THUMB, number // columns * THUMB))
    return Html(
        f"<style>:root{{--sheet:url({data_uri(sheet)})}}"
        f".map-thumb{{width:{THUMB}px;height:{THUMB}px;background-image:var(--sheet)}}</style>"
    )


def _live(material: Material, seen: list[Seen], spots: list[Spot], places: NDArray[np.float64]) -> Any:
    from bokeh.models import ColumnDataSource, HoverTool, Range1d, TapTool
    from bokeh.plotting import figure as bokeh_figure

    labels = sorted({spot.label for spot in spots})
    columns = math.ceil(math.sqrt(len(spots)))
    low, high = places.min(0), places.max(0)
    edge = 0.05 * (
        high - low
    )  # what t-SNE makes has no scale of its own: the map may be stretched to what room there is
    (left, bottom), (right, top) = (low - edge).tolist(), (high + edge).tolist()
    plot = bokeh_figure(
        x_range=Range1d(left, right), y_range=Range1d(bottom, top), tools="pan,wheel_zoom,box_zoom,reset",
        active_scroll=None, toolbar_location="above", sizing_mode="stretch_width", height=600,
        background_fill_alpha=0, border_fill_alpha=0, outline_line_color="#888888", outline_line_alpha=0.4,
    )  # fmt: skip
    plot.toolbar.logo = None
    plot.axis.visible = False
    plot.grid.visible = False
    drawn: list[Any] = []
    for domain, part in enumerate(seen):
        last = domain == len(seen) - 1
        own = [number for number, spot in enumerate(spots) if spot.domain == domain]
        sheet = {
            "u": [number % columns * THUMB for number in own],
            "v": [number // columns * THUMB for number in own],
        }
        source = ColumnDataSource(
            {
                "x": places[own, 0].round(2).tolist(),
                "y": places[own, 1].round(2).tolist(),
                "colour": [_colour(spots[number].label, labels) for number in own],
                "told": [_told(material, part, spots[number].place) for number in own],
            }
            | (sheet if material.is_images else {})
        )
        drawn.append(
            plot.scatter(
                "x", "y", source=source, marker=_shape(domain, len(seen))[0], size=9 if last else 8,
                fill_color="colour",
                fill_alpha=1.0 if last else 0.35, line_color="#444444" if last else "colour",
                line_alpha=1.0 if last else 0.8, line_width=0.8, nonselection_fill_alpha=1.0 if last else 0.35,
                nonselection_line_alpha=0.8, name=f"domain-{domain}",
            )
        )  # fmt: skip
    chosen = ColumnDataSource({"x": [], "y": []})
    plot.scatter("x", "y", source=chosen, size=22, fill_alpha=0, line_color="#e5484d", line_width=3, name="ring")
    _write_names(plot, _names(material, spots, places, len(seen) - 1))
    thumb = (
        f'<div style="width:{THUMB}px;height:{THUMB}px;flex:none;border-radius:4px;background:var(--sheet) -@{{u}}px '
        '-@{v}px"></div>'
        if material.is_images
        else ""
    )
    tip = (
        f'<div style="display:flex;gap:8px;align-items:center;max-width:260px;color:#111">{thumb}<div>@told</div></div>'
    )
    plot.add_tools(HoverTool(renderers=drawn, tooltips=tip, point_policy="snap_to_data"), TapTool(renderers=drawn))
    return plot


def _write_names(plot: Any, names: list[tuple[str, float, float]]) -> None:
    from bokeh.models import ColumnDataSource

    texts, x, y = (list(column) for column in zip(*names, strict=True))
    source = ColumnDataSource({"x": x, "y": y, "name": texts})
    size = "17px" if max(map(len, texts)) <= 3 else "13px"
    plot.text("x", "y", text="name", source=source, text_align="center", text_baseline="middle", text_color="#111111",
              text_outline_color="#ffffff", text_font_style="bold", text_font_size=size)  # fmt: skip


def _told(material: Material, seen: Seen, place: int) -> str:
    classes = material.run.classes
    said = f"predicted {classes[int(seen.best[place])]}, {100 * float(seen.confidence[place]):.0f} %"
    truth = "" if seen.y is None else f"class {classes[int(seen.y[place])]}, "
    return f"{seen.name}: {truth}{said} ({seen.item(place)})"
