"""PACS: photo, art_painting, cartoon and sketch (Li et al., ICCV 2017), a folder or archive each.

The official lists ``<domain>_train_kfold.txt``, ``_crossval_kfold.txt`` and ``_test_kfold.txt`` say which images of a
source are for training and for validation, where they are present; the last names the whole domain, for tests of it as
a target. Without them a tenth of each source is kept apart for validation.
"""

from __future__ import annotations

from pathlib import Path

from graphmsda.data.benchmarks.benchmark import Benchmark, Found, find_images, kind_of, open_once, why_absent
from graphmsda.data.benchmarks.office31 import split_whole
from graphmsda.data.benchmarks.part_lists import find_list, rows_by_key, rows_in_list
from graphmsda.data.listing import Listing, take
from graphmsda.errors import UserError

CLASSES = 7
WRAPPERS = ("kfold", "images", "PACS", "PACS/kfold", "PACS/images", "pacs_data")
LIST_FOLDERS = ("kfold", "pacs_label", "splits", "lists", "PACS", "PACS/kfold", "PACS/pacs_label")
LISTS = {"train": "train", "validation": "crossval", "test": "test"}


def find(place: Path, domain: str) -> Found | str:
    """Return the archive or folder of a domain below `place` and its lists, or why there is none."""
    images = find_images(place, domain, WRAPPERS)
    if images is None:
        return why_absent(place, domain, WRAPPERS)
    found = (find_list(place, f"{domain}_{word}_kfold.txt", LIST_FOLDERS) for word in LISTS.values())
    lists = [path for path in found if path is not None]
    # A training list without the validation list, or the reverse, cannot say what is left: then neither is used.
    if len(lists) < 2 or "_crossval_" not in lists[1].name:
        lists = []
    return Found(f"{kind_of(images)} and official lists" if lists else kind_of(images), (images, *lists))


def read(found: Found, domain: str, part: str, *, labelled: bool, variant: str) -> Listing:
    """List the whole domain for ``test`` and ``all``; for ``train`` and ``validation`` what lists say, else a draw."""
    images, *lists = found.files
    listing = open_once(images, labelled=labelled)
    by_part = {part: path for part, word in LISTS.items() for path in lists if f"_{word}_" in path.name}
    if not lists or part == "all":
        return split_whole(listing, f"pacs:{domain}", part)
    if part not in by_part:
        return listing
    keys = rows_by_key(listing)
    rows = rows_in_list(listing, keys, by_part[part], classes=CLASSES)
    if part == "train" and set(rows) & set(rows_in_list(listing, keys, by_part["validation"], classes=CLASSES)):
        raise UserError(f"{by_part['train']}: names images that {by_part['validation'].name} names too; take both anew")
    return take(listing, sorted(rows))


# Images: the counts of the four domains add up to the 9,991 of Li et al. Size: of a hub's copy as one Parquet file (191
# MB). Licence: the authors state none, and that hub's card says "unknown".
PACS = Benchmark(
    name="pacs",
    title="PACS",
    domains={"photo": "Photo", "art_painting": "Art painting", "cartoon": "Cartoon", "sketch": "Sketch"},
    classes=CLASSES,
    images=1_670 + 2_048 + 2_344 + 3_929,
    size=191_000_000,
    licence="none stated by its authors",
    image_size=224,
    backbone="resnet18",
    find=find,
    read=read,
    variants={
        "paper": "the whole target for training without labels and for test; of each source the official training and "
        "validation lists where present, else 90 % for training"
    },
    aliases={"p": "photo", "a": "art_painting", "art": "art_painting", "c": "cartoon", "s": "sketch"},
    transductive=True,
)
