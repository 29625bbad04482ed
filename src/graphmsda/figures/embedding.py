"""Embeddings of some domains in the plane by t-SNE (the paper's Fig. 6), before and after adaptation."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphmsda.errors import UserError
from graphmsda.figures import style
from graphmsda.figures.runs import Shown, check_alike, embed_samples, name_panels
from graphmsda.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure
    from matplotlib.path import Path as Outline

SHAPES = ("s", "o", "D", "p", "8", "h", "^")  # of the target, then of sources: with room for a letter inside
GLYPHS = string.ascii_uppercase + string.digits + string.ascii_lowercase  # capitals are of one height
DARK, LIGHT = 32.0, 85.0  # lightness of the target and of the source that differs most from it
MOST_CLASSES = 10
SIZE = 30.0  # of a point, square points
LEAST = 5  # points, below which t-SNE has nothing to say


def plane(points: Tensor, seed: int = 0) -> NDArray[np.float64]:
    """Return a place in the plane for each embedding: t-SNE from the first two principal components.

    Van der Maaten and Hinton, "Visualizing Data using t-SNE" (JMLR 2008). Shapes: (N, d) -> (N, 2). Distances between
    clusters and their sizes mean little there; what lies next to what means much.
    """
    from sklearn.manifold import TSNE

    if len(points) < LEAST:
        raise UserError(f"there are {len(points)} samples to show; t-SNE needs {LEAST}: raise --count")
    wide = points.double()
    spread = float((wide - wide.mean(0)).square().sum(1).mean().sqrt())
    if not spread > 0:
        raise UserError("all embeddings are the same point; there is nothing to show of this run")
    perplexity = min(30.0, (len(points) - 1) / 3)
    tsne = TSNE(init="pca", perplexity=perplexity, random_state=seed, learning_rate="auto")
    placed: NDArray[np.float64] = tsne.fit_transform((wide / spread).numpy()).astype(np.float64)
    return placed


def glyphs_of(classes: Sequence[str]) -> list[str]:
    """Return a sign for each class: its name where all names are one or two letters long, else a letter.

    >>> glyphs_of(["0", "1"]), glyphs_of(["mug", "chair"])
    (['0', '1'], ['A', 'B'])
    """
    if max(map(len, classes)) <= 2 and all(name.isalnum() for name in classes):
        return list(classes)
    return [GLYPHS[number % len(GLYPHS)] for number in range(len(classes))]


def draw(
    runs: Sequence[Run],
    shown: Sequence[Shown],
    *,
    labels: Sequence[str] | None = None,
    seed: int = 0,
    width: float | None = None,
) -> Figure:
    """Draw a panel for each run with the same samples in all.

    A sign inside each point tells its class, as its hue does; shape and lightness tell its domain. So nothing is lost
    in grey or to colour-blind eyes.

    Args:
        runs: Finished runs of one task, say Source-only first.
        shown: Samples of some domains, the target last.
        labels: What to call the runs.
        seed: Seed of t-SNE.
        width: Inches.
    """
    check_alike(runs, "embeddings side by side")
    if len(shown) > len(SHAPES):
        raise UserError(f"--domains: {len(shown)} were given; give up to {len(SHAPES)}, which is what shapes can tell")
    y = torch.cat([part.y for part in shown])
    numbers = sorted(set(y.tolist()))
    names = [runs[0].classes[number] for number in numbers]
    glyphs = glyphs_of(names)
    place = {number: order for order, number in enumerate(numbers)}
    kind = [(domain, place[label]) for domain, part in enumerate(shown) for label in part.y.tolist()]
    columns = min(3, len(runs))
    rows = math.ceil(len(runs) / columns)
    width = width or (style.COLUMN if columns == 1 else style.PAGE)
    panel = width / columns
    keyed = glyphs != names
    lines = math.ceil(len(names) / max(1, int(width / 1.2))) if keyed else 0
    figure = style.new_figure(width, rows * (panel + 0.2) + 0.35 + 0.16 * lines, square=True)
    grid = figure.subplots(rows, columns, squeeze=False)
    for number, (axes, run, name) in enumerate(zip(grid.flat, runs, name_panels(runs, labels), strict=False)):
        parts = [embed_samples(run, part.x, statistics_of(run, part)) for part in shown]
        draw_points(axes, plane(torch.cat(parts), seed), kind, glyphs, len(shown))
        style.letter(axes, number, name) if len(runs) > 1 else axes.set_title(name)
    for axes in grid.flat[len(runs) :]:
        axes.set_axis_off()
    _add_legend(figure, shown, names if keyed else [], glyphs, width)
    return style.fit_height(figure)


def draw_points(
    axes: Axes, places: NDArray[np.float64], kind: Sequence[tuple[int, int]], glyphs: Sequence[str], domains: int
) -> None:
    """Draw points in a random order, so that no domain lies on top of another everywhere.

    Args:
        axes: Where.
        places: Points in the plane.
        kind: Domain and class of each.
        glyphs: Sign of each class.
        domains: How many there are; the last is the target.
    """
    order = np.random.default_rng(0).permutation(len(places))
    points = _collection(places[order], [kind[place] for place in order], glyphs, domains)
    points.set_offset_transform(axes.transData)
    axes.add_collection(points, autolim=False)
    axes.grid(False)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color("0.7")
    axes.set_xticks([])
    axes.set_yticks([])
    low, high = places.min(0), places.max(0)
    centre, half = (low + high) / 2, float((high - low).max()) / 2 * 1.06
    axes.set(xlim=(centre[0] - half, centre[0] + half), ylim=(centre[1] - half, centre[1] + half), aspect="equal")


def looks(domain: int, domains: int) -> tuple[str, float]:
    """Return shape and lightness of a domain; the last, which is the target, is dark and square.

    >>> looks(1, 2), looks(0, 2)
    (('s', 32.0), ('o', 85.0))
    """
    if domain == domains - 1:
        return SHAPES[0], DARK
    step = (LIGHT - DARK) / max(1, domains - 1)
    return SHAPES[domain + 1], LIGHT - step * domain


def statistics_of(run: Run, part: Shown) -> int:
    """Return the domain whose statistics read the samples in a run; one of all sources in one has them as its first."""
    if part.name == run.domains[-1]:
        return len(run.domains) - 1
    return run.domains.index(part.name) if part.name in run.domains else 0


def _collection(
    places: NDArray[np.float64], kind: Sequence[tuple[int, int]], glyphs: Sequence[str], domains: int
) -> PathCollection:
    """Return all points, each a shape followed at once by the sign inside it: a later point hides both."""
    from matplotlib.collections import PathCollection
    from matplotlib.transforms import IdentityTransform

    outlines: list[Outline] = []
    colours: list[Any] = []
    edges: list[Any] = []
    for domain, label in kind:
        shape, lightness = looks(domain, domains)
        fill = style.with_lightness(style.hue(label, len(glyphs)), lightness)
        dark = lightness < 55
        outlines += [_outline(shape), _outline(rf"$\mathdefault{{{glyphs[label]}}}$", 0.62)]
        colours += [fill, (1.0, 1.0, 1.0) if dark else (0.0, 0.0, 0.0)]
        edges += [(1.0, 1.0, 1.0, 0.9) if dark else (*style.with_lightness(fill, 45.0), 1.0), (0, 0, 0, 0)]
    doubled = np.repeat(places, 2, axis=0)
    points = PathCollection(
        outlines, sizes=[SIZE], facecolors=colours, edgecolors=edges, linewidths=0.35, offsets=doubled
    )
    points.set_transform(IdentityTransform())  # their size is that on paper; their place is that in the panel
    return points


def _outline(marker: str, size: float = 1.0) -> Outline:
    from matplotlib.markers import MarkerStyle
    from matplotlib.transforms import Affine2D

    one = MarkerStyle(marker)
    return one.get_path().transformed(one.get_transform() + Affine2D().scale(size))


def _add_legend(
    figure: Figure, shown: Sequence[Shown], names: Sequence[str], glyphs: Sequence[str], width: float
) -> None:
    from matplotlib.lines import Line2D

    entries = []
    for domain, part in enumerate(shown):
        shape, lightness = looks(domain, len(shown))
        grey = style.with_lightness((0.5, 0.5, 0.5), lightness)
        role = "target" if domain == len(shown) - 1 else "source"
        text = f"{style.plain(part.name)} ({role}{', classes as predicted' if part.guessed else ''})"
        entries.append(Line2D([], [], linestyle="", marker=shape, markersize=6, markerfacecolor=grey,
                              markeredgecolor="0.3", markeredgewidth=0.5, label=text))  # fmt: skip
    legend = figure.legend(handles=entries, loc="outside lower center", ncols=min(len(entries), int(width / 1.4)),
                           handletextpad=0.2)  # fmt: skip
    if names:
        keys = [
            Line2D([], [], linestyle="", marker=rf"$\mathdefault{{{glyph}}}$", markersize=5, markeredgewidth=0,
                   color=style.with_lightness(style.hue(number, len(glyphs)), 40.0),
                   label=style.plain(style.short(name, 16)))
            for number, (name, glyph) in enumerate(zip(names, glyphs, strict=True))
        ]  # fmt: skip
        figure.legend(handles=keys, loc="outside upper center", ncols=max(1, int(width / 1.2)), handletextpad=0.2)
    legend.set_zorder(5)
