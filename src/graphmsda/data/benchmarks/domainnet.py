"""DomainNet: clipart, infograph, painting, quickdraw, real and sketch (Peng et al., ICCV 2019).

Images lie in a folder or in the official archive of each domain, as ``<domain>/<class>/<file>``; the official lists
``<domain>_train.txt`` and ``<domain>_test.txt`` say to which part each belongs. Images named in
``<domain>_duplicates.txt`` and ``duplicates.txt`` are left out.
"""

from __future__ import annotations

from pathlib import Path

from graphmsda.data.benchmarks.benchmark import (
    Benchmark,
    Found,
    as_validation,
    find_images,
    item_key,
    kind_of,
    open_once,
    why_absent,
)
from graphmsda.data.benchmarks.part_lists import find_list, rows_by_key, rows_in_list
from graphmsda.data.listing import Listing, take
from graphmsda.data.readers.lists import read_list
from graphmsda.errors import UserError

CLASSES = 345
WRAPPERS = ("DomainNet", "domainnet", "domain_net", "images")
LIST_FOLDERS = ("lists", "splits", "DomainNet", "domainnet", "domain_net")


def find(place: Path, domain: str) -> Found | str:
    """Return the archive or folder of a domain below `place` and its lists, or why it cannot be read."""
    images = find_images(place, domain, WRAPPERS)
    if images is None:
        return why_absent(place, domain, WRAPPERS)
    lists = []
    for part in ("train", "test"):
        path = find_list(place, f"{domain}_{part}.txt", LIST_FOLDERS)
        if path is None:
            return f"{images} is there, but the list {domain}_{part}.txt is not in {place}"
        lists.append(path)
    names = (f"{domain}_duplicates.txt", "duplicates.txt")
    duplicates = [path for name in names if (path := find_list(place, name, LIST_FOLDERS))]
    return Found(f"{kind_of(images)} and official lists", (images, *lists, *duplicates))


def read(found: Found, domain: str, part: str, *, labelled: bool, variant: str) -> Listing:
    """List the images that the list of a part names; the test list serves for ``validation``, both for ``all``."""
    images, train, test, *duplicates = found.files
    listing = open_once(images, labelled=labelled)
    keys = rows_by_key(listing)
    lists = {"train": [train], "all": [train, test]}.get(part, [test])
    rows = sorted({row for path in lists for row in rows_in_list(listing, keys, path, classes=CLASSES)})
    notes = []
    if part == "train" and not set(rows).isdisjoint(rows_in_list(listing, keys, test, classes=CLASSES)):
        raise UserError(f"{train}: names images that {test.name} names too; take both lists from the same download")
    for path in duplicates:
        twice = {keys.get(name) for name in _named_of(path, domain)}
        kept = [row for row in rows if row not in twice]
        if len(kept) < len(rows):
            notes.append(f"{path}: {len(rows) - len(kept):,} duplicates of the {part} part left out")
        rows = kept
    if not rows:
        raise UserError(f"{images}: no image is left of its {part} part; check {' and '.join(p.name for p in lists)}")
    chosen = take(listing, rows, *notes)
    return as_validation(chosen) if part == "validation" else chosen


def _named_of(path: Path, domain: str) -> set[str]:
    """Return which images of a domain a list of duplicates names, as ``domain/class/file`` or ``class/file``."""
    if path.stat().st_size == 0:  # quickdraw has no duplicates
        return set()
    names = [line.path for line in read_list(path, labelled=False)]
    folders = [name.replace("\\", "/").split("/")[:-2] for name in names]
    return {item_key(name) for name, above in zip(names, folders, strict=True) if not above or domain in above}


# Images: the cleaned version, 48,129 + 51,605 + 72,266 + 172,500 + 172,947 + 69,128, from the authors' page
# ai.bu.edu/M3SDA. Size: the six archives, each as `graphmsda.data.obtain.sources` has it. Licence: the fair use notice
# of that site, which a hub's card of DomainNet repeats.
DOMAINNET = Benchmark(
    name="domainnet",
    title="DomainNet",
    domains={
        "clipart": "Clipart",
        "infograph": "Infograph",
        "painting": "Painting",
        "quickdraw": "Quickdraw",
        "real": "Real",
        "sketch": "Sketch",
    },
    classes=CLASSES,
    images=586_575,
    size=18_444_888_275,
    licence="non-commercial research and education, as fair use of copyrighted images (its authors' notice)",
    image_size=224,
    backbone="resnet101",
    find=find,
    read=read,
    variants={"paper": "the official training and test lists; the sources' test parts for validation"},
    aliases={
        "clp": "clipart",
        "inf": "infograph",
        "pnt": "painting",
        "qdr": "quickdraw",
        "rel": "real",
        "skt": "sketch",
    },
)
