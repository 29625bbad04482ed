"""Target samples worth a look: the surest, the least sure, and those on which the domains disagree."""

from __future__ import annotations

import torch

from graphmsda.figures import style
from graphmsda.report.material import Material, Seen
from graphmsda.report.page import Section
from graphmsda.report.parts import Html, Row, as_html, heading, join, table
from graphmsda.report.pictures import image_tag

SHOWN = 12
LONG = 20  # letters of a class on the page
PERCENT = "\N{NO-BREAK SPACE}%"
MATTERS = 0.05  # weight from which a domain is asked


def extremes(material: Material) -> Section:
    """Return the section with the most and least confident and the most disputed samples."""
    target = material.target
    assert target is not None
    sure = target.confidence
    word = material.centres.word
    groups = {
        "Most disputed": (
            disputed(target),
            f"By the {word}s of a domain alone, another class than the model's would be chosen; first those where the "
            "domains that would do so weigh most, then those where domains differ in how sure they are.",
        ),
        "Least confident": (sure.argsort(stable=True), "The predicted class has the lowest probability."),
        "Most confident": (_spread(target), "The surest predictions, of each class in turn."),
    }
    body = Html()
    for title, (order, text) in groups.items():
        places = order[:SHOWN].tolist()
        body += heading(title) + Html(f'<p class="note">{as_html(text)}</p>')
        body += _images(material, target, places) if material.is_images else _rows(material, target, places, title)
    return Section(
        f"{material.things.capitalize()} worth a look",
        body,
        f"Of {len(target.rows):,} {material.things} of {target.name}.",
    )


def disputed(target: Seen) -> torch.Tensor:
    """Return places by the weight of the domains that want another class, then by what domains tell of the class."""
    order = target.dispute.argsort(descending=True, stable=True)
    against = (target.weights * (target.votes != target.best[:, None])).sum(1)
    return order[against[order].argsort(descending=True, stable=True)]


def _spread(target: Seen) -> torch.Tensor:
    """Return places by confidence, the surest of each class first: otherwise one easy class would fill the page."""
    turn = torch.zeros(len(target.rows), dtype=torch.int64)
    order = target.confidence.argsort(descending=True, stable=True)
    met: dict[int, int] = {}
    for place in order.tolist():
        label = int(target.best[place])
        turn[place] = met[label] = met.get(label, -1) + 1
    return order[turn[order].argsort(stable=True)]


def _images(material: Material, target: Seen, places: list[int]) -> Html:
    items = []
    for place in places:
        text = _told(material, target, place)
        picture = image_tag(target.picture(place), f"{target.item(place)}: {text[0]}")
        items.append(Html(f"<li>{picture}<b>{as_html(text[0])}</b><small>{join(text[1:], '<br>')}</small></li>"))
    return Html(f'<ul class="gallery">{"".join(items)}</ul>')


def _rows(material: Material, target: Seen, places: list[int], title: str) -> Html:
    rows: list[Row] = []
    for place in places:
        first, *rest = _told(material, target, place)
        rows.append([target.item(place), first, "; ".join(rest)])
    return table(["Sample", "Prediction", "More"], rows, caption=f"{title} samples of {target.name}")


def _told(material: Material, target: Seen, place: int) -> list[str]:
    """Return what to say of a sample: the prediction, the truth or the second guess, the votes, its name."""
    names = material.centres.names
    classes = [style.short(name, LONG) for name in material.run.classes]
    share, best = target.probabilities[place].topk(min(2, len(classes)))
    lines = [f"{classes[int(best[0])]}, {100 * float(share[0]):.0f}{PERCENT}"]
    if target.y is not None:
        truth = int(target.y[place])
        lines.append("✓ right" if truth == int(best[0]) else f"✗ wrong: is {classes[truth]}")
    if len(best) > 1 and float(share[1]) >= 0.005:
        lines.append(f"or {classes[int(best[1])]}, {100 * float(share[1]):.0f}{PERCENT}")
    said: dict[int, list[str]] = {}
    for name, vote, weight in zip(names, target.votes[place].tolist(), target.weights[place].tolist(), strict=True):
        if weight >= MATTERS:
            said.setdefault(vote, []).append(name)
    if len(said) > 1:
        lines.append("; ".join(f"{', '.join(who)}: {classes[vote]}" for vote, who in said.items()))
    name = target.item(place)
    return [*lines, name if len(name) <= 2 * LONG else f"…{name[-2 * LONG :]}"]
