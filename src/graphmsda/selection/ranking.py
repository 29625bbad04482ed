"""Finished runs of one task, ranked without target labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphmsda.errors import UserError
from graphmsda.figures.runs import check_alike, run_folders
from graphmsda.run import Run
from graphmsda.selection.checkpoints import load_any
from graphmsda.selection.estimate import Estimate, estimate
from graphmsda.selection.gather import gather
from graphmsda.selection.rehearsed import read_rehearsals
from graphmsda.selection.residuals import Residuals, rehearsal_residuals
from graphmsda.selection.scores import SCORES
from graphmsda.tables import new_table, render

ESTIMATE = "estimate"
DEFAULT = "capped-mixval"  # what docs/selection.md recommends


@dataclass(frozen=True)
class Ranked:
    """A run with what is known of it.

    Attributes:
        path: Its folder.
        method: Its method.
        seed: Its seed.
        scores: Its scores by name.
        estimate: Its estimated accuracy.
    """

    path: Path
    method: str
    seed: int
    scores: Mapping[str, float]
    estimate: Estimate

    def value(self, name: str) -> float:
        """Return the score of a name, or the estimated accuracy, so that more is better."""
        if name == ESTIMATE:
            return self.estimate.accuracy
        value = self.scores[name]
        return -math.inf if math.isnan(value) else value if SCORES[name].higher else -value

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON; a score that a run cannot have is null."""
        scores = {name: None if math.isnan(value) else value for name, value in self.scores.items()}
        about = {"run": str(self.path), "method": self.method, "seed": self.seed}
        return about | {"scores": scores, "estimate": self.estimate.as_dict()}


def score_runs(
    places: Sequence[Path], *, rehearsals: Sequence[Path] = (), device: str = "auto", **reading: Any
) -> list[Ranked]:
    """Score runs of one task.

    Args:
        places: Run directories, or folders of them.
        rehearsals: As of `estimate`.
        device: Where to compute.
        **reading: As of `gather`.
    """
    first: Run | None = None
    rehearsed: dict[str, Residuals] = {}
    found = []
    for path in run_folders(places):
        run = load_any(path, device, **reading)
        first = first or run
        check_alike([first, run], "a ranking")
        evidence = gather(run, **reading)
        scores = {name: score(evidence) for name, score in SCORES.items()}
        settings = run.about["settings"]
        kind = repr((run.about["method"], settings["parameters"]))
        if rehearsals and kind not in rehearsed:
            rehearsed[kind] = rehearsal_residuals(read_rehearsals(rehearsals, run, device=device, **reading))
        guess = estimate(run, evidence=evidence, rehearsals=rehearsed.get(kind, ()))
        found.append(Ranked(path, run.about["method"], settings["seed"], scores, guess))
    return found


def ranked(found: Sequence[Ranked], by: str = DEFAULT) -> list[Ranked]:
    """Return the runs, the best by a score first."""
    if by not in (*SCORES, ESTIMATE):
        raise UserError(f"--by {by}: there is no such score; choose one of {', '.join([*SCORES, ESTIMATE])}")
    return sorted(found, key=lambda one: -one.value(by))


def ranking_text(found: Sequence[Ranked], by: str | None = None) -> str:
    """Return the ranking for people: by one score, or by the recommended one with what all others would choose."""
    name = by or DEFAULT
    order = ranked(found, name)
    shown = [] if name == ESTIMATE else [name]
    table = new_table("run", "method", "seed", *shown, "estimated accuracy")
    table.columns[0].justify = "left"
    for one in order:
        guess = one.estimate
        told = f"{100 * guess.accuracy:.0f} % ({100 * guess.low:.0f}-{100 * guess.high:.0f} %)"
        scores = [f"{one.scores[score]:.4g}" for score in shown]
        table.add_row(str(one.path), one.method, str(one.seed), *scores, told)
    meaning = "estimated accuracy" if name == ESTIMATE else _meaning(name)
    lines = [f"best first by {name}: {meaning}", render(table)]
    lines.append(f"the interval of the first was calibrated on {order[0].estimate.calibrated_on}")
    if by is None and len(found) > 1:
        choices = new_table("score", "what it is", "its choice")
        choices.columns[0].justify = choices.columns[2].justify = "left"
        for other in (*SCORES, ESTIMATE):
            meaning = "the estimated accuracy itself" if other == ESTIMATE else _meaning(other)
            choices.add_row(other, meaning, str(ranked(found, other)[0].path))
        lines += ["", "what each score would choose:", render(choices)]
    return "\n".join(lines)


def _meaning(name: str) -> str:
    score = SCORES[name]
    return f"{score.text}, {'higher' if score.higher else 'lower'} is better ({score.paper})"
