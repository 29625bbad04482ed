"""Runs made without training, and what can be seen of a drawn figure."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure
from matplotlib.text import Text

from graphmsda.backbones import build_backbone
from graphmsda.methods import build_method
from graphmsda.run import Run


def untrained(
    method: str,
    *,
    domains: tuple[str, ...] = ("a", "b", "t"),
    classes: tuple[str, ...] = ("0", "1", "2", "3"),
    features: int = 6,
    seed: int = 0,
    **parameters: Any,
) -> Run:
    """A run whose prototypes are random, the same class lying close in all domains."""
    torch.manual_seed(seed)
    backbone = build_backbone("mlp", [features], len(domains), dropout=0.0)
    made = build_method(method, backbone, len(classes), len(domains), parameters).eval()
    if hasattr(made, "prototypes"):
        shape = made.prototypes.shape
        centres = torch.randn(shape[1:])
        made.prototypes.data.copy_(centres + 0.2 * torch.randn(shape))  # type: ignore[union-attr]
        made.seen.fill_(True)  # type: ignore[operator]
    about = {
        "method": method,
        "classes": list(classes),
        "domains": list(domains),
        "shape": [features],
        "settings": {"method": method, "seed": seed, "parameters": parameters},
        "data": {"domains": list(domains)},
    }
    return Run(Path(f"runs/{method}-{seed}"), made, about, torch.device("cpu"))


def cells(figure: Figure, panel: int = 0) -> ScalarMappable:
    """The matrix of a panel, be it drawn in squares or in dots."""
    axes = figure.axes[panel]
    (drawn,) = [*axes.images, *(one for one in axes.collections if isinstance(one, QuadMesh))]
    return drawn


def texts(figure: Figure) -> list[Text]:
    """All that can be read on a figure."""
    figure.draw_without_rendering()
    axis = [one for axes in figure.axes for one in (axes.xaxis, axes.yaxis)]
    ticks = [tick for one in axis for tick in (*one.get_major_ticks(), *one.get_minor_ticks())]
    drawn = {id(tick) for one in axis for tick in one._update_ticks()}  # type: ignore[attr-defined]
    # Ticks outside of the limits keep their labels, which nobody sees.
    unseen = {id(label) for tick in ticks if id(tick) not in drawn for label in (tick.label1, tick.label2)}
    found = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [text for text in found if id(text) not in unseen]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in texts(figure)]


def clashes(figure: Figure) -> list[str]:
    """Return pairs of texts that overlap by more than a hair, and texts that leave the figure."""
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    found = texts(figure)
    boxes = [(text, text.get_window_extent(renderer)) for text in found]
    told = []
    for (one, a), (two, b) in itertools.combinations(boxes, 2):
        if one.get_rotation() % 90 or two.get_rotation() % 90:
            continue  # the boxes of slanted words overlap where the words do not
        wide = min(a.x1, b.x1) - max(a.x0, b.x0)
        high = min(a.y1, b.y1) - max(a.y0, b.y0)
        if wide > 1 and high > 1 and one is not two:
            told.append(f"{one.get_text()!r} on {two.get_text()!r}")
    sheet = figure.bbox
    told += [
        f"{text.get_text()!r} leaves the sheet"
        for text, box in boxes
        if box.x0 < -1 or box.y0 < -1 or box.x1 > sheet.width + 1 or box.y1 > sheet.height + 1
    ]
    return told
