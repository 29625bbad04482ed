"""Digits-five: MNIST (mt), MNIST-M (mm), USPS (up), SVHN (sv) and Synthetic Digits (syn).

Each domain is read from the first of these that lies in the benchmark's folder:

1. the official files: MNIST's four IDX files, ``mnist_m_train/`` with ``mnist_m_train_labels.txt`` and the same for
   test, ``usps.bz2`` and ``usps.t.bz2`` or else ``usps.h5``, ``train_32x32.mat`` and ``test_32x32.mat``,
   ``synth_train_32x32.mat`` and ``synth_test_32x32.mat``;
2. the pack of ``.mat`` files that M3SDA published (Peng et al., ICCV 2019);
3. an archive per domain, ``mnist.zip``, ``mnistm.zip``, ``usps.zip``, ``svhn.zip`` or ``syn.zip``, with images in
   ``train/<digit>/`` and ``test/<digit>/``;
4. a folder per domain of the same shape, ``mnist/``, ``mnistm/``, ``usps/``, ``svhn/`` or ``syn/``.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from graphmsda.data.benchmarks.benchmark import ARCHIVES, SEED, Benchmark, Found, as_validation, open_once, packed_whole
from graphmsda.data.benchmarks.drawing import draw
from graphmsda.data.formats import take_part
from graphmsda.data.listing import Listing, file_identity, place_name, take
from graphmsda.data.readers.folder import FolderListing
from graphmsda.data.readers.idx import open_idx
from graphmsda.data.readers.list_files import find_missing
from graphmsda.data.readers.lists import read_list
from graphmsda.data.readers.usps import open_libsvm, open_usps_h5
from graphmsda.data.readers.zip_directory import may_hold
from graphmsda.errors import UserError

TRAIN, VALIDATION, TEST = 25_000, 6_000, 9_000
ALL_OF_MNIST_TEST = 10_000
MARKER = "re-synthesised.json"  # lies beside the parts of a domain that was rendered or composed anew

VARIANTS = {
    "paper": "25,000 images for training, 6,000 for validation, 9,000 for test, drawn with seed 0; the whole of USPS",
    "usps-3x": "as paper, with the training images of USPS three times over",
    "usps-4x": "as paper, with the training images of USPS four times over",
    "mnist-test-10000": "as paper, with all 10,000 test images of MNIST",
    "full": "every image that the files hold",
}
PACKS = ("Digit-Five", "digit-five", "digit_five")  # folder or archive of the M3SDA pack
REPEATS = {"usps-3x": 3, "usps-4x": 4}

Read = Callable[[tuple[Path, ...], str, bool], Listing]


@dataclass(frozen=True)
class _Form:
    """One form in which a domain is published: for each file the names it may have, and the folders it may lie in."""

    kind: str
    files: tuple[tuple[str, ...], ...]
    folders: tuple[str, ...]
    read: Read


def find(place: Path, domain: str) -> Found | str:
    """Return what serves a domain below `place`, or why nothing does."""
    half = ""
    for form in _FORMS[domain]:
        for folder in form.folders:
            paths = [_first(place / folder, names) for names in form.files]
            there = [path for path in paths if path is not None]
            if len(there) == len(paths):
                return Found(form.kind, tuple(there), form.read)
            if there and not half:
                absent = next(names[0] for names, path in zip(form.files, paths, strict=True) if path is None)
                half = f"{there[0]} is there, but {place / folder / absent} is not"
    names = list(dict.fromkeys(form.files[0][0] for form in _FORMS[domain]))
    return half or packed_whole(place, PACKS) or f"none of {', '.join(names)} is in {place}"


def read(found: Found, domain: str, part: str, *, labelled: bool, variant: str) -> Listing:
    """List one part of one domain as a variant has it.

    Images for training and validation are drawn from the training part, without a common image; images for test from
    the test part. Draws depend on the number of images alone and never on labels. Where the files hold too few for a
    validation part, a source's test part serves for validation.
    """
    if part == "all":
        raise ValueError("Digits-five has parts of its own")

    def whole(part: str) -> Listing:
        assert found.read is not None
        return found.read(found.files, part, labelled)

    as_it_is = variant == "full" or domain == "up"
    if part == "train" and as_it_is:
        listing = whole("train")
        times = REPEATS.get(variant, 1) if domain == "up" else 1
        if times > 1:
            rows = [*range(len(listing))] * times
            listing = take(listing, rows, f"{listing.origin}: each training image comes {times} times")
        return listing
    if part != "test" and not as_it_is:
        training = whole("train")
        enough = len(training) >= TRAIN + VALIDATION
        if part == "train" or enough:
            sizes = [min(TRAIN, len(training)), VALIDATION if enough else 0]
            return _take_drawn(training, sizes, 0 if part == "train" else 1, f"digits-five:{domain}:train")
    testing = whole("test")
    if domain == "mt" and variant == "mnist-test-10000":
        if len(testing) != ALL_OF_MNIST_TEST:
            raise UserError(
                f"{found.files[0]}: holds {len(testing):,} test images of MNIST, but variant {variant} needs all "
                f"{ALL_OF_MNIST_TEST:,}; put MNIST's own files there or take another variant"
            )
    elif not as_it_is:
        testing = _take_drawn(testing, [min(TEST, len(testing))], 0, f"digits-five:{domain}:test")
    return testing if part == "test" else as_validation(testing)


def remade(domain: str, found: Found) -> bool:
    """Return whether a domain is a stand-in: Synthetic Digits unless in Ganin's ``.mat`` files, others where marked."""
    path = found.files[0]
    if found.kind == "folder":
        return domain == "syn" or (path.parent / MARKER).exists()
    if found.kind == "archive":
        return domain == "syn" or (path.suffix == ".zip" and _has_marker(path, file_identity(path)))
    return False


def _take_drawn(listing: Listing, sizes: list[int], which: int, name: str) -> Listing:
    if sizes == [len(listing)] or sizes == [len(listing), 0]:
        return listing
    rows = draw(len(listing), sizes, SEED, name)[which]
    return take(listing, rows, f"{listing.origin}: {len(rows):,} of {len(listing):,} images drawn with seed {SEED}")


def _first(folder: Path, names: tuple[str, ...]) -> Path | None:
    return next((folder / name for name in names if os.path.exists(folder / name)), None)


@lru_cache
def _has_marker(path: Path, identity: tuple[int, int]) -> bool:
    try:
        if not may_hold(path, MARKER):
            return False
        with zipfile.ZipFile(path) as archive:
            return MARKER in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False  # opening the archive to read it will tell what is wrong with it


# How each form is read: its files in the order of `_Form.files`, one part, with labels or without.


def _read_idx(files: tuple[Path, ...], part: str, labelled: bool) -> Listing:
    images, labels = files[:2] if part == "train" else files[2:]
    return open_once(images, labelled=labelled, opener=lambda: open_idx(images, labels if labelled else None))


def _read_labels_file(files: tuple[Path, ...], part: str, labelled: bool) -> Listing:
    folder, labels = files[:2] if part == "train" else files[2:]
    lines = read_list(labels, labelled=labelled)
    paths, missing = find_missing(folder, [line.path for line in lines])
    if missing:
        first = ", ".join(lines[row].path for row in missing[:5])
        raise UserError(
            f"{labels}: {len(missing):,} of the {len(lines):,} images it names are not in {folder} (first: {first}); "
            "unpack MNIST-M anew"
        )
    names = tuple(line.label or "" for line in lines) if labelled else None
    return FolderListing(place_name(folder), folder, names, tuple(paths))


def _read_libsvm(files: tuple[Path, ...], part: str, labelled: bool) -> Listing:
    path = files[0 if part == "train" else 1]
    return open_once(path, labelled=labelled, opener=lambda: open_libsvm(path, labelled=labelled))


def _read_h5(files: tuple[Path, ...], part: str, labelled: bool) -> Listing:
    path = files[0]
    return open_once(path, labelled=labelled, opener=lambda: open_usps_h5(path, part, labelled=labelled), part=part)


def _read_pair(files: tuple[Path, ...], part: str, labelled: bool) -> Listing:
    listing = open_once(files[0], labelled=labelled)  # a MATLAB file for training is read with that for test
    if listing.parts is not None:
        return take_part(listing, part)
    return listing if part == "train" else open_once(files[1], labelled=labelled)


def _read_folders(files: tuple[Path, ...], part: str, labelled: bool) -> Listing:
    return open_once(files[0 if part == "train" else 1], labelled=labelled)


def _read_parts(files: tuple[Path, ...], part: str, labelled: bool) -> Listing:
    return take_part(open_once(files[0], labelled=labelled), part)


def _forms(name: str, pack: tuple[str, ...], *official: _Form) -> tuple[_Form, ...]:
    """Return the forms of a domain in the order in which they are looked for."""
    pack_folders = ("", *PACKS, name)
    return (
        *official,
        _Form(
            "M3SDA pack", tuple((file,) for file in pack), pack_folders, _read_pair if len(pack) > 1 else _read_parts
        ),
        _Form("archive", (tuple(f"{name}{suffix}" for suffix in ARCHIVES),), ("",), _read_parts),
        _Form("folder", ((f"{name}/train",), (f"{name}/test",)), ("",), _read_folders),
    )


def _idx_names(stem: str, dimensions: int) -> tuple[str, ...]:
    names = (f"{stem}-idx{dimensions}-ubyte", f"{stem}.idx{dimensions}-ubyte")
    return tuple(f"{name}{suffix}" for name in names for suffix in (".gz", ""))


_MNIST_M = (("mnist_m_train",), ("mnist_m_train_labels.txt",), ("mnist_m_test",), ("mnist_m_test_labels.txt",))
_FORMS: dict[str, tuple[_Form, ...]] = {
    "mt": _forms(
        "mnist",
        ("mnist_data.mat",),
        _Form(
            "official files",
            tuple(_idx_names(f"{p}-{k}", d) for p in ("train", "t10k") for k, d in (("images", 3), ("labels", 1))),
            ("", "mnist", "MNIST", "MNIST/raw", "mnist/raw", "mnist/MNIST/raw"),
            _read_idx,
        ),
    ),
    "mm": _forms(
        "mnistm",
        ("mnistm_with_label.mat",),
        _Form("official files", _MNIST_M, ("", "mnist_m", "mnistm", "MNIST-M"), _read_labels_file),
    ),
    "up": _forms(
        "usps",
        ("usps_28x28.mat",),
        _Form("official files", (("usps.bz2",), ("usps.t.bz2",)), ("", "usps", "USPS"), _read_libsvm),
        _Form("usps.h5", (("usps.h5",),), ("", "usps", "USPS"), _read_h5),
    ),
    "sv": _forms(
        "svhn",
        ("svhn_train_32x32.mat", "svhn_test_32x32.mat"),
        _Form("official files", (("train_32x32.mat",), ("test_32x32.mat",)), ("", "svhn", "SVHN"), _read_pair),
    ),
    "syn": _forms(
        "syn",
        ("syn_number.mat",),
        _Form(
            "official files",
            (("synth_train_32x32.mat",), ("synth_test_32x32.mat",)),
            ("", "syn", "synth", "SynthDigits", "SYN"),
            _read_pair,
        ),
    ),
}

# Images: 40,000 of each of four domains in the paper's split (section 5.2), which it took from DCTN (Xu et al., CVPR
# 2018), and the 9,298 of USPS (LIBSVM's page of multi-class sets). Size: MNIST's four files as its page gave them (11.6
# MB), SVHN's two .mat files (246 MB) and the two of Synthetic Digits (913 MB); no page gives those of USPS and MNIST-M.
# Licences: MNIST as the Keras documentation gives it, SVHN from ufldl.stanford.edu/housenumbers; the pages of USPS and
# of MNIST-M and Synthetic Digits (Ganin and Lempitsky, ICML 2015) state none.
DIGITS_FIVE = Benchmark(
    name="digits-five",
    title="Digits-five",
    domains={"mt": "MNIST", "mm": "MNIST-M", "up": "USPS", "sv": "SVHN", "syn": "Synthetic Digits"},
    classes=10,
    images=4 * (TRAIN + VALIDATION + TEST) + 9_298,
    size=1_171_000_000,
    licence="MNIST CC BY-SA 3.0, SVHN non-commercial use only; MNIST-M, USPS and Synthetic Digits state none",
    image_size=32,
    backbone="3conv-2fc",
    find=find,
    read=read,
    variants=VARIANTS,
    aliases={"mnistm": "mm", "synth": "syn", "synthetic": "syn", "syndigits": "syn"},
    remade=remade,
)
