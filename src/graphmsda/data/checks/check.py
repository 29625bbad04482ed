"""What is wrong with data before anything is trained on it: counts, damage, copies, leakage of test images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphmsda.data.checks.contact_sheet import MOST_ROWS, contact_sheet
from graphmsda.data.checks.duplicates import NEAR_BITS
from graphmsda.data.checks.hash_search import MOST_BITS
from graphmsda.data.checks.items import Copies, Items, find_copies
from graphmsda.data.checks.page import report_page as report_page
from graphmsda.data.checks.report import PARTS, DomainReport, Report, Sizes
from graphmsda.data.checks.report import report_json as report_json
from graphmsda.data.checks.scan import scan
from graphmsda.data.classes import match_classes
from graphmsda.data.formats import open_listing
from graphmsda.data.listing import Listing, take, unique_names
from graphmsda.data.progress import amount_bar
from graphmsda.errors import UserError

EXAMPLES = 5
COPIES = ""  # no domain is called that


def check(
    places: Sequence[str | Path],
    *,
    format: str | None = None,
    root: Path | None = None,
    sheets: Path | None = None,
    progress: bool = False,
    near: int | None = NEAR_BITS,
    seed: int = 0,
) -> Report:
    """Look through domains wherever they lie.

    Args:
        places: A folder, archive, list, table or array file for each domain. Labels are read where there are any.
        format: One of `graphmsda.data.formats.FORMATS`, where the paths do not tell.
        root: Folder to which the paths in lists and tables relate.
        sheets: Folder for a contact sheet of each domain of images; None: draw none.
        progress: Show a progress bar on stderr.
        near: Bits in which the perceptual hashes of near duplicates may differ, 0 to 12; None: find exact ones alone.
        seed: Of the choice of images on the contact sheets.
    """
    if isinstance(places, str | Path):
        places = [places]
    if not places:
        raise UserError("no place was given; give a folder, archive or file for each domain")
    seen: dict[Path, str | Path] = {}
    for place in places:
        here = Path(place).expanduser().resolve()
        for there, other in seen.items():
            if here == there:
                raise UserError(f"{place}: given twice; give each domain once")
            if here in there.parents or there in here.parents:
                inner, outer = (other, place) if here in there.parents else (place, other)
                raise UserError(f"{inner}: lies inside {outer}, another domain; give separate folders")
        seen[here] = place
    listings = [_open(place, format, root) for place in places]
    return check_listings(listings, sheets=sheets, progress=progress, near=near, seed=seed)


def check_listings(
    listings: Sequence[Listing],
    *,
    names: Sequence[str] | None = None,
    sheets: Path | None = None,
    progress: bool = False,
    near: int | None = NEAR_BITS,
    seed: int = 0,
) -> Report:
    """Look through domains already listed; further arguments as in `check`.

    Args:
        listings: The domains, with labels where there are any.
        names: What to call the domain of each; listings of one name, such as its train and its test part, are looked at
            as one domain. By default each is a domain of its own.
        sheets: See `check`.
        progress: See `check`.
        near: See `check`.
        seed: See `check`.
    """
    if near is not None and not 0 <= near <= MOST_BITS:
        raise UserError(f"near is {near}; give a number of bits from 0 to {MOST_BITS}")
    names = list(names) if names is not None else unique_names(listings)
    kinds = {listing.feature_count is None: listing for listing in listings}
    if len(kinds) > 1:
        raise UserError(
            f"{kinds[True].origin} holds images and {kinds[False].origin} feature vectors; check them one by one"
        )
    done = 0
    with amount_bar("reading", sum(map(len, listings)), unit="samples", enabled=progress) as show:

        def advance(name: str, count: int) -> None:
            nonlocal done
            done += count
            show(done)

        scans = [scan(listing, advance) for listing in listings]
    labels, classes, notes = _match(listings)
    items = Items(listings, names, scans, labels)
    with amount_bar("looking for copies", None, enabled=progress) as show:
        copies = find_copies(items, near, show)
    drawn: dict[str, Path] = {}
    if sheets is not None and items.are_images:
        drawn = _draw_sheets(items, classes, copies, sheets, seed)
    domains = tuple(_describe(items, name, classes, drawn.get(name)) for name in dict.fromkeys(names))
    sheet = str(drawn[COPIES]) if COPIES in drawn else None
    return Report(domains, tuple(classes), copies.groups, copies.complete, tuple(notes), sheet)


def _open(place: str | Path, format: str | None, root: Path | None) -> Listing:
    try:
        return open_listing(place, labelled=True, format=format, root=root)
    except UserError as error:
        try:
            listing = open_listing(place, labelled=False, format=format, root=root)
        except UserError:
            raise error from None
        reason = str(error).removeprefix(f"{place}: ").split(";")[0]
        return take(listing, range(len(listing)), f"{place}: looked at without labels, for {reason}")


def _match(listings: Sequence[Listing]) -> tuple[list[str | None], list[str], list[str]]:
    """Return the class of each sample as all domains call it, all classes in order, and notes."""
    labelled = [listing for listing in listings if listing.labels is not None]
    classes: list[str] = []
    notes: list[str] = []
    called: dict[int, Sequence[str]] = {id(listing): listing.labels or () for listing in labelled}
    if labelled:
        try:
            matched = match_classes(labelled, "union")
        except UserError as error:  # such as numbers here and words there: each by its own names, which the table shows
            classes = sorted({label for labels in called.values() for label in labels})
            notes = [str(error)] if len(labelled) > 1 else []
        else:
            classes = list(matched.classes)
            for listing, indices in zip(labelled, matched.indices, strict=True):
                called[id(listing)] = [classes[index] for index in indices]
            # That classes differ the report tells in its own way.
            notes = [note for note in matched.notes if not note.startswith("the classes of the sources differ")]
    labels = [label for listing in listings for label in called.get(id(listing), [None] * len(listing))]
    return labels, classes, notes


def _describe(items: Items, name: str, classes: Sequence[str], sheet: Path | None) -> DomainReport:
    mine = items.members(name)
    numbers = [number for number, owner in enumerate(items.names) if owner == name]
    listings = [items.listings[number] for number in numbers]
    scans = [items.scans[number] for number in numbers]
    counts = Counter((items.parts[item], items.labels[item]) for item in mine)
    parts = Counter(items.parts[item] for item in mine)
    totals = Counter(label for item in mine if (label := items.labels[item]) is not None)
    ranked = totals.most_common()
    unreadable = [item for item in mine if not items.readable[item]]
    constant = [item for item in mine if items.nearly_constant[item]]
    ranges = [found.range for found in scans if found.range is not None]
    return DomainReport(
        name=name,
        origins=tuple(dict.fromkeys(str(listing.origin) for listing in listings)),
        count=len(mine),
        parts={part: parts[part] for part in PARTS if part in parts},
        classes={
            part or "all": {label: counts[part, label] for label in classes if counts[part, label]}
            for part in (*PARTS, None)
            if totals and part in parts
        },
        largest=ranked[0] if ranked else None,
        smallest=ranked[-1] if ranked else None,
        missing=tuple(label for label in classes if label not in totals) if totals else (),
        unreadable=len(unreadable),
        unreadable_examples={items.item_name(item): items.reason(item) for item in unreadable[:EXAMPLES]},
        sizes=_sizes(items.sizes[mine]) if items.are_images else None,
        nearly_constant=len(constant),
        nearly_constant_examples=tuple(items.item_name(item) for item in constant[:EXAMPLES]),
        features=listings[0].feature_count,
        range=(min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None,
        not_finite=sum(found.not_finite for found in scans),
        notes=tuple(dict.fromkeys(note for listing in listings for note in listing.notes)),
        sheet=None if sheet is None else str(sheet),
    )


def _sizes(sizes: NDArray[np.int64]) -> Sizes | None:
    sizes = sizes[sizes[:, 0] > 0]
    if not len(sizes):
        return None
    unique, counts = np.unique(sizes, axis=0, return_counts=True)
    width, height = ((int(side.min()), int(np.median(side)), int(side.max())) for side in (sizes[:, 0], sizes[:, 1]))
    most = unique[counts.argmax()]
    return Sizes(width, height, len(unique), (int(most[0]), int(most[1])), int(counts.max()))


def _draw_sheets(items: Items, classes: Sequence[str], copies: Copies, folder: Path, seed: int) -> dict[str, Path]:
    """Draw a sheet of each domain and, under the name `COPIES`, one of the groups of copies that matter most."""
    drawn: dict[str, Path] = {}
    groups: dict[str, Sequence[int]] = {}
    for number, (group, members) in enumerate(zip(copies.groups[:MOST_ROWS], copies.items, strict=False), 1):
        places = dict.fromkeys(" ".join(filter(None, (each.domain, each.part))) for each in group.members)
        groups[f"{number}  {', '.join(places)}"] = members
    if groups:
        drawn[COPIES] = folder / "copies.png"
        title = f"copies: the first {len(groups)} of {len(copies.groups)} groups, leakage first"
        contact_sheet(drawn[COPIES], title, groups, items.picture, columns=6, seed=seed)
    for name in dict.fromkeys(items.names):
        by_class: dict[str, list[int]] = {label: [] for label in classes}
        readable = [item for item in items.members(name) if items.readable[item]]
        for item in readable:
            by_class.setdefault(items.labels[item] or "", []).append(item)
        shown = {label: members for label, members in by_class.items() if members}
        if not shown:
            continue
        kinds = "" if "" in shown else f", {len(shown)} classes"
        stem = re.sub(r"[^\w .()-]", "_", name).strip(". ") or "domain"
        path, number = folder / f"{stem}.png", 1
        while path in drawn.values():
            number += 1
            path = folder / f"{stem}-{number}.png"
        contact_sheet(path, f"{name}: {len(readable):,} images{kinds}", shown, items.picture, seed=seed)
        drawn[name] = path
    return drawn
