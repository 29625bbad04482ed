"""Images named by a text file: ``path label`` on each line, perhaps with one file for each part."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from graphmsda.data.formats import PARTS
from graphmsda.data.images import is_image_name
from graphmsda.data.listing import place_name
from graphmsda.data.readers.folder import FolderListing
from graphmsda.data.readers.layout import class_name, printable
from graphmsda.data.readers.list_files import find_missing, find_root
from graphmsda.errors import UserError

LARGEST = 2**28  # bytes: some four million lines
NAMED = 5  # missing images named in the error


@dataclass(frozen=True)
class Line:
    """One line of a list: its number, the path and, where labels are wanted, the label."""

    number: int
    path: str
    label: str | None


def open_list(path: Path, *, labelled: bool, root: Path | None = None, alone: bool = False) -> FolderListing:
    """List the images that a list file names, in its order.

    A list named for a part (``train.txt``, ``clipart_test.txt``, ``photo_train_kfold.txt``) is joined by its siblings
    for the other parts, so that each part can be asked for. A folder is searched for ``train.txt`` and the like.

    Numeric labels are replaced by the names of the folders that hold the images where the two correspond.

    Args:
        path: The list file, or a folder with ``train.txt`` and perhaps ``test.txt`` in it.
        labelled: Whether labels are wanted; otherwise what follows the path is not looked at.
        root: Folder to which the paths relate; by default the folder of the list, or the nearest above or beside it,
            in which the images are found.
        alone: Read the file given and no other.
    """
    lists = {path: None} if alone and path.is_file() else _lists(path)
    given = path if path in lists else next(iter(lists))
    notes: list[str] = []
    found = {file: _once(file, read_list(file, labelled=labelled), notes) for file in lists}
    base = find_root(given.parent, [line.path for line in found[given]]) if root is None else root

    lines: list[Line] = []
    paths: list[Path] = []
    parts: list[str] = []
    absent: list[str] = []
    for file, own in found.items():
        there, missing = find_missing(base, [line.path for line in own])
        if len(missing) == len(own) and file != given:  # lists often come for parts that were never fetched
            notes.append(f"{file}: left out, for none of its {len(own):,} images is below {base}")
            continue
        absent += [own[row].path for row in missing]
        lines, paths = lines + own, paths + there
        parts += [part] * len(own) if (part := lists[file]) else []
    _refuse_missing(path, base, absent, len(lines))
    if shared := len(paths) - len(set(paths)):
        notes.append(f"{path}: {shared:,} images are named in the lists of more than one part")
    labels = _classes(path, lines, notes) if labelled else None
    return FolderListing(
        _name(path), path, labels, tuple(paths), base=base, parts=tuple(parts) or None, notes=tuple(notes)
    )


def part_named(path: Path) -> str | None:
    """Return the part that a list file is named for.

    >>> part_named(Path("photo_crossval_kfold.txt")), part_named(Path("photo.txt"))
    ('validation', None)
    """
    words = _words(path)
    return None if words is None else PARTS[words[1].lower()]


def read_list(path: Path, *, labelled: bool) -> list[Line]:
    """Return the lines of a list file that name an image; blank ones and those beginning with ``#`` are passed over.

    The label is the last field: after the last tab, else after a comma that follows a picture's name, else after the
    last blank. Without `labelled` it is cut off unseen.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path}: larger than {LARGEST >> 20} MiB, so hardly a list; give lines of 'path label'")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a list file you may read") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not text in UTF-8 (byte {error.start}); give lines of 'path label'") from error
    result: list[Line] = []
    for number, line in enumerate(re.split("\r\n|\r|\n", text), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            result.append(_parse(path, number, line, labelled))
    if not result:
        raise UserError(f"{path}: names no images; give lines of 'path label'")
    if labelled:
        _check_labels(path, result)
    return result


def _parse(file: Path, number: int, line: str, labelled: bool) -> Line:
    path, label = _split(line)
    if "\0" in line or not path:
        raise UserError(f"{file}: line {number} is {line[:80]!r}, which names no image; give lines of 'path label'")
    if labelled and label is None:
        raise UserError(f"{file}: line {number} is {line[:80]!r}, without a label; give lines of 'path label'")
    return Line(number, path, label if labelled else None)


def _split(line: str) -> tuple[str, str | None]:
    """Return the path and what follows it, if anything does."""
    if _is_image(line):
        return _unquoted(line), None
    path, tab, label = line.rpartition("\t")
    if not tab:
        path, comma, label = line.rpartition(",")
        if not (comma and _is_image(path)):
            fields = line.rsplit(None, 1)
            path, label = fields if len(fields) == 2 else (path, label)
    if not path.strip(" \t,"):
        return _unquoted(line), None
    return _unquoted(path.rstrip(" \t,")), _unquoted(label) or None


def _is_image(text: str) -> bool:
    return is_image_name(_unquoted(text))


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text


def _check_labels(file: Path, lines: Sequence[Line]) -> None:
    """Refuse labels that cannot all be meant as numbers from 0 or 1 on, nor all as names."""
    kinds: dict[str, Line] = {}
    for line in lines:
        kinds.setdefault(_kind(line.label or ""), line)
    for kind in ("a negative number", "a fraction"):
        if kind in kinds:
            found = f"label {kinds[kind].label!r} in line {kinds[kind].number} is {kind}"
            raise UserError(f"{file}: {found}; give whole numbers from 0 or 1 on, or names")
    if len(kinds) > 1:
        one, other = kinds["a number"], kinds["a name"]
        raise UserError(
            f"{file}: label {one.label!r} in line {one.number} is a number but {other.label!r} in line {other.number} "
            "is not; give all labels as numbers or all as names"
        )


def _kind(label: str) -> str:
    if re.fullmatch("[0-9]+", label):
        return "a number"
    if re.fullmatch("-[0-9]+", label):
        return "a negative number"
    return "a fraction" if re.fullmatch(r"[-+]?[0-9]*\.[0-9]*(e[-+]?[0-9]+)?", label) else "a name"


def _once(file: Path, lines: Sequence[Line], notes: list[str]) -> list[Line]:
    """Return the lines without those that name an image again, with a note on how many there were."""
    seen: dict[str, Line] = {}
    for line in lines:
        before = seen.setdefault(line.path, line)
        if before.label != line.label:
            raise UserError(
                f"{file}: {line.path} has label {before.label!r} in line {before.number} and {line.label!r} in line "
                f"{line.number}; keep the right one"
            )
    if len(seen) < len(lines):
        notes.append(f"{file}: {len(lines) - len(seen):,} lines name an image again, which is used once")
    return list(seen.values())


def _classes(file: Path, lines: Sequence[Line], notes: list[str]) -> tuple[str, ...]:
    """Return the class of each line, with a note where it is not the label as it stands."""
    labels = [line.label or "" for line in lines]
    if any(_kind(label) == "a name" for label in labels):
        return tuple(class_name(label) for label in labels)
    labels = [label.lstrip("0") or "0" for label in labels]
    folders = [class_name(os.path.basename(os.path.dirname(line.path))) for line in lines]
    pairs = set(zip(labels, folders, strict=True))
    one_to_one = len(pairs) == len({label for label, _ in pairs}) == len({folder for _, folder in pairs})
    if len(pairs) < 2 or not one_to_one or all(_kind(folder) == "a number" for _, folder in pairs):
        return tuple(labels)
    label, folder = min(pairs, key=lambda pair: (len(pair[0]), pair[0]))
    named = f"its {len(pairs)} numeric labels are named after the folders of the images, such as {label} {folder!r}"
    notes.append(f"{file}: {named}")
    return tuple(folders)


def _lists(path: Path) -> dict[Path, str | None]:
    """Return the list files to read and the part that each is named for: training first."""
    if path.is_dir():
        candidates = [path / f"{word}.txt" for word in PARTS]
    else:
        words = _words(path)
        if words is None:
            return {path: None}
        before, own, after = words
        spellings = (own, *(spell(word) for word in PARTS for spell in (str.lower, str.title, str.upper)))
        candidates = [path.with_name(f"{before}{word}{after}") for word in dict.fromkeys(spellings)]
    found: dict[Path, str] = {}
    for file in candidates:
        # A file system that ignores case shows one file under several spellings.
        if file.is_file() and not any(file.samefile(other) for other in found):
            found[file] = part_named(file) or ""
    if not found:
        raise UserError(f"{path}: holds no train.txt or test.txt; give the list file itself")
    order = list(dict.fromkeys(PARTS.values()))
    ordered = sorted(found.items(), key=lambda item: order.index(item[1]))
    return {**dict(ordered)}


def _words(path: Path) -> tuple[str, str, str] | None:
    """Return what comes before the one word in a file's name that says its part, the word, and what comes after."""
    words = re.split(r"([_\-. ]+)", path.name)
    places = [place for place, word in enumerate(words) if word.lower() in PARTS]
    if len(places) != 1:
        return None
    (place,) = places
    return "".join(words[:place]), words[place], "".join(words[place + 1 :])


def _refuse_missing(file: Path, base: Path, missing: Sequence[str], count: int) -> None:
    if missing:
        first = ", ".join(printable(name) for name in missing[:NAMED])
        raise UserError(
            f"{file}: {len(missing):,} of the {count:,} images it names are not below {base.absolute()} "
            f"(first: {first}); put them there, or say with --root where they are"
        )


def _name(path: Path) -> str:
    """Return the name of the domain: what comes before the part, or the folder where nothing does."""
    if path.is_dir():
        return place_name(path)
    words = _words(path)
    name = (path.stem if words is None else words[0]).strip("_-. ")
    name = re.sub(r"[_\-. ](list|labels)$", "", name)
    return name or place_name(path.parent)
