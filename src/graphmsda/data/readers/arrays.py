"""Arrays in ``.npz`` files and in memory: ``x`` with images or features and, where labels are wanted, ``y``."""

from __future__ import annotations

import re
import unicodedata
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphmsda.data.formats import PARTS
from graphmsda.data.listing import place_name
from graphmsda.data.readers.array_listing import ArrayListing as ArrayListing
from graphmsda.errors import UserError

EXPECTED = "give uint8 images (N, H, W) or (N, H, W, 1 or 3), or floating-point features (N, F)"

# What variables are called once "train" or "test" is taken from their names, the best first.
SAMPLE_NAMES = (
    "x", "images", "image", "imgs", "img", "data", "32", "28", "", "patterns", "features", "feature", "feats", "fea",
)  # fmt: skip
LABEL_NAMES = ("y", "labels", "label", "targets", "target", "classes", "class", "gnd")

UNREADABLE = (
    OSError, ValueError, EOFError, KeyError, NotImplementedError, MemoryError, OverflowError, SyntaxError,
    RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def open_arrays(path: Path, *, labelled: bool, root: Path | None = None) -> ArrayListing:
    """Read an ``.npz`` file with ``x`` and ``y``, or with ``x_train``, ``y_train``, ``x_test`` and so on.

    Without `labelled` no ``y`` is even opened.
    """
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise UserError(f"{path}: holds one bare array; save it with np.savez(file, x=..., y=...)")
            pairs, notes = _npz_pairs(path, archive.files, labelled)
            samples: list[NDArray[Any]] = []
            labels: list[str] = []
            for x_key, y_key in pairs.values():
                samples.append(_samples(path, _member(path, archive, x_key), x_key))
                if labelled:
                    y = _member(path, archive, y_key, labels=True)
                    labels += label_names(path, y, len(samples[-1]), x_key, y_key)
    except UNREADABLE as error:
        raise UserError(f"{path}: cannot be read as .npz; save it anew with np.savez(file, x=..., y=...)") from error
    name = place_name(path.with_suffix(""))
    return listing_of_parts(path, name, list(pairs), samples, labels if labelled else None, notes)


def listing_of_parts(
    path: Path,
    name: str,
    parts: Sequence[str | None],
    samples: list[NDArray[Any]],
    labels: Sequence[str] | None,
    notes: Sequence[str] = (),
) -> ArrayListing:
    """Join the checked samples of several parts; `samples` is emptied on the way, so that memory holds them once."""
    shapes = {part: x.shape[1:] for part, x in zip(parts, samples, strict=True)}
    if len(set(shapes.values())) > 1:
        found = " but ".join(f"{shape} in its {part} part" for part, shape in shapes.items())
        raise UserError(f"{path}: samples are of shape {found}; give all parts the same shape")
    marks = [part for part, x in zip(parts, samples, strict=True) for _ in range(len(x))]
    x = samples.pop() if len(samples) == 1 else _join(samples)
    if x.ndim == 4:
        x = _in_colour(x)
    return ArrayListing(
        name,
        path,
        None if labels is None else tuple(labels),
        x,
        parts=None if None in marks else tuple(part or "" for part in marks),
        notes=tuple(notes),
    )


def listing_of_arrays(x: Any, labels: Sequence[str] | None, *, name: str) -> ArrayListing:
    """Wrap an array or tensor already in memory; images may have their channels last or first."""
    array = np.asarray(x)
    if array.ndim == 4 and array.shape[3] not in (1, 3) and array.shape[1] in (1, 3):
        array = array.transpose(0, 2, 3, 1)
    return ArrayListing(name, Path(name), None if labels is None else tuple(labels), _samples(Path(name), array))


def pair_keys(keys: Iterable[str]) -> dict[str | None, tuple[str | None, str | None]]:
    """Find which variables hold samples and which labels, for each part, or under None where there are no parts.

    >>> pair_keys(["label_train", "train_32", "train_28"])
    {'train': ('train_32', 'label_train')}
    >>> pair_keys(["X", "y", "mean"])
    {None: ('X', 'y')}
    """
    found: dict[tuple[str | None, bool], list[tuple[int, str]]] = defaultdict(list)
    for key in keys:
        words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+", key)]
        part = next((PARTS[word] for word in words if word in PARTS), None)
        rest = "".join(word for word in words if word not in PARTS)
        for names, are_labels in ((SAMPLE_NAMES, False), (LABEL_NAMES, True)):
            if rest in names and (rest or part):
                found[part, are_labels].append((names.index(rest), key))
    best = {place: min(ranked)[1] for place, ranked in found.items()}
    parts: list[str | None] = [part for part in ("train", "validation", "test") if (part, False) in best]
    return {part: (best.get((part, False)), best.get((part, True))) for part in parts or [None]}


def most_bytes(path: Path) -> int:
    """Return to what a file may unfold: real data shrinks tenfold, what shrinks a thousandfold is made to do harm."""
    return max(2**28, 50 * path.stat().st_size)


def label_names(path: Path, y: NDArray[Any], count: int, x_key: str = "x", y_key: str = "y") -> list[str]:
    """Return the class name of each sample from integers or strings, one for each sample."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "iuU":
        raise UserError(f"{path}: {y_key} is {y.dtype} of shape {y.shape}; give one integer or string for each sample")
    if len(y) != count:
        raise UserError(
            f"{path}: {count} samples in {x_key} but {len(y)} labels in {y_key}; give one label for each sample"
        )
    return [unicodedata.normalize("NFC", str(label)) for label in y.tolist()]


def finite(path: Path, x: NDArray[Any], key: str = "x") -> NDArray[np.float32]:
    """Return features in 32 bits, or say how many rows hold values that are not finite."""
    with np.errstate(over="ignore"):
        features = x.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(bad):
        raise UserError(
            f"{path}: {len(bad)} of {len(x)} rows of {key} hold values that are not finite in 32 bits "
            f"(first: row {bad[0]}); fill in or remove them"
        )
    return features


def _npz_pairs(
    path: Path, keys: Sequence[str], labelled: bool
) -> tuple[dict[str | None, tuple[str, str]], tuple[str, ...]]:
    """Return the keys of samples and labels of each part, and notes on parts that cannot be used."""
    found = pair_keys(keys)
    parts = [part for part in found if part is not None]
    if "x" in keys or not parts:
        return {None: ("x", "y")}, ()
    with_labels = [part for part in parts if found[part][1] is not None]
    used = with_labels if labelled and with_labels else parts
    notes = tuple(f"{path}: no labels for {found[part][0]}, which is left out" for part in parts if part not in used)
    return {part: (str(found[part][0]), str(found[part][1] or f"y_{part}")) for part in used}, notes


def _join(samples: list[NDArray[Any]]) -> NDArray[Any]:
    joined = np.empty((sum(map(len, samples)), *samples[0].shape[1:]), dtype=samples[0].dtype)
    end = len(joined)
    while samples:  # from the last, so that each is let go as soon as it is copied
        last = samples.pop()
        joined[end - len(last) : end] = last
        end -= len(last)
    return joined


def _member(path: Path, archive: np.lib.npyio.NpzFile, key: str, *, labels: bool = False) -> NDArray[Any]:
    if key not in archive.files:
        more = f" and {len(archive.files) - 10:,} more" if len(archive.files) > 10 else ""
        found = (", ".join(archive.files[:10]) or "nothing") + more
        raise UserError(
            f"{path}: no array named {key!r} in it (found: {found}); save it with np.savez(file, x=..., y=...)"
        )
    sizes = {info.filename: info.file_size for info in archive.zip.infolist()} if archive.zip else {}
    if max(sizes.get(key, 0), sizes.get(f"{key}.npy", 0)) > most_bytes(path):
        raise UserError(f"{path}: {key!r} unfolds to far more than the file holds; save it anew without compression")
    try:
        return np.asarray(archive[key])
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise UserError(
            f"{path}: {key!r} holds Python objects, which are not loaded because they could run code; "
            "save it as an array of numbers" + (" or strings" if labels else "")
        ) from error


def _samples(path: Path, x: NDArray[Any], key: str = "x") -> NDArray[Any]:
    found = f"{path}: {key} is {x.dtype} of shape {x.shape}"
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        if x.ndim == 3:
            x = x[..., None]
        if x.shape[3] not in (1, 3):
            hint = "move the channels last" if x.shape[1] in (1, 3) else EXPECTED
            raise UserError(f"{found}, images with {x.shape[3]} channels; {hint}")
        x = _in_colour(x)
    elif np.issubdtype(x.dtype, np.floating) and x.ndim == 2:
        x = finite(path, x, key)
    else:
        hint = ", such as np.round(255 * x).astype(np.uint8)" if x.dtype.kind == "f" and x.ndim in (3, 4) else ""
        raise UserError(f"{found}; {EXPECTED}{hint}")
    if 0 in x.shape:
        raise UserError(f"{found}, which is empty; give at least one sample")
    return x


def _in_colour(x: NDArray[Any]) -> NDArray[Any]:
    """Let grey images show the one channel three times, without a copy; others stay as they are, open to writing."""
    return x if x.shape[3] == 3 else np.broadcast_to(x, (*x.shape[:3], 3))
