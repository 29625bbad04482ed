"""The first sections of a run's report: what came of what, and the loss terms."""

from __future__ import annotations

import math

from graphmsda.errors import UserError
from graphmsda.figures import curves, style
from graphmsda.figures.runs import method_title
from graphmsda.report.material import Material
from graphmsda.report.page import Section
from graphmsda.report.parts import Html, Text, as_html, figure, grid, paragraph, table, tiles
from graphmsda.report.pictures import svg_of

MOST_ESTIMATED = 4000  # samples for the estimate: the error of a share of them is below 1 %
MOST_READINGS = 400  # of a curve, which has no more pixels than that


def title_of(material: Material) -> str:
    """Return what the report is called."""
    *sources, target = material.run.domains
    return f"{method_title(material.run.about['method'])}: {' + '.join(sources)} → {target}"


def wilson(right: int, count: int, z: float = 1.96) -> tuple[float, float]:
    """Return the 95 % interval of a share (Wilson, JASA 1927).

    >>> [round(value, 3) for value in wilson(9, 10)]
    [0.596, 0.982]
    """
    if count == 0:
        return 0.0, 1.0
    share, wide = right / count, z * z / count
    centre = (share + wide / 2) / (1 + wide)
    half = z * math.sqrt(share * (1 - share) / count + wide / count / 4) / (1 + wide)
    return max(0.0, centre - half), min(1.0, centre + half)


def overview(material: Material) -> Section:
    """Return the section with the headline."""
    run, target = material.run, material.target
    settings, history = run.about["settings"], material.history
    items: list[tuple[Text, Text, Text]] = []
    remarks: list[Html] = []
    if target is not None and target.y is not None:
        right, count = int((target.best == target.y).sum()), len(target.y)
        low, high = wilson(right, count)
        items.append(
            (
                f"Accuracy on {target.name}",
                f"{100 * right / count:.1f} %",
                f"{count:,} labelled {material.things}; 95 % interval {100 * low:.1f} to {100 * high:.1f} %",
            )
        )
    items += _estimate(material, remarks)
    if target is not None:
        sure = float(target.confidence.mean())
        remark = "mean probability of the predicted class"
        items.append(("Mean confidence", f"{100 * sure:.1f} %", remark))
    items.append(("Method", method_title(run.about["method"]), f"on the backbone {run.about['backbone']}"))
    seconds = f"{_duration(history[-1]['seconds'])}" if history and "seconds" in history[-1] else "not recorded"
    course = f"{run.about['steps']:,} steps, {settings.get('epochs')} epochs, seed {settings.get('seed')}"
    items.append(("Training", seconds, course))
    *sources, last = run.domains
    lead = (
        f"A classifier of {len(run.classes)} classes was trained on labelled {material.things} of "
        f"{_enumerated(sources)} and adapted to {last}, of which no label was used."
    )
    if material.missing:
        left = "Sections on data are" if target is None else "What the training data would show is"
        remarks.append(paragraph(f"{left} left out: {material.missing}.", "warning"))
    return Section("Overview", tiles(items) + Html("".join(remarks)) + _domains(material), lead)


def _estimate(material: Material, remarks: list[Html]) -> list[tuple[Text, Text, Text]]:
    """Return the label-free estimate of the accuracy as a tile, where it can be made."""
    from graphmsda.selection import estimate, gather

    if material.data is None:
        return []
    try:
        evidence = gather(material.run, material.data, most=min(material.count, MOST_ESTIMATED), mixed=False)
        found = estimate(material.run, material.data, evidence=evidence)
    except UserError as error:
        remarks.append(paragraph(f"The accuracy could not be estimated without labels: {error}.", "note"))
        return []
    interval = f"90 % interval {100 * found.low:.0f} to {100 * found.high:.0f} %, made without any label of the target"
    remarks.append(paragraph(f"The estimate without labels is calibrated on {found.calibrated_on}.", "note"))
    return [("Estimate without labels", f"{100 * found.accuracy:.0f} %", interval)]


def _domains(material: Material) -> Html:
    data = material.run.about["data"]
    counts = data.get("samples") or [None] * len(data["domains"])
    rows = []
    for place, (name, count) in enumerate(zip(data["domains"], counts, strict=False)):
        role = "target" if place == len(data["domains"]) - 1 else "source"
        rows.append([name, role, "–" if count is None else f"{count:,}", _own_accuracy(material, name)])
    head = ["Domain", "Role", f"Training {material.things}", "Predicted right"]
    remark = "of sources, on training data; of the target, on its labelled part where there is one"
    return table(head, rows, caption=f"What was trained on what (predicted right: {remark})")


def _own_accuracy(material: Material, name: str) -> str:
    seen = [*material.sources, *([material.target] if material.target else [])]
    found = next((one for one in seen if one.name == name), None)
    if found is None or found.y is None:
        return "–"
    return f"{100 * float((found.best == found.y).float().mean()):.1f} %"


def training(material: Material) -> Section:
    """Return the section with a curve for each loss term."""
    lead = "Each term as it enters the loss, by epoch, and then what the method shows beside its loss."
    every = math.ceil(len(material.history) / MOST_READINGS) or 1
    rows = material.history[::-every][::-1]  # the last is among them
    names = curves.term_names({"": [rows]}) if rows else []
    if not names:
        return Section("Training", paragraph("The run's metrics hold no loss term."), "")
    drawn = []
    with style.styled():
        for name in names:
            sheet = style.new_figure(3.1, 1.75)
            axes = sheet.subplots()
            curves.draw_term(axes, {"": [rows]}, name)
            axes.set_xlabel("epoch")
            values = [float(row[name]) for row in rows if name in row]
            text = f"{name}: from {values[0]:.3g} to {values[-1]:.3g} over {len(values)} readings"
            caption = Html(f"<strong>{as_html(name)}</strong>, last {values[-1]:.3g}")
            drawn.append(figure(svg_of(sheet, 400), caption, description=text))
    return Section("Training", grid(drawn), lead)


def _duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> _duration(8.2), _duration(192), _duration(9000)
    ('8 s', '3 min', '2.5 h')
    """
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )


def _enumerated(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
