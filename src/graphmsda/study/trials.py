"""What a search has tried: a file for each trial, its runs, and how they are judged."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from graphmsda.files import create_text
from graphmsda.study import scoring
from graphmsda.study.cells import Cell, Row, Study
from graphmsda.study.data import Data
from graphmsda.study.protocol import REHEARSAL
from graphmsda.study.space import Space
from graphmsda.tuning.cells import plain
from graphmsda.tuning.grid import place_of, told

DEFAULT = "default"
TRIALS = "trials"


@dataclass(frozen=True)
class Search:
    """What is searched, and how a setting is judged.

    Attributes:
        method: Name of the method.
        space: What may be chosen.
        score: A name in `graphmsda.selection.SCORES`, or ``rehearsal``: the accuracy on sources that play the target.
        target: The domain to adapt to. Each has a search of its own: one over several would choose a setting by labels
            of a target, since that is a source of the others.
        seeds: Seeds; a setting is judged by its mean over them.
        settings: What all runs have in common.
    """

    method: str
    space: Space
    score: str
    target: str
    seeds: Sequence[int]
    settings: Mapping[str, Any]

    def about(self) -> dict[str, Any]:
        """Return what has to stay the same while a search goes on."""
        space = {name: asdict(part) for name, part in self.space.items()}
        named = {"method": self.method, "score": self.score, "seeds": list(self.seeds)}
        return {"search": {**named, "space": space}}

    def cells(self, data: Data, values: Mapping[str, Any] | None) -> list[Cell]:
        """Return the runs of a trial; None stands for the default."""
        parameters = dict(self.settings.get("parameters", {}))
        rest = {name: value for name, value in self.settings.items() if name != "parameters"}
        for name, value in (values or {}).items():
            home, field = place_of(self.method, name)
            (parameters if home == "method" else rest)[field] = value
        setting, varied = name_of(values), dict(values or {})
        standard = REHEARSAL if self.score == REHEARSAL else "multi-source"
        return [
            Cell(standard, self.target, self.method, seed, source, setting, parameters, rest, varied)
            for seed in self.seeds
            for source in ([name for name in data.domains if name != self.target] if standard == REHEARSAL else [None])
        ]


def name_of(values: Mapping[str, Any] | None) -> str:
    """Return what a setting is called in the folder.

    >>> name_of(None), name_of({"tau": 0.1, "alpha": 1})
    ('default', 'alpha=1,tau=0.1')
    """
    return DEFAULT if values is None else ",".join(f"{name}={told(value)}" for name, value in sorted(values.items()))


def read_trials(out: Path, target: str, part: str = "values") -> dict[int, dict[str, Any] | None]:
    """Return the settings tried for a target, by number; None is the default, whose values are in the part ``all``."""
    found = {}
    for file in _folder(out, target).glob("trial-*.json"):
        try:
            found[int(file.stem.partition("-")[2])] = json.loads(file.read_text(encoding="utf-8"))[part]
        except (OSError, ValueError, KeyError):  # damaged: not one of ours
            continue
    return dict(sorted(found.items()))


def judge(study: Study, cells: Sequence[Cell], score: str) -> float | None:
    """Return the mean score of a trial's runs; None where one is not there."""
    rows: list[Row | None] = [study.rows.get(cell.path) for cell in cells]
    values = [None if row is None else score_of(row, score) for row in rows]
    good = [value for value in values if value is not None]
    return statistics.fmean(good) if good and len(good) == len(values) else None


def score_of(row: Row, score: str) -> float | None:
    """Return what a run got: of a rehearsal the accuracy on its player, else a score without target labels."""
    return float(row["accuracy"]) if score == REHEARSAL else scoring.read_score(row, score)


def is_higher_better(score: str) -> bool:
    """Whether the higher value of a score is the better one."""
    return score == REHEARSAL or scoring.is_higher_better(score)


def make_trial(
    out: Path, target: str, number: int, values: Mapping[str, Any] | None, complete: Mapping[str, Any]
) -> bool:
    """Write a trial down, unless another process was faster; returns whether it is this one's.

    Args:
        out: The study's folder.
        target: The domain to adapt to.
        number: Of the trial.
        values: Its setting; None is the default.
        complete: The same in numbers.
    """
    file = _folder(out, target) / f"trial-{number}.json"
    return create_text(file, json.dumps({"values": values, "all": dict(complete)}) + "\n")


def ranked(study: Study, trials: Mapping[int, Sequence[Cell]], score: str) -> list[tuple[int, float]]:
    """Return the trials that are finished with their scores, the best first."""
    found = [(number, judge(study, cells, score)) for number, cells in trials.items()]
    good = [(number, value) for number, value in found if value is not None]
    return sorted(good, key=lambda one: one[1], reverse=is_higher_better(score))


def _folder(out: Path, target: str) -> Path:
    return out / TRIALS / plain(target)
