"""What a published benchmark is: its domains, where they are looked for, and how one part of one is listed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from graphmsda.data.listing import Listing


class OpenDomain(Protocol):
    """Lists one part (``train``, ``validation`` or ``test``) of one domain of a benchmark below `place`."""

    def __call__(self, place: Path, domain: str, part: str, *, labelled: bool, variant: str) -> Listing:
        """List it, or say in one sentence which file is missing and where to put it."""


@dataclass(frozen=True)
class Benchmark:
    """A published collection of domains that share their classes.

    Attributes:
        name: The folder's name below the data root, and what comes before the colon in ``--task digits-five:mm``.
        title: What people call it.
        domains: Short name of each domain, as in the paper's tables, and its long name.
        classes: Number of classes.
        images: Number of images, as published.
        size: Bytes of the published files, about.
        licence: Under which it may be used, with the source of that word.
        image_size: Side in pixels at which the paper reads it (Table 1).
        variants: Name of each way the literature uses it and one sentence on what it is; the first is the default.
        open: Lists one part of one domain.
        missing: Says of a place which domains cannot be read there, and why: ``{"mm": "no mnistm.zip"}``.
    """

    name: str
    title: str
    domains: Mapping[str, str]
    classes: int
    images: int
    size: int
    licence: str
    image_size: int
    open: OpenDomain
    missing: Callable[[Path], dict[str, str]]
    variants: Mapping[str, str] = field(default_factory=dict)


def data_root(given: str | Path | None = None) -> Path:
    """Return where benchmarks are looked for: as given, else ``$GRAPHMSDA_DATA``, else the user's own data folder."""
    if given is not None:
        return Path(given).expanduser()
    named = os.environ.get("GRAPHMSDA_DATA")
    return Path(named).expanduser() if named else Path("~/.local/share/graphmsda").expanduser()
