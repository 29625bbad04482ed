"""The prototypes' adjacency matrix by domain and class (the paper's Fig. 5), of one run or of several side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from graphmsda.errors import UserError
from graphmsda.figures import style
from graphmsda.figures.runs import check_alike, name_panels
from graphmsda.graphs.constraints import global_alignment
from graphmsda.graphs.prototypes import distance_scale
from graphmsda.graphs.relation import prototype_graph
from graphmsda.methods.crf import CRF
from graphmsda.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

MOST_CELLS = 250  # in a row: with more, a cell is smaller than a printed dot
SMALLEST = 3.6  # points: class names are left out where they would be smaller


def adjacency_matrix(run: Run) -> tuple[Tensor, float]:
    r"""Return eq. 4 among the prototypes of a CRF run, ``(DK, DK)`` by domain, then class, and its eq. 13.

    A prototype that never met a sample has neither row nor column: its entries are NaN.
    """
    method = run.method
    if not isinstance(method, CRF):
        raise UserError(
            f"{run.path}: is a run of {run.about['method']}, which has no adjacency matrix; give runs of --method crf"
        )
    with torch.inference_mode():
        scale = distance_scale(method.prototypes, method.seen, reading=method.scale)
        nodes, seen = method.prototypes.flatten(0, 1), method.seen.flatten()
        graph = prototype_graph(nodes, sigma=method.sigma, scale=scale, seen=seen).cpu()
        misfit = float(global_alignment(graph, method.domains, seen=method.seen.cpu()))
        seen = seen.cpu()
        return graph.masked_fill(~(seen[:, None] & seen), torch.nan), misfit


def pooled(graph: Tensor, domains: int, most: int = MOST_CELLS) -> tuple[Tensor, int]:
    """Return the largest value of each group of neighbouring classes, and the size of the groups.

    In a matrix of thousands of rows the lines of equal classes are thinner than a printed dot and a mean over such a
    dot shows nothing of them; the largest value keeps them.

    >>> pooled(torch.eye(4), 2, most=2)
    (tensor([[1., 0.],
            [0., 1.]]), 2)
    """
    classes = len(graph) // domains
    size = math.ceil(classes / max(1, most // domains))
    groups = math.ceil(classes / size)
    blocks = torch.full((domains, groups * size, domains, groups * size), -torch.inf)
    blocks[:, :classes, :, :classes] = graph.nan_to_num(-torch.inf).view(domains, classes, domains, classes)
    largest = blocks.view(domains, groups, size, domains, groups, size).amax((2, 5))
    return largest.masked_fill(largest == -torch.inf, torch.nan).reshape(domains * groups, domains * groups), size


def draw(runs: Sequence[Run], *, labels: Sequence[str] | None = None, width: float | None = None) -> Figure:
    """Draw a matrix for each run in one scale; with more than three, in rows of three.

    Args:
        runs: Finished CRF runs of one task.
        labels: What to call them.
        width: Inches; by default one column of a journal, or both for several runs.
    """
    check_alike(runs, "matrices side by side")
    found = [adjacency_matrix(run) for run in runs]
    columns = min(3, len(runs))
    rows = math.ceil(len(runs) / columns)
    width = width or (style.COLUMN if columns == 1 else style.PAGE)
    panel = (width - 0.9) / columns
    figure = style.new_figure(width, rows * (panel + 0.75) + 0.1, square=True)
    grid = figure.subplots(rows, columns, squeeze=False)
    size, image = 1, None
    for number, (axes, name) in enumerate(zip(grid.flat, name_panels(runs, labels), strict=False)):
        graph, misfit = found[number]
        cells, size = pooled(graph, len(runs[number].domains))
        image = draw_matrix(axes, cells, runs[number], points=72 * panel, named=number % columns == 0)
        title = rf"{name}" + "\n" + rf"$L_{{global}}$ = {misfit:.3f}"
        style.letter(axes, number, title) if len(runs) > 1 else axes.set_title(title)
    for axes in grid.flat[len(runs) :]:
        axes.set_axis_off()
    assert image is not None
    text = "adjacency" if size == 1 else f"adjacency, the largest of {size} × {size} classes"
    figure.colorbar(image, ax=grid, label=text, aspect=30, pad=0.015)
    return style.fit_height(figure)


def draw_matrix(axes: Axes, cells: Tensor, run: Run, *, points: float, named: bool) -> ScalarMappable:
    """Draw one matrix with a line between domains, and class names where they have room.

    Args:
        axes: Where.
        cells: The matrix.
        run: Whose it is.
        points: Width of the matrix on paper.
        named: Whether domains are named on the left too.
    """
    domains, side = len(run.domains), len(cells)
    block = side // domains
    image = style.draw_cells(axes, cells.numpy(), 1)
    centres = [block * (place + 0.5) - 0.5 for place in range(domains)]
    names = [style.plain(style.short(name, 16)) for name in run.domains]
    for place in range(1, domains):
        axes.axhline(place * block - 0.5, color="0.25", linewidth=0.6)
        axes.axvline(place * block - 0.5, color="0.25", linewidth=0.6)
    cell = points / side
    classes = list(run.classes) * domains
    fits = block == len(run.classes) and cell >= SMALLEST and max(map(len, run.classes)) <= 2
    if fits:
        small = {"which": "minor", "length": 0, "labelsize": min(6.0, 0.82 * cell), "pad": 1}
        axes.set_xticks(range(side), classes, minor=True)
        axes.set_yticks(range(side), classes, minor=True)
        axes.tick_params(axis="both", **small)
    crowded = max(map(len, names)) * 7 * 0.6 > points / domains  # names would run into each other
    distance = 1 + min(6.0, cell) if fits else 2
    slant: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(centres, names, **(slant if crowded else {}))
    axes.set_yticks(centres, names if named else [""] * domains)
    axes.tick_params(axis="x", length=0, pad=distance)
    axes.tick_params(axis="y", length=0, pad=distance + 3)
    return image
