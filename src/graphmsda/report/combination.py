"""The learned combination of domains: what predictions lean on, what each domain says, what prototypes look like."""

from __future__ import annotations

import torch
from torch import Tensor

from graphmsda.figures.adjacency import adjacency_matrix, pooled
from graphmsda.figures.posterior import shown_part
from graphmsda.graphs.prototypes import squared_distances
from graphmsda.methods.crf import CRF
from graphmsda.methods.mrf import MRF
from graphmsda.report.classes import MOST_ROWS, turned
from graphmsda.report.material import Material, Seen
from graphmsda.report.page import Section
from graphmsda.report.parts import (
    Cell,
    Html,
    Row,
    as_html,
    bar,
    details,
    figure,
    grid,
    heading,
    join,
    key,
    paragraph,
    table,
)
from graphmsda.report.pictures import heat_image, image_tag

MOST_PANELS = 12  # classes whose matrix is shown
MOST_NEAREST = 20  # classes whose nearest images are shown
NEAREST = 3  # images to each prototype
MOST_NAMED = 60  # rows of an adjacency that is a table
THUMB = 40  # pixels


def leaning(material: Material) -> Section:
    """Return the section on which domain each prediction leans on."""
    target, names, run = material.target, material.lean_names, material.run
    assert target is not None
    if len(names) == 1:
        return Section("Learned domain combination", paragraph(f"There is one source, {names[0]}: all lean on it."))
    overall = target.lean.double().mean(0)
    if isinstance(run.method, MRF):
        lead = (
            "The posterior probability of each domain given a sample, averaged: the weight with which that domain's "
            "prototypes decide its class. The target's own prototypes, learned without labels, take part."
        )
        what = "Mean weight of each domain by predicted class, percent"
    else:
        lead = (
            "This method has no posterior over domains; shown is the source whose nearest class mean lies closest to "
            "each sample."
        )
        what = "Share of each predicted class that lies nearest to each source, percent"
    told = ", ".join(f"{name} {100 * float(share):.0f} %" for name, share in zip(names, overall, strict=True))
    body = key(names) + bar(overall.tolist(), names)
    body += paragraph(f"Overall: {told}.")
    counts = torch.bincount(target.best, minlength=len(run.classes))
    sums = torch.zeros(len(run.classes), len(names), dtype=torch.float64)
    means = sums.index_add_(0, target.best, target.lean.double()) / counts.clamp(min=1)[:, None]
    rows: list[Row] = []
    for number, name in enumerate(run.classes):
        shares = means[number].tolist()
        cells: list[Cell | str] = [Cell(f"{100 * share:.0f}", shade=0.9 * share) for share in shares]
        rows.append([name, f"{int(counts[number]):,}", *(cells if counts[number] else ["–"] * len(names))])
    head = ["Predicted class", material.things.capitalize(), *names]
    made = table(head, rows, caption=what, sortable=True)
    body += details(f"All {len(rows)} classes", made) if len(rows) > MOST_ROWS else made
    return Section("Learned domain combination", body + _agreement(material, target), lead)


def _agreement(material: Material, target: Seen) -> Html:
    """Return how often each domain's centres alone would have predicted the same, and right."""
    rows: list[Row] = []
    for place, name in enumerate(material.centres.names):
        votes = target.votes[:, place]
        met = f"{int(material.centres.seen[place].sum())} of {len(material.run.classes)}"
        row: list[Cell | str] = [name, met, f"{100 * float((votes == target.best).float().mean()):.1f} %"]
        if target.y is not None:
            row.append(f"{100 * float((votes == target.y).float().mean()):.1f} %")
        rows.append(row)
    word = material.centres.word
    head = [
        "Domain alone",
        f"{word.capitalize()}s met",
        "Agrees with the model",
        *(["Right"] if target.y is not None else []),
    ]
    caption = f"What the {word}s of one domain alone would predict for {target.name}"
    return heading("Each domain by itself") + table(head, rows, caption=caption)


def posteriors(material: Material) -> Section:
    """Return the section with the class-by-domain matrices."""
    title, run = "Class-by-domain probabilities", material.run
    if material.joint is None or material.target is None:
        text = f"{run.about['method']} has no joint posterior of domain and class; methods mrf and mrf-plus have."
        return Section(title, paragraph(text))
    joint, classes = material.joint, run.classes
    there = [number for number in range(len(classes)) if not torch.isnan(joint[number, 0, 0])]
    of = "true" if material.target.y is not None else "predicted"
    lead = (
        f"For {run.domains[-1]} {material.things} of each {of} class, the mean probability of each pair of domain and "
        "class, percent."
    )
    if len(there) > MOST_PANELS:
        there = sorted(sorted(there, key=lambda number: float(joint[number, :, number].sum()))[:MOST_PANELS])
        lead += f" Of {len(classes)} classes, the {MOST_PANELS} that are least sure of themselves are shown."
    highest = max(float(shown_part(joint[number].float(), number)[0].max()) for number in there)
    panels = [_panel(material, joint[number], number, highest) for number in there]
    return Section(title, grid(panels, least=430), lead)


def _panel(material: Material, matrix: Tensor, number: int, highest: float) -> Html:
    classes, domains = material.run.classes, material.run.domains
    shown, columns = shown_part(matrix, number)
    names = [classes[place] for place in columns]
    names += [f"{matrix.shape[1] - len(columns)} others"] if len(columns) < matrix.shape[1] else []
    rows: list[Row] = []
    for place, domain in enumerate(domains):
        cells: list[Cell | str] = [domain]
        for column, share in enumerate(shown[place].tolist()):
            text = f"{100 * share:.0f}" if share >= 0.005 else "·"
            own = column < len(columns) and columns[column] == number
            cells.append(Cell(text, shade=0.95 * share / max(highest, 1e-9), strong=own))
        rows.append(cells)
    mass = float(matrix[:, number].sum())
    caption = f"Class {classes[number]}: {100 * mass:.0f} % on the class itself"
    return table(["", *turned(names)], rows, caption=caption, matrix=True)


def nearest(material: Material) -> Section:
    """Return the section with the images nearest to each prototype."""
    centres, run, target = material.centres, material.run, material.target
    title = f"Nearest to each {centres.word}"
    if not material.is_images:
        return Section(title, paragraph("The samples are feature vectors: there is nothing to look at."))
    assert target is not None
    by_name = {seen.name: seen for seen in [*material.sources, target]}
    order = torch.bincount(target.best, minlength=len(run.classes)).argsort(descending=True, stable=True).tolist()
    shown = sorted(order[:MOST_NEAREST])
    columns = [(place, by_name[name]) for place, name in enumerate(centres.names) if name in by_name]
    cells = {}
    each = NEAREST if len(columns) <= 8 else 1  # for the page's size
    for place, seen in columns:
        distance = squared_distances(centres.points[place].cpu().float(), seen.embedding)
        closest = distance.topk(min(each, distance.shape[1]), largest=False).indices
        for number in shown:
            known = bool(centres.seen[place, number])
            cells[number, place] = _thumbs(material, seen, closest[number].tolist()) if known else Html("never met")
    rows: list[Row] = [[run.classes[number], *(cells[number, place] for place, _ in columns)] for number in shown]
    head = ["Class", *(seen.name for _, seen in columns)]
    caption = f"The {each} images of each domain that lie nearest to its {centres.word}, class by class"
    if each == 1:
        caption = f"The image of each domain that lies nearest to its {centres.word}, class by class"
    lead = (
        f"What a {centres.word} stands for can be seen in the images next to it, the target's included."
        if len(columns) == len(run.domains)
        else f"What a {centres.word} stands for can be seen in the images next to it."
    )
    if len(shown) < len(run.classes):
        lead += f" The {len(shown)} classes that are predicted most are shown."
    return Section(title, table(head, rows, caption=caption), lead)


def _thumbs(material: Material, seen: Seen, places: list[int]) -> Html:
    tags = []
    for place in places:
        truth = "" if seen.y is None else f", {material.run.classes[int(seen.y[place])]}"
        tag = image_tag(seen.picture(place), f"{seen.name} {seen.item(place)}{truth}", side=THUMB)
        tags.append(tag)
    return Html(f'<span class="thumbs">{join(tags)}</span>')


def adjacency(material: Material) -> Section:
    """Return the section with the prototypes' adjacency."""
    title, run, method = "Prototype adjacency", material.run, material.run.method
    if isinstance(method, CRF):
        graph, misfit = adjacency_matrix(run)
        remark = f" The misfit of the classes' relations between domains, L_global, is {misfit:.3f}."
        lead = "How strongly prototypes are linked (eq. 4 of the paper), by domain and, within it, by class." + remark
    elif isinstance(method, MRF):
        graph = markov_affinity(material)
        lead = (
            "The likelihood, relative to the highest, of a link between two prototypes: exp of minus their energy "
            "(eq. 17), by domain and, within it, by class. Strong diagonals beside the middle one: domains agree on "
            "classes."
        )
    else:
        text = f"{run.about['method']} has no prototypes; methods crf, mrf and mrf-plus have."
        return Section(title, paragraph(text))
    cells, size = pooled(graph, len(run.domains))
    step = len(run.classes) * len(run.domains)
    same = _mean_same(graph, len(run.domains))
    text = (
        f"Adjacency of {step} prototypes. Mean between the same class in two domains {same[0]:.2f}, between different "
        f"classes {same[1]:.2f}."
    )
    caption = text + ("" if size == 1 else f" A dot is the largest of {size} × {size} classes.")
    return Section(title, figure(_framed(material, cells), caption, description=text), lead)


def _framed(material: Material, cells: Tensor) -> Html:
    """Return the matrix with the names of the domains around it, and lines between them."""
    names = material.run.domains
    count = len(names)
    top = "".join(f"<span>{as_html(name)}</span>" for name in names)
    return Html(
        f'<div class="framed" style="--count:{count}"><div class="left">{top}</div><div class="square">'
        f'{heat_image(cells.numpy())}</div><div class="below">{top}</div></div>'
    )


def markov_affinity(material: Material) -> Tensor:
    r"""Return :math:`e^{-E}` of the edge between any two prototypes of an MRF, ``(DK, DK)``; NaN where never met."""
    centres = material.centres
    points, seen = centres.points.detach().float().cpu().flatten(0, 1), centres.seen.cpu().flatten()
    graph = (-squared_distances(points, points) / centres.temperature).exp()
    return graph.masked_fill(~(seen[:, None] & seen), torch.nan)


def _mean_same(graph: Tensor, domains: int) -> tuple[float, float]:
    """Return the mean link of prototypes of one class in two domains, and of two classes."""
    classes = len(graph) // domains
    label, domain = torch.arange(classes).repeat(domains), torch.arange(domains).repeat_interleave(classes)
    same = (label[:, None] == label) & (domain[:, None] != domain)
    return float(graph[same].nanmean()), float(graph[label[:, None] != label].nanmean())
