"""The joint posterior of domain and class, averaged over the queries of a class (the paper's Fig. 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from graphmsda.domains import EvalSet
from graphmsda.errors import UserError
from graphmsda.figures import style
from graphmsda.figures.runs import check_alike, chosen_classes, embed_samples, name_panels
from graphmsda.methods.mrf import MRF
from graphmsda.run import Run
from graphmsda.streaming import chunk_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

MOST_COLUMNS = 12  # classes shown each in a column of its own
MOST_CLASSES = 2  # the paper shows two
MOST_QUERIES = 2000


def check(runs: Sequence[Run], classes: Sequence[str] | None) -> None:
    """Refuse what cannot be drawn before any sample is read."""
    check_alike(runs, "posteriors side by side")
    chosen_classes(runs[0], classes, MOST_CLASSES)
    for run in runs:
        check_method(run)


def check_method(run: Run) -> MRF:
    """Return the run's method if it is one with a joint posterior."""
    if not isinstance(run.method, MRF):
        raise UserError(
            f"{run.path}: is a run of {run.about['method']}, which has no joint posterior of domain and class; give "
            "runs of --method mrf or mrf-plus"
        )
    return run.method


def class_posterior(run: Run, samples: EvalSet, number: int) -> tuple[Tensor, int]:
    r"""Return the mean over the queries of class `number` of eqs. 18-19, and how many queries that are.

    .. math:: P_k = \frac{1}{|Q_k|} \sum_{q \in Q_k} \big( p(y_d = m, y = k' \mid q) \big)_{m k'}

    Shapes: -> (D, K), which sums to 1.
    """
    method = check_method(run)
    rows = torch.nonzero(samples.y == number).flatten()[:MOST_QUERIES]
    if len(rows) == 0:
        raise UserError(f"{samples.name}: has no sample of class {run.classes[number]}; choose other --classes")
    total = torch.zeros(len(run.domains), len(run.classes), dtype=torch.float64)
    with torch.inference_mode():
        for part in torch.split(rows, chunk_size(samples.x.shape[1:], run.device)):
            joint = method.log_joint(embed_samples(run, samples.x[part]).to(run.device))
            total += joint.double().exp().sum(0).cpu()
    return total / len(rows), len(rows)


def columns_of(matrix: Tensor, number: int, most: int = MOST_COLUMNS) -> list[int]:
    """Return the classes to show: all, or those with most of the probability, `number` among them, in their order.

    >>> columns_of(torch.tensor([[0.1, 0.0, 0.6, 0.3]]), 1, most=3)
    [1, 2]
    """
    if matrix.shape[1] <= most:
        return list(range(matrix.shape[1]))
    order = matrix.sum(0).argsort(descending=True, stable=True).tolist()
    return sorted([number, *(place for place in order if place != number)][: most - 1])


def shown_part(matrix: Tensor, number: int, most: int = MOST_COLUMNS) -> tuple[Tensor, list[int]]:
    """Return the columns to show, with one more for the sum of all others where there are some, and their classes."""
    columns = columns_of(matrix, number, most)
    shown = matrix[:, columns]
    if len(columns) < matrix.shape[1]:
        shown = torch.cat([shown, (matrix.sum(1) - shown.sum(1))[:, None]], 1)
    return shown, columns


def draw(
    runs: Sequence[Run],
    samples: EvalSet,
    *,
    classes: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    width: float | None = None,
) -> Figure:
    """Draw a matrix for each class and run: domains are rows, classes columns, numbers are percent.

    Args:
        runs: Finished MRF runs of one task.
        samples: Labelled samples of the target.
        classes: Classes whose queries are averaged; by default the first two that `samples` has.
        labels: What to call the runs.
        width: Inches.
    """
    check(runs, classes)
    there = set(samples.y.tolist())
    numbers = chosen_classes(runs[0], classes, len(runs[0].classes))
    numbers = numbers if classes else [number for number in numbers if number in there][:MOST_CLASSES]
    found = [[class_posterior(run, samples, number) for number in numbers] for run in runs]
    names = name_panels(runs, labels)
    shown = min(MOST_COLUMNS, len(runs[0].classes))
    # Panels stand beside each other where a cell still has room for its number.
    beside = max(1, min(len(numbers), 24 // shown))
    rows = math.ceil(len(runs) * len(numbers) / beside)
    width = width or (style.PAGE if beside > 1 or shown > 7 else style.COLUMN)
    cell = min(0.34, (width - 1.4) / (beside * shown + beside - 1))
    long = max(map(len, runs[0].classes)) > 4
    height = rows * (cell * len(runs[0].domains) + (1.05 if long else 0.75)) + 0.1
    figure = style.new_figure(width, height, square=True)
    grid = figure.subplots(rows, beside, squeeze=False)
    highest = max(
        float(shown_part(matrix, number)[0].max())
        for row in found
        for number, (matrix, _) in zip(numbers, row, strict=True)
    )
    image, place = None, 0
    for run, name, row in zip(runs, names, found, strict=True):
        for number, (matrix, queries) in zip(numbers, row, strict=True):
            axes = grid.flat[place]
            image = draw_matrix(axes, matrix, run, number, cell=72 * cell, highest=highest, named=place % beside == 0)
            title = f"queries of class {style.plain(style.short(run.classes[number], 20))} ({queries})"
            style.letter(axes, place, f"{name}: {title}" if len(runs) > 1 else title)
            place += 1
    for axes in grid.flat[place:]:
        axes.set_axis_off()
    assert image is not None
    figure.colorbar(image, ax=grid, label="probability (%)", aspect=20, pad=0.015)
    return style.fit_height(figure)


def draw_matrix(
    axes: Axes, matrix: Tensor, run: Run, number: int, *, cell: float, highest: float, named: bool
) -> ScalarMappable:
    """Draw one matrix in percent; the class of the queries is framed.

    Args:
        axes: Where.
        matrix: Probabilities, ``(D, K)``.
        run: Whose they are.
        number: Class of the queries.
        cell: Width of a cell on paper, points.
        highest: The probability that has the darkest colour.
        named: Whether domains are named.
    """
    from matplotlib.patches import Rectangle

    shown, columns = shown_part(matrix, number)
    names = [run.classes[place] for place in columns]
    names += [f"{matrix.shape[1] - len(columns)} others"] if len(columns) < matrix.shape[1] else []
    image = style.draw_cells(axes, 100 * shown.numpy(), 100 * highest)
    for edge in range(1, shown.shape[0]):
        axes.axhline(edge - 0.5, color="0.88", linewidth=0.4)
    for edge in range(1, shown.shape[1]):
        axes.axvline(edge - 0.5, color="0.88", linewidth=0.4)
    for row, column in torch.cartesian_prod(*(torch.arange(size) for size in shown.shape)).tolist():
        share = float(shown[row, column])
        if share >= 0.005:
            ink = "white" if share > 0.6 * highest else "black"
            axes.text(
                column, row, f"{100 * share:.0f}", ha="center", va="center", color=ink, fontsize=min(6.5, cell / 2.2)
            )
    frame = Rectangle((columns.index(number) - 0.5, -0.5), 1, len(shown), fill=False, edgecolor="black", linewidth=1.4)
    frame.set(clip_on=False, zorder=4)
    axes.add_patch(frame)
    texts = [style.plain(style.short(name, 14)) for name in names]
    turned = max(map(len, texts)) * 7 * 0.6 > cell
    axes.set_xticks(range(len(texts)), texts, rotation=45 if turned else 0, ha="right" if turned else "center",
                    rotation_mode="anchor" if turned else "default")  # fmt: skip
    axes.set_yticks(range(len(shown)), [style.plain(style.short(name, 16)) if named else "" for name in run.domains])
    axes.tick_params(length=0)
    axes.set_xlabel("class")
    return image
