"""The section on the data: copies, imbalance, what could not be read, what had to be assumed."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from numpy.typing import NDArray

from graphmsda.data.checks.check import check_listings
from graphmsda.data.checks.page import sentences
from graphmsda.data.checks.report import Report
from graphmsda.data.listing import Listing
from graphmsda.data.readers.arrays import listing_of_arrays
from graphmsda.domains import Samples
from graphmsda.report.material import Material
from graphmsda.report.page import Section
from graphmsda.report.parts import Html, bullets, paragraph, table

MOST = 3000  # samples of each domain and part that are compared
SIDE = 64  # pixels to which large images are reduced for that: copies stay copies, and memory is saved


def data_warnings(material: Material) -> Section:
    """Return the section."""
    title = "Data warnings"
    if material.task is None:
        return Section(title, paragraph(f"The data were not looked at: {material.missing or 'they are not known'}."))
    report, compared = check_data(material)
    found = list(sentences(report))
    grave, light = ([text for mark, text in found if (mark == "!") == bad] for bad in (True, False))
    body = Html()
    if grave or light or material.notes:
        body += bullets(grave, "warning") if grave else Html()
        body += bullets([*light, *material.notes]) if light or material.notes else Html()
    else:
        body += paragraph("Nothing amiss: no copies, no class that is missing or much rarer than another.")
    rows = [
        [
            domain.name,
            ", ".join(f"{part} {count:,}" for part, count in domain.parts.items()) or f"{domain.count:,}",
            "–" if domain.imbalance is None else f"{domain.imbalance:.1f} : 1",
            f"{domain.nearly_constant:,}" if domain.sizes is not None else "–",
        ]
        for domain in report.domains
    ]
    head = ["Domain", f"{material.things.capitalize()} compared", "Largest to smallest class", "Of one colour"]
    body += table(head, rows, caption="What was looked at, as the model reads it")
    body += paragraph(
        f"{compared} `graphmsda data check` looks at all files at their full size and shows pictures of copies.", "note"
    )
    return Section(
        title, body, "Copies, leaks and imbalance, found in the samples the run was trained and measured on."
    )


def check_data(material: Material) -> tuple[Report, str]:
    """Look through the samples of all domains, and say how many were compared."""
    task = material.task
    assert task is not None
    listings: list[Listing] = []
    names: list[str] = []
    cut = False

    def add(name: str, x: Samples, y: torch.Tensor | None, part: str | None) -> None:
        nonlocal cut
        rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:MOST].sort().values
        cut |= len(rows) < len(x)
        labels = None if y is None else [task.classes[label] for label in y[rows].tolist()]
        listing: Listing = listing_of_arrays(_small(x, rows), labels, name=name)
        if part is not None:
            listing = dataclasses.replace(listing, parts=(part,) * len(rows))
        listings.append(listing)
        names.append(name)

    test = material.test
    for source in task.sources:
        add(source.name, source.x, source.y, None)
    add(task.target.name, task.target.x, None, None if test is None else "train")
    if test is not None:
        add(task.target.name, test.x, test.y, "test")
    told = f"Up to {MOST:,} {material.things} of each domain and part were compared." if cut else "All were compared."
    return check_listings(listings, names=names), told


def _small(x: Samples, rows: torch.Tensor) -> NDArray[Any]:
    """Return some samples as an array, large images reduced."""
    if len(x.shape) < 4 or max(x.shape[2:]) <= SIDE:
        return x[rows].numpy()
    parts = [
        torch.nn.functional.interpolate(x[part].float(), size=(SIDE, SIDE), mode="area").to(torch.uint8)
        for part in torch.split(rows, 256)
    ]
    return torch.cat(parts).numpy()
