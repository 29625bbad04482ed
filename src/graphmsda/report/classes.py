"""The sections on classes: a table with a row for each, what is taken for what, and the confusion matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from graphmsda.predictions import count_pairs
from graphmsda.report.material import Material, Seen
from graphmsda.report.page import Section
from graphmsda.report.parts import Cell, Html, Row, as_html, details, figure, grid, paragraph, table
from graphmsda.report.pictures import heat_image

MOST_CELLS = 25  # classes up to which the confusion matrix is a table
MOST_ROWS = 40  # of a table that is not folded away
MISTAKES = 12


def per_class(material: Material) -> Section:
    """Return the section with a row for each class."""
    target = material.target
    assert target is not None
    labelled = target.y is not None
    caption = f"{len(target.rows):,} {material.things} of {target.name}" + ("" if labelled else ", by predicted class")
    head, rows = _labelled_rows(material, target) if labelled else _predicted_rows(material, target)
    made = table(head, rows, caption=caption, words=[5] if labelled else [], sortable=True)
    if len(rows) > MOST_ROWS:
        made = _worst(rows, head, labelled) + details(f"All {len(rows)} classes", made)
    lead = (
        "How often each class is found (recall), how often its name is right (precision), and what it is taken for."
        if labelled
        else "There are no labels of the target, so this shows what is predicted, beside the sources' own shares."
    )
    return Section("Classes", made, lead)


def _worst(rows: list[Row], head: list[str], labelled: bool) -> Html:
    column = 2 if labelled else 4
    values = [cell.sort if isinstance(cell, Cell) else None for cell in (row[column] for row in rows)]
    known = sorted((value, place) for place, value in enumerate(values) if value is not None)
    lowest = [rows[place] for _, place in known[:10]]
    return table(head, lowest, caption="The ten classes with the lowest recall" if labelled else "The ten least sure")


def _labelled_rows(material: Material, target: Seen) -> tuple[list[str], list[Row]]:
    assert target.y is not None
    names = material.run.classes
    confusion = count_pairs(target.y, target.best, len(names))
    wrong = confusion - torch.diag(confusion.diagonal())
    sure = _mean_confidence(target, len(names))
    rows: list[Row] = []
    for number, name in enumerate(names):
        count, said, right = (
            int(confusion[number].sum()),
            int(confusion[:, number].sum()),
            int(confusion[number, number]),
        )
        other = int(wrong[number].argmax())
        taken = f"{names[other]} ({int(wrong[number, other])}×)" if count and wrong[number, other] else "–"
        rows.append([name, f"{count:,}", _share(right, count), _share(right, said), _percent(sure[number]), taken])
    return ["Class", material.things.capitalize(), "Recall", "Precision", "Mean confidence", "Most taken for"], rows


def _predicted_rows(material: Material, target: Seen) -> tuple[list[str], list[Row]]:
    names = material.run.classes
    said = torch.bincount(target.best, minlength=len(names))
    y = [source.y for source in material.task.sources] if material.task is not None else []
    there = torch.bincount(torch.cat(y), minlength=len(names)).double() if y else torch.zeros(len(names))
    there = there / there.sum().clamp(min=1)
    sure = _mean_confidence(target, len(names))
    total = max(1, len(target.rows))
    rows: list[Row] = [
        [
            name,
            f"{int(said[number]):,}",
            _percent(float(said[number]) / total),
            _percent(float(there[number])),
            _percent(sure[number]),
        ]
        for number, name in enumerate(names)
    ]
    return ["Class", "Predicted", "Share", "Share in sources", "Mean confidence"], rows


def _mean_confidence(target: Seen, classes: int) -> list[float]:
    total = torch.zeros(classes, dtype=torch.float64).index_add_(0, target.best, target.confidence.double())
    mean = total / torch.bincount(target.best, minlength=classes)
    return [float(value) for value in mean]


def _share(part: int, whole: int) -> Cell:
    return _percent(part / whole if whole else float("nan"))


def _percent(share: float) -> Cell:
    if share != share:  # nothing to have a share of
        return Cell("–")
    return Cell(f"{100 * share:.1f} %", sort=share)


def confusion(material: Material) -> Section:
    """Return the section with the confusion matrix and the most frequent mistakes."""
    target = material.target
    assert target is not None
    title = "Confusion matrix"
    if target.y is None:
        text = "There are no labels of the target to compare with; `graphmsda report RUN --data LABELLED` takes some."
        return Section(title, paragraph(text))
    names = material.run.classes
    counts = count_pairs(target.y, target.best, len(names))
    body = matrix_table(counts, names) if len(names) <= MOST_CELLS else _matrix_image(counts, names)
    return Section(
        title, grid([body, _mistakes(counts, names)], least=400), "Rows are true classes, columns predicted ones."
    )


def matrix_table(counts: Tensor, names: tuple[str, ...]) -> Html:
    """Return a small confusion matrix as a table, shaded by the share of its row."""
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)
    rows: list[Row] = [
        [
            name,
            *(
                Cell(
                    str(int(counts[true, said])) if counts[true, said] else "·",
                    shade=float(shares[true, said]),
                    title=f"{name} taken for {names[said]}: {int(counts[true, said])}",
                )
                for said in range(len(names))
            ),
        ]
        for true, name in enumerate(names)
    ]
    return table(["", *turned(names)], rows, caption="True class by row, predicted class by column", matrix=True)


def turned(names: tuple[str, ...] | list[str]) -> list[str]:
    """Return names for narrow columns: upright where one of them is long."""
    if max(map(len, names)) <= 3:
        return list(names)
    return [Html(f'<span class="turned"><span>{as_html(name)}</span></span>') for name in names]


def _matrix_image(counts: Tensor, names: tuple[str, ...]) -> Html:
    shares = (counts / counts.sum(1, keepdim=True).clamp(min=1)).numpy()
    right = int(counts.diagonal().sum())
    text = f"Confusion matrix of {len(names)} classes; {right:,} of {int(counts.sum()):,} lie on the diagonal."
    caption = f"Shares of each row; {len(names)} classes from {names[0]} (top left) to {names[-1]} (bottom right)."
    return figure(heat_image(shares**0.5), caption + " Faint values are lifted (square root).", description=text)


def _mistakes(counts: Tensor, names: tuple[str, ...]) -> Html:
    wrong = counts - torch.diag(counts.diagonal())
    values, places = wrong.flatten().topk(min(MISTAKES, wrong.numel()))
    rows: list[Row] = []
    for value, place in zip(values.tolist(), places.tolist(), strict=True):
        true, said = divmod(place, len(names))
        if value:
            rows.append([names[true], names[said], f"{value:,}", f"{100 * value / int(counts[true].sum()):.0f} %"])
    if not rows:
        return paragraph("There is not one mistake among them.")
    head = ["True class", "Taken for", "Times", "Of the class"]
    return table(head, rows, caption="The most frequent mistakes", words=[1])
