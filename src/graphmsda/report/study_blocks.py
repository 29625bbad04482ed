"""The rows of a study's table as competitors: what each reached, and what that took, by target and seed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from graphmsda.study.cells import Cell, Study
from graphmsda.study.protocol import STANDARDS, TITLES
from graphmsda.study.scoring import read_score
from graphmsda.study.significance import Scores
from graphmsda.study.summary import NAMES, chosen_cells, methods_in_order

Block = tuple[str, int]
"""A target and a seed: what all methods had in common."""


@dataclass(frozen=True)
class Competitor:
    """A row of the table.

    Attributes:
        name: What to call it, apart from all others.
        standard: Its standard.
        method: Name of its method.
        accuracy: Of each block that is finished: of single best, that of the source chosen without labels.
        minutes: Of each block that is finished; of single best, of all its sources, among which it chooses.
        scores: What `graphmsda.selection.SCORES` say of the same runs without target labels, as far as it is known.
        oracle: The best accuracy that a step of the same runs had, where somebody watched.
    """

    name: str
    standard: str
    method: str
    accuracy: dict[Block, float] = field(default_factory=dict)
    minutes: dict[Block, float] = field(default_factory=dict)
    scores: dict[Block, dict[str, float]] = field(default_factory=dict)
    oracle: dict[Block, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """Mean accuracy over blocks."""
        return statistics.fmean(self.accuracy.values())


@dataclass(frozen=True)
class Field:
    """Those that can be compared.

    Attributes:
        names: The competitors.
        blocks: The blocks that all of them have.
        scores: Accuracies, blocks by competitors.
        left_out: Competitors with fewer than half of the blocks.
        dropped: How many blocks somebody lacks.
    """

    names: tuple[str, ...]
    blocks: tuple[Block, ...]
    scores: Scores
    left_out: tuple[str, ...]
    dropped: int

    def by_target(self) -> Scores:
        """Return mean accuracies over seeds, targets by competitors."""
        targets = list(dict.fromkeys(target for target, _ in self.blocks))
        of = np.array([targets.index(target) for target, _ in self.blocks], dtype=int)
        return np.stack([self.scores[of == number].mean(0) for number in range(len(targets))])


def competitors(study: Study) -> list[Competitor]:
    """Return the rows of a study's table in their order, those without a finished run left out."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for standard in STANDARDS:
        there = [cell for cell in study.cells if cell.standard == standard]
        if study.about["kind"] == "ablation":  # fewer terms first, as in its table
            there.sort(key=lambda cell: (sum(cell.varied.values()), [not on for on in cell.varied.values()]))
        for method in methods_in_order(cell.method for cell in there):
            for cell in there:
                if cell.method == method:
                    groups.setdefault((standard, method, cell.setting), []).append(cell)
    methods = Counter(method for _, method in dict.fromkeys((standard, method) for standard, method, _ in groups))
    found = []
    for (standard, method, setting), cells in groups.items():
        name = NAMES.get(method, method)
        if setting != "default":
            name = setting if len(methods) == 1 else f"{name} {setting}"
        if methods[method] > 1:
            name += f", {TITLES[standard].lower()}"
        one = _filled(study, Competitor(name, standard, method), cells)
        if one.accuracy:
            found.append(one)
    return found


def _filled(study: Study, one: Competitor, cells: Sequence[Cell]) -> Competitor:
    from graphmsda.selection import SCORES

    for target in dict.fromkeys(cell.target for cell in cells):
        for cell in chosen_cells(study, cells, target):
            row, block = study.rows.get(cell.path), (target, cell.seed)
            if row is None or row.get("accuracy") is None:
                continue
            one.accuracy[block] = row["accuracy"]
            found = {name: read_score(row, name) for name in SCORES}
            one.scores[block] = {name: value for name, value in found.items() if value is not None}
            if row.get("oracle_accuracy") is not None:
                one.oracle[block] = row["oracle_accuracy"]
            rows = [study.rows.get(each.path, {}) for each in cells if (each.target, each.seed) == block]
            if all(each.get("minutes") is not None for each in rows):
                one.minutes[block] = sum(each["minutes"] for each in rows)
    return one


def comparable(found: Sequence[Competitor]) -> Field:
    """Return the competitors that have at least half of the blocks, and the blocks that all of those have."""
    everything = sorted({block for one in found for block in one.accuracy})
    kept = [one for one in found if 2 * len(one.accuracy) >= len(everything)]
    blocks = [block for block in everything if all(block in one.accuracy for one in kept)]
    scores = np.array([[one.accuracy[block] for one in kept] for block in blocks], dtype=np.float64)
    return Field(
        tuple(one.name for one in kept),
        tuple(blocks),
        scores.reshape(len(blocks), len(kept)),
        tuple(one.name for one in found if one not in kept),
        len(everything) - len(blocks),
    )
