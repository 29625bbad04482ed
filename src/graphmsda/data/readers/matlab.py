"""MATLAB files as the digit sets come in them, and others with images or features and labels under plain names."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphmsda.data.listing import place_name
from graphmsda.data.readers.arrays import ArrayListing, finite, label_names, listing_of_parts, pair_keys
from graphmsda.data.readers.matfile import CELL, NUMBER, TEXT, Variable, open_variables
from graphmsda.errors import UserError

CHUNK = 4096  # images converted at a time


@dataclass
class _Block:
    """Samples of one part, of one file; `y` is None where labels are not asked for.

    `layout` is ``last`` where the last axis counts the samples, as in SVHN, ``columns`` where each column is one,
    ``slabs`` where each digit has a slab of its own, as in usps_all.mat, and empty where the first axis counts them.
    """

    path: Path
    part: str | None
    key: str
    x: NDArray[Any]
    y: list[str] | None
    layout: str


def open_matlab(path: Path, *, labelled: bool, root: Path | None = None, alone: bool = False) -> ArrayListing:
    """Read a MATLAB file of any version; without `labelled` variables with labels are not loaded.

    A file whose name says ``train`` is read with the one beside it whose name says ``test`` instead, if there is one,
    unless it is to be read `alone`.
    """
    notes: list[str] = []
    blocks = _blocks(path, labelled, notes)
    if not alone and [block.part for block in blocks] == [None]:
        for part, beside in _siblings(path).items():
            more = _blocks(beside, labelled, notes)
            if [block.part for block in more] == [None]:
                blocks[0].part, more[0].part = "train", part
                blocks += more
                notes.append(f"{path}: {beside.name} beside it was taken for its {part} part")
    if labelled:
        _mend_tens(blocks, notes)
    parts = [block.part for block in blocks]
    labels = [label for block in blocks for label in block.y or ()] if labelled else None
    samples = _pixels(blocks) if blocks[0].x.ndim > 2 else [finite(b.path, b.x, b.key) for b in blocks]
    del blocks  # so that each part is let go as soon as it is joined to the others
    return listing_of_parts(path, place_name(path.with_suffix("")), parts, samples, labels, notes)


def _blocks(path: Path, labelled: bool, notes: list[str]) -> list[_Block]:
    variables = open_variables(path)
    triples = _known_cells(variables) or _named(path, variables, labelled, notes)
    blocks = []
    for part, key, x_variable, y_variable in triples:
        x, layout = _arrange(path, key, x_variable.load())
        y = None
        if labelled and layout == "slabs":
            y = [str((digit + 1) % 10) for digit in range(10) for _ in range(len(x) // 10)]
            notes.append(f"{path}: digits were taken to come in the order 1 to 9, then 0, as in usps_all.mat")
        elif labelled:
            y = _labels(path, key, y_variable, len(x), layout, notes)
        blocks.append(_Block(path, part, key, x, y, layout))
    return blocks


def _known_cells(variables: dict[str, Variable]) -> list[tuple[str | None, str, Variable, Variable]]:
    """Return the parts of a ``dataset`` cell as in usps_28x28.mat: a row for each part, images and labels in it."""
    cell = variables.get("dataset")
    if cell is None or cell.kind != CELL or cell.shape != (2, 2):
        return []
    rows = cell.load()
    if any(variable.kind != NUMBER for variable in rows.ravel()):
        return []
    return [(part, f"dataset{{{n + 1},1}}", rows[n][0], rows[n][1]) for n, part in enumerate(("train", "test"))]


def _named(
    path: Path, variables: dict[str, Variable], labelled: bool, notes: list[str]
) -> list[tuple[str | None, str, Variable, Variable]]:
    usable = [
        name
        for name, variable in variables.items()
        if variable.kind in (TEXT, CELL) or (variable.kind == NUMBER and math.prod(variable.shape) > 0)
    ]
    nothing = Variable((), "nothing", lambda: None)
    result = []
    pairs = pair_keys(usable)
    for part, (x_key, y_key) in pairs.items():
        if x_key is None or variables[x_key].kind != NUMBER or min(variables[x_key].shape) < 1:
            found = [f"{n} ({' x '.join(map(str, v.shape))}, {v.kind})" for n, v in list(variables.items())[:10]]
            raise UserError(
                f"{path}: no images or features under a name known here (found: {', '.join(found) or 'nothing'}); "
                "call them X and their labels y, or x_train, y_train, x_test and y_test"
            )
        slabs = y_key is None and _is_slabs(variables[x_key].shape)
        if labelled and y_key is None and not slabs and any(y for _, y in pairs.values()):
            notes.append(f"{path}: no labels for {x_key}, which is left out")
        elif labelled and y_key is None and not slabs:
            raise UserError(
                f"{path}: no labels for {x_key} (found: {', '.join(variables)}); add them under a name such as y"
            )
        else:
            result.append((part, x_key, variables[x_key], nothing if y_key is None else variables[y_key]))
    return result


def _siblings(path: Path) -> dict[str, Path]:
    match = re.search(r"(?<![a-z])train(?![a-z])", path.name, re.IGNORECASE)
    if match is None:
        return {}
    found = {}
    for part, word in (("validation", "val"), ("test", "test")):
        word = word.upper() if match[0].isupper() else word.title() if match[0].istitle() else word
        beside = path.with_name(path.name[: match.start()] + word + path.name[match.end() :])
        if beside.is_file():
            found[part] = beside
    return found


def _is_slabs(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] == 256 and shape[2] == 10


def _arrange(path: Path, key: str, x: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Bring samples into the shape ``(N, H, W, C)`` or ``(N, F)`` and say how they lay; labels have no part in it."""
    if x.dtype.kind not in "iufb":
        raise UserError(f"{path}: {key} is {x.dtype}; give numbers")
    shape = x.shape
    if len(shape) == 4:
        if shape[2] in (1, 3) and (shape[3] not in (1, 3) or shape[0] == shape[1]):
            return x.transpose(3, 0, 1, 2), "last"
        if shape[3] in (1, 3):
            return x, ""
        if shape[1] in (1, 3):
            return x.transpose(0, 2, 3, 1), ""
    if _is_slabs(shape):  # each column a digit, its pixels counted down the columns
        return x.transpose(2, 1, 0).reshape(-1, 16, 16, 1).transpose(0, 2, 1, 3), "slabs"
    if len(shape) == 3 and shape[0] != shape[1] == shape[2]:
        return x[..., None], ""
    if len(shape) == 3 and shape[0] == shape[1] != shape[2]:
        return x.transpose(2, 0, 1)[..., None], "last"
    if len(shape) == 2 and "patterns" in key.lower():  # usps_resampled.mat
        rows = np.ascontiguousarray(x.T)
        return (rows.reshape(-1, 16, 16, 1) if shape[0] == 256 else rows), "columns"
    if len(shape) == 2 and shape[1] == 256 and "usps" in path.name.lower():
        return np.ascontiguousarray(x).reshape(-1, 16, 16, 1), ""
    if len(shape) == 2:
        return x, ""
    raise UserError(
        f"{path}: {key} is of shape {shape}, which does not tell images from rows and columns; "
        "give images as (N, H, W, C), (H, W, C, N) or square (N, H, W), or features as (N, F)"
    )


def _labels(path: Path, x_key: str, variable: Variable, count: int, layout: str, notes: list[str]) -> list[str]:
    value = variable.load()
    y_key = f"the labels of {x_key}"
    if variable.kind == CELL:
        words = [child.load() if child.kind == TEXT else ["", ""] for child in value.ravel()]
        if any(len(word) > 1 for word in words):
            raise UserError(f"{path}: {y_key} are cells that hold more than a word; give one label for each sample")
        return label_names(path, np.array(["".join(word) for word in words]), count, x_key, y_key)
    if variable.kind == TEXT:
        return label_names(path, np.array(value), count, x_key, y_key)
    if variable.kind != NUMBER:
        raise UserError(f"{path}: {y_key} are {variable.kind}; give one integer or string for each sample")
    y = np.asarray(value)
    if y.size == max(y.shape):
        y = y.ravel()
    elif y.ndim == 2:
        y = _one_hot(path, y_key, y.T if layout == "columns" else y)
        notes.append(f"{path}: {y_key} mark one of several columns, which were counted from 0")
    if y.dtype.kind == "f":
        whole = np.rint(y)
        if not (np.isfinite(y) & (whole == y) & (np.abs(y) < 2**53)).all():
            raise UserError(f"{path}: {y_key} are not all whole numbers; give one integer or string for each sample")
        y = whole.astype(np.int64)
    return label_names(path, y.astype(np.int64) if y.dtype.kind == "b" else y, count, x_key, y_key)


def _one_hot(path: Path, y_key: str, y: NDArray[Any]) -> NDArray[np.int64]:
    if not np.isin(y, (-1, 0, 1)).all() or not ((y == 1).sum(axis=1) == 1).all():
        raise UserError(
            f"{path}: {y_key} are of shape {y.shape}; give one number for each sample, or one 1 in each row"
        )
    columns: NDArray[np.int64] = np.argmax(y, axis=1)
    return columns


def _mend_tens(blocks: list[_Block], notes: list[str]) -> None:
    """Read the label 10 as the digit 0 where images lie as in SVHN, which counts its classes so."""
    found = {label for block in blocks for label in block.y or ()}
    if blocks[0].layout == "last" and "10" in found and found <= {str(number) for number in range(1, 11)}:
        for block in blocks:
            block.y = ["0" if label == "10" else label for label in block.y or ()]
        notes.append(f"{blocks[0].path}: the label 10 was read as the digit 0, which it stands for in SVHN")


def _pixels(blocks: list[_Block]) -> list[NDArray[np.uint8]]:
    """Bring the images of all parts to bytes with one and the same scale."""
    low = float(np.min([block.x.min() for block in blocks]))  # not a number if any of them is not
    high = float(np.max([block.x.max() for block in blocks]))
    whole = all(block.x.dtype.kind != "f" for block in blocks)
    if whole and low >= 0 and high <= 255 and high != 1:
        offset, scale = 0.0, 1.0
    elif low >= 0 and high <= 1:
        offset, scale = 0.0, 255.0
    elif low >= -1 and high <= 1:
        offset, scale = 1.0, 127.5
    elif low >= 0 and high <= 255:
        offset, scale = 0.0, 1.0
    else:
        block = blocks[0]
        raise UserError(
            f"{block.path}: pixels of {block.key} lie between {low:g} and {high:g}; give 0 to 255, 0 to 1 or -1 to 1"
        )
    return [_to_bytes(block.x, offset, scale) for block in blocks]


def _to_bytes(x: NDArray[Any], offset: float, scale: float) -> NDArray[np.uint8]:
    if x.dtype == np.uint8 and scale == 1.0:
        return x
    result = np.empty(x.shape, dtype=np.uint8)
    for start in range(0, len(x), CHUNK):
        piece = x[start : start + CHUNK].astype(np.float32)
        result[start : start + CHUNK] = np.rint((piece + np.float32(offset)) * np.float32(scale))
    return result
