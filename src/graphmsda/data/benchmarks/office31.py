"""Office-31: amazon, webcam and dslr (Saenko et al., ECCV 2010), a folder or archive each, without a split.

Classes are folders, with or without an ``images/`` level above them as the official download has it.
"""

from __future__ import annotations

from pathlib import Path

from graphmsda.data.benchmarks.benchmark import (
    SEED,
    Benchmark,
    Found,
    find_images,
    item_key,
    kind_of,
    open_once,
    why_absent,
)
from graphmsda.data.benchmarks.drawing import hold_out
from graphmsda.data.listing import Listing, take
from graphmsda.errors import UserError

WRAPPERS = ("domain_adaptation_images", "office31", "office-31", "Office31", "Office-31", "OFFICE31")


def find(place: Path, domain: str) -> Found | str:
    """Return the archive or folder of a domain below `place`, or why there is none."""
    images = find_images(place, domain, WRAPPERS)
    if images is None:
        return why_absent(place, domain, WRAPPERS)
    return Found(kind_of(images), (images,))


def read(found: Found, domain: str, part: str, *, labelled: bool, variant: str) -> Listing:
    """List the whole domain for ``test`` and ``all``; nine tenths of it for ``train``, the rest for ``validation``."""
    return split_whole(open_once(found.files[0], labelled=labelled), f"office-31:{domain}", part)


def split_whole(listing: Listing, name: str, part: str) -> Listing:
    """Return a part of a domain that comes without a split: see `Benchmark.transductive`."""
    if part in ("test", "all"):
        return listing
    if listing.labels is None:
        raise UserError(
            f"{name}: its {part} part is drawn class by class, so it cannot be listed without labels; take all"
        )
    train, validation = hold_out(listing.labels, [item_key(item) for item in listing.item_names], SEED, name)
    rows = train if part == "train" else validation
    return take(
        listing,
        rows,
        f"{listing.origin}: {len(rows):,} of {len(listing):,} images, drawn class by class with seed {SEED}",
    )


# Images: the three counts in section 5.3 of the paper, which agree with the list files in circulation; the 4,652 that
# the paper also gives do not add up. No page gives a size or a licence.
OFFICE_31 = Benchmark(
    name="office-31",
    title="Office-31",
    domains={"amazon": "Amazon", "webcam": "Webcam", "dslr": "DSLR"},
    classes=31,
    images=2_817 + 795 + 498,
    size=None,
    licence="none stated by its authors",
    image_size=252,
    backbone="alexnet",
    find=find,
    read=read,
    variants={"paper": "the whole target for training without labels and for test; 90 % of each source for training"},
    aliases={"a": "amazon", "w": "webcam", "d": "dslr"},
    transductive=True,
)
