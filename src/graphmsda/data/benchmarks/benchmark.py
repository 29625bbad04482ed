"""What a published benchmark is: its domains, where they are looked for, and how one part of one is listed."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from graphmsda.data.formats import open_listing
from graphmsda.data.listing import Listing, file_identity, take
from graphmsda.errors import UserError

PARTS = ("train", "validation", "test", "all")
SEED = 0  # of every draw that makes a part; recorded with each result
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class Found:
    """What serves one domain of a benchmark at one place.

    Attributes:
        kind: Which of the forms it is published in, in words: ``archive``, ``folder``, ``official files``, ...
        files: The files or folders, the one with the images first.
        read: Lists one part from `files` where the form needs a reader of its own.
    """

    kind: str
    files: tuple[Path, ...]
    read: Callable[[tuple[Path, ...], str, bool], Listing] | None = None


class ReadPart(Protocol):
    """Lists one part of one domain from the files found for it."""

    def __call__(self, found: Found, domain: str, part: str, *, labelled: bool, variant: str) -> Listing:
        """List it; without `labelled` nothing that could be a label is looked at."""


@dataclass(frozen=True)
class Benchmark:
    """A published collection of domains that share their classes.

    Attributes:
        name: The folder's name below the data root, and what comes before the colon in ``--task digits-five:mm``.
        title: What people call it.
        domains: Short name of each domain and its long name.
        classes: Number of classes.
        images: Number of images, as published.
        size: Bytes of the published files, about; None where no source says.
        licence: Under which it may be used, with the source of that word.
        image_size: Side in pixels at which the paper reads it (Table 1).
        find: Says what serves a domain at a place, or in a few words why nothing does.
        read: Lists one part of one domain from what was found.
        variants: Name of each way the literature uses it and one sentence on what it is; the first is the default.
        aliases: Further names of domains, in lower case, such as the letters of the paper's tables.
        transductive: True where the set has no test part: then a target is trained on as a whole, without labels, and
            tested as a whole, while a source keeps 10 % of its images apart for validation. A target is opened with
            part ``all`` in this case, and with part ``train`` otherwise.
        remade: Says of what was found whether it is a re-made stand-in for the published domain.
        backbone: The network the paper uses on it (Table 1).
    """

    name: str
    title: str
    domains: Mapping[str, str]
    classes: int
    images: int
    size: int | None
    licence: str
    image_size: int
    find: Callable[[Path, str], Found | str]
    read: ReadPart
    variants: Mapping[str, str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    transductive: bool = False
    remade: Callable[[str, Found], bool] = lambda domain, found: False
    backbone: str = "auto"

    def open(self, place: Path, domain: str, part: str, *, labelled: bool, variant: str | None = None) -> Listing:
        """List one part of one domain.

        Training and validation parts never share an image.

        Args:
            place: The benchmark's folder.
            domain: One of `domains`.
            part: ``train``; ``validation``, which is the test part where the set has a test part but no validation
                part; ``test``, which is the whole domain where the set is `transductive`; or ``all``.
            labelled: Whether labels are wanted; otherwise nothing that could be a label is looked at.
            variant: One of `variants`; by default the first.

        Raises:
            UserError: The domain's files are missing or not as they should be.
        """
        if part not in PARTS or domain not in self.domains:
            raise ValueError(f"{self.name} has no part {part!r} of {domain!r}")
        variant = self.choose_variant(variant)
        found = self.require(place, domain)
        listing = self.read(found, domain, part, labelled=labelled, variant=variant)
        what = "whole domain" if part == "all" else f"{part} part"
        served = f"{self.name}:{domain}: {what}, {len(listing):,} samples of variant {variant}"
        note = f"{served}, from {' and '.join(_names(found, place))} ({found.kind})"
        if self.remade(domain, found):
            note += f"; re-synthesised, so not comparable to published results with {self.domains[domain]}"
        # What was taken of which file is in this note, so the one on the choice of a part would say it twice.
        others = tuple(n for n in listing.notes if not n.startswith(f"{listing.origin}: using its "))
        return dataclasses.replace(listing, name=domain, notes=(*others, note))

    def require(self, place: Path, domain: str) -> Found:
        """Return what serves a domain, or say in one sentence what is missing and what to do."""
        found = self.find(place, domain)
        if isinstance(found, Found):
            return found
        raise UserError(
            f"{self.name}:{domain} ({self.domains[domain]}) cannot be read: {found}; "
            f"run graphmsda data prepare {self.name}, or say with --data-root where the data lies"
        )

    def missing(self, place: Path) -> dict[str, str]:
        """Return the domains that cannot be read below `place`, and why: ``{"mm": "no mnistm.zip in ..."}``."""
        found = {domain: self.find(place, domain) for domain in self.domains}
        return {domain: why for domain, why in found.items() if isinstance(why, str)}

    def choose_variant(self, variant: str | None) -> str:
        """Return `variant` if there is such a one, and the default for None."""
        if variant is None:
            return next(iter(self.variants))
        if variant not in self.variants:
            raise UserError(
                f"{self.name} has no variant {variant!r}; {_did_you_mean(variant, list(self.variants))}"
                f"choose one of {', '.join(self.variants)}"
            )
        return variant

    def describe(self, place: Path, variant: str | None = None) -> dict[str, object]:
        """Return what to record with a result: the variant, the seed of the draws and which files serve."""
        variant = self.choose_variant(variant)
        domains: dict[str, object] = {}
        for domain in self.domains:
            found = self.find(place, domain)
            if isinstance(found, Found):
                remade = self.remade(domain, found)
                domains[domain] = {"kind": found.kind, "files": _names(found, place), "re-synthesised": remade}
        about = self.variants[variant]
        return {"benchmark": self.name, "variant": variant, "about": about, "seed": SEED, "domains": domains}


def data_root(given: str | Path | None = None) -> Path:
    """Return where benchmarks are looked for: as given, else ``$GRAPHMSDA_DATA``, else the user's own data folder."""
    if given is not None:
        return Path(given).expanduser()
    named = os.environ.get("GRAPHMSDA_DATA")
    return Path(named).expanduser() if named else Path("~/.local/share/graphmsda").expanduser()


def resolve_domain(benchmark: Benchmark, text: str) -> str:
    """Return the short name of the domain that `text` names: short or long, in any case, with any separators."""
    known = {_plain(alias): domain for alias, domain in benchmark.aliases.items()}
    known |= {_plain(title): domain for domain, title in benchmark.domains.items()}
    known |= {_plain(domain): domain for domain in benchmark.domains}
    if _plain(text) in known:
        return known[_plain(text)]
    close = difflib.get_close_matches(_plain(text), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[close[0]]}? " if close else ""
    raise UserError(f"{benchmark.name} has no domain {text!r}; {hint}choose one of {', '.join(benchmark.domains)}")


def choose_name(text: str, names: Sequence[str], what: str) -> str:
    """Return the one of `names` that `text` spells, whatever its case and separators."""
    known = {_plain(name): name for name in names}
    if _plain(text) in known:
        return known[_plain(text)]
    raise UserError(f"there is no {what} {text!r}; {_did_you_mean(text, names)}choose one of {', '.join(names)}")


def find_images(place: Path, name: str, wrappers: Sequence[str]) -> Path | None:
    """Return the archive, else the folder, called `name` directly in `place` or in one of its `wrappers`."""
    for base in (place, *(place / wrapper for wrapper in wrappers)):
        for candidate in (*(base / f"{name}{suffix}" for suffix in ARCHIVES), base / name):
            # These functions say no, where those of pathlib raise, of a folder that may not be looked into.
            if os.path.isdir(candidate) if candidate.name == name else os.path.isfile(candidate):
                return candidate
    return None


def why_absent(place: Path, name: str, wrappers: Sequence[str]) -> str:
    """Say that `find_images` found nothing, and whether the whole benchmark lies there as one packed file."""
    packed = packed_whole(place, wrappers)
    return packed or f"neither {name}.zip nor a folder {name} is in {place}"


def packed_whole(place: Path, names: Sequence[str]) -> str | None:
    """Say that a benchmark lies at `place` as one archive called as one of `names`, which has to be unpacked first."""
    for name in (place.name, *names):
        for suffix in ARCHIVES:
            if os.path.isfile(place / f"{name}{suffix}"):
                return f"{place / name}{suffix} holds several domains and has to be unpacked there"
    return None


def kind_of(path: Path) -> str:
    """Return the word for an archive or folder of images."""
    return "folder" if path.is_dir() else "archive"


_OPEN: WeakValueDictionary[tuple[object, ...], Listing] = WeakValueDictionary()


def open_once(
    path: Path, *, labelled: bool, opener: Callable[[], Listing] | None = None, part: str | None = None
) -> Listing:
    """List a file, or return the listing of it that is still in use.

    A training and a validation part are both rows of one file; without this it would be in memory twice.

    Args:
        path: The file, or a folder, which is listed every time.
        labelled: Whether labels are wanted.
        opener: Lists it, where `open_listing` would not know how.
        part: What `opener` lists of it, where that is not everything.
    """
    key = (path, file_identity(path), labelled, part)
    listing = None if path.is_dir() else _OPEN.get(key)  # a folder's own time of change says nothing of what is below
    if listing is None:
        listing = opener() if opener else open_listing(path, labelled=labelled)
        _OPEN[key] = listing
    return listing


TEST_SERVES = "its test part serves for validation"


def as_validation(test: Listing) -> Listing:
    """Return the test part of a source that has no validation part, noted as what it stands in for."""
    return take(test, range(len(test)), f"{test.origin}: no validation part, so {TEST_SERVES}")


def item_key(name: str) -> str:
    """Return what an image is called in any of the forms it comes in: its class folder and name, without suffix.

    >>> item_key("art_painting.zip/dog/pic_001.webp") == item_key("kfold/art_painting/dog/pic_001.jpg")
    True
    """
    folder, _, file = name.replace("\\", "/").rpartition("/")
    stem = file.rpartition(".")[0] or file
    return unicodedata.normalize("NFC", f"{folder.rpartition('/')[2]}/{stem}")


def _names(found: Found, place: Path) -> list[str]:
    # Relative to the benchmark's folder, so that a record says the same on every machine.
    return [file.relative_to(place).as_posix() if file.is_relative_to(place) else file.name for file in found.files]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _did_you_mean(text: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(text, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}? " if close else ""
