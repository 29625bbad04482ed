"""Classes of several domains matched by name, never by their order."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from graphmsda.data.listing import Listing
from graphmsda.errors import UserError

POLICIES = ("error", "common", "union")


@dataclass(frozen=True)
class Matched:
    """The classes of a task and what each source holds of them.

    Attributes:
        classes: Their names, numbers in numeric order before words in alphabetical order.
        rows: For each source the rows that are kept, in their order.
        indices: For each source the class of each kept row, as a place in `classes`.
        notes: One sentence for each thing that had to be assumed or left out.
    """

    classes: tuple[str, ...]
    rows: tuple[tuple[int, ...], ...]
    indices: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]


def match_classes(sources: Sequence[Listing], policy: str = "error") -> Matched:
    """Match the classes of labelled sources by name.

    Spellings of a number (``3``, ``03``, ``3.0``) are one class, and so are names that differ in case, ``_``, ``-`` or
    spaces alone. Where one source counts its classes from 0 and another as many from 1, the latter are shifted.

    Args:
        sources: Listings with labels.
        policy: What to do with classes that some source lacks: ``error``, ``common`` (leave them out) or ``union``
            (keep them).
    """
    if policy not in POLICIES:
        raise UserError(f"--classes {policy}: unknown; choose one of {', '.join(POLICIES)}")
    named = [Counter(source.labels or ()) for source in sources]
    origins = [source.origin for source in sources]
    keys, notes = _common_keys(origins, named)
    display = _display(named, keys)
    held = [set(of.values()) for of in keys]
    everything, shared = set().union(*held), set(held[0]).intersection(*held)
    for origin, here, found in zip(origins, held, named, strict=True):
        if len(here) < 2 and (policy != "union" or len(everything) < 2):
            raise UserError(f"{origin}: only one class ({min(found)}) in it; give sources with at least two classes")
    kept = shared if policy == "common" else everything
    lacking = [
        f"{origin} lacks {_enumerate(_ordered(display[key] for key in everything - here))}"
        for origin, here in zip(origins, held, strict=True)
        if here != everything
    ]
    if lacking and policy == "error":
        raise UserError(
            f"the classes of the sources differ: {'; '.join(lacking)}; give all sources the same classes, "
            "or use --classes common (those that all have) or --classes union (all of them)"
        )
    if len(kept) < 2:
        what = "only one class" if kept else "no class"
        names = f" ({display[next(iter(kept))]})" if kept else ""
        raise UserError(
            f"{what}{names} is in every source: {'; '.join(lacking)}; "
            "give sources that share at least two classes, or use --classes union"
        )
    if lacking and policy == "union":
        notes.append(f"the classes of the sources differ, and all {len(kept)} are used: {'; '.join(lacking)}")

    classes = tuple(_ordered(display[key] for key in kept))
    place = {name: number for number, name in enumerate(classes)}
    rows: list[tuple[int, ...]] = []
    indices: list[tuple[int, ...]] = []
    for source, of in zip(sources, keys, strict=True):
        index = {label: place[display[key]] for label, key in of.items() if key in kept}
        labels = source.labels or ()
        rows.append(tuple(row for row, label in enumerate(labels) if label in index))
        indices.append(tuple(index[label] for label in labels if label in index))
        if len(rows[-1]) < len(labels):
            left_out = _ordered(label for label in of if label not in index)
            notes.append(
                f"{source.origin}: {len(labels) - len(rows[-1]):,} of {len(labels):,} samples are left out, "
                f"whose classes other sources lack: {_enumerate(left_out)}"
            )
    return Matched(classes, tuple(rows), tuple(indices), tuple(notes))


def evaluation_indices(
    labels: Sequence[str], classes: Sequence[str], origin: Path | str, notes: list[str] | None = None
) -> list[int]:
    """Return the place in a model's `classes` of each of `labels`, matched as `match_classes` does.

    Args:
        labels: Class names of labelled samples.
        classes: The model's.
        origin: Where the samples were found.
        notes: To which a sentence is added for each thing that had to be assumed.
    """
    names = (Counter(classes), Counter(labels))
    where = Path(origin)
    try:
        (of_model, of_labels), found = _common_keys((Path("this model"), where), names, shifted=1)
    except _NumbersAndWords:
        of_model, of_labels, found = {name: name for name in classes}, {name: name for name in set(labels)}, []
    place = {of_model[name]: number for number, name in enumerate(classes)}
    foreign = sorted(name for name, key in of_labels.items() if key not in place)
    if foreign:
        raise UserError(
            f"{origin}: classes {', '.join(foreign[:5])} are unknown to this model; "
            f"it knows {', '.join(classes[:20])}; rename or remove these"
        )
    index = {name: place[key] for name, key in of_labels.items()}
    if notes is not None:
        notes += found
    return [index[label] for label in labels]


class _NumbersAndWords(UserError):  # noqa: N818 - it describes the sources
    """Some sources call their classes by numbers and others by words."""


def _common_keys(
    origins: Sequence[Path], named: Sequence[Mapping[str, int]], *, shifted: int | None = None
) -> tuple[list[dict[str, str]], list[str]]:
    """Return for each source the key of each of its labels, equal where the class is the same, and notes.

    Args:
        origins: Where each source was found.
        named: The labels of each source.
        shifted: The one source that may be shifted against the others; None: any.
    """
    numbers = [{label: _number(label) for label in labels} for labels in named]
    numeric = [None not in of.values() for of in numbers]
    if all(numeric):
        whole = [{label: number or 0 for label, number in of.items()} for of in numbers]
        return _numeric_keys(origins, whole, shifted)
    words = [all(number is None for number in of.values()) for of in numbers]
    if any(numeric) and any(words):
        with_numbers, with_words = numeric.index(True), words.index(True)
        raise _NumbersAndWords(
            f"{origins[with_numbers]} calls its classes by numbers ({_enumerate(_ordered(named[with_numbers]), 3)}) "
            f"and {origins[with_words]} by names ({_enumerate(_ordered(named[with_words]), 3)}); "
            "give all sources the same names"
        )
    return _word_keys(origins, named)


def _numeric_keys(
    origins: Sequence[Path], numbers: Sequence[Mapping[str, int]], shifted: int | None
) -> tuple[list[dict[str, str]], list[str]]:
    keys: list[dict[str, str]] = []
    notes: list[str] = []
    first = {number: _counted_from(of.values()) for number, of in enumerate(numbers)}
    sizes = {number: len(set(of.values())) for number, of in enumerate(numbers)}
    for number, of in enumerate(numbers):
        others = [other for other in first if other != number and sizes[other] == sizes[number]]
        # Sources are brought to a count from 0; labels to be evaluated to however the model counts.
        to = 0 if shifted is None else first[shifted - 1]
        shift = 0
        if shifted in (None, number) and first[number] in (0, 1) and to in (0, 1) and first[number] != to:
            shift = to - int(first[number] or 0) if any(first[other] == to for other in others) else 0
        if shift:
            notes.append(
                f"{origins[number]}: its classes {min(of.values())} to {max(of.values())} were read as "
                f"{min(of.values()) + shift} to {max(of.values()) + shift}, as elsewhere"
                + ("; if its 10 means 0, call it 0" if max(of.values()) == 10 else "")
            )
        if len(set(of.values())) < len(of):
            notes.append(f"{origins[number]}: spellings of one number, such as 3, 03 and 3.0, were taken for one class")
        keys.append({label: str(value + shift) for label, value in of.items()})
    return keys, notes


def _word_keys(origins: Sequence[Path], named: Sequence[Mapping[str, int]]) -> tuple[list[dict[str, str]], list[str]]:
    # Where one source itself tells "Polish" from "polish", these are matched to the letter everywhere.
    strict = set()
    for labels in named:
        count = Counter(_loose(name) for name in {_exact(label) for label in labels})
        strict |= {key for key, times in count.items() if times > 1}

    def key(label: str) -> str:
        return _exact(label) if _loose(label) in strict else _loose(label)

    keys = [{label: key(label) for label in labels} for labels in named]
    spellings: dict[str, dict[str, Path]] = defaultdict(dict)
    for origin, of in zip(origins, keys, strict=True):
        for label, its_key in of.items():
            spellings[its_key].setdefault(_exact(label), origin)
    differing = [list(names) for names in spellings.values() if len(names) > 1]
    notes = []
    if differing:
        shown = ", ".join(" = ".join(repr(name) for name in names) for names in differing[:5])
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        notes.append(f"names of classes that differ in spelling alone were taken to mean the same: {shown}{more}")
    return keys, notes


def _display(named: Sequence[Mapping[str, int]], keys: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return what to call each class: as most sources spell it, a number plainly where they differ."""
    spellings: dict[str, Counter[str]] = defaultdict(Counter)
    for labels, of in zip(named, keys, strict=True):
        for label in sorted(labels):
            spellings[of[label]][_exact(label)] += 1
    return {
        key: key if len(names) > 1 and _number(key) is not None else names.most_common(1)[0][0]
        for key, names in spellings.items()
    }


def _counted_from(values: Iterable[int]) -> int | None:
    """Return the first of numbers without a gap; None where there are gaps."""
    found = set(values)
    return min(found) if found and max(found) - min(found) + 1 == len(found) else None


def _number(label: str) -> int | None:
    match = re.fullmatch(r"\s*([-+]?[0-9]{1,18})(?:\.0*)?\s*", label)
    return int(match[1]) if match else None


def _exact(label: str) -> str:
    return unicodedata.normalize("NFC", label.strip()) or label


def _loose(label: str) -> str:
    # Between digits a separator tells 1-1 from 11; anywhere else it is a matter of taste.
    plain = unicodedata.normalize("NFKC", _exact(label)).casefold()
    return re.sub(r"[\s_-]+", "", re.sub(r"(?<=[0-9])[\s_-]+(?=[0-9])", ".", plain)) or plain


def _ordered(names: Iterable[str]) -> list[str]:
    def order(name: str) -> tuple[bool, int, str]:
        number = _number(name)
        return number is None, number or 0, name

    return sorted(names, key=order)


def _enumerate(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
