"""What came of tuning: which setting is best, whether it is told apart from the others, and how to train with it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from graphmsda.engine.settings import FREE_TO_CHANGE
from graphmsda.tables import new_table, render
from graphmsda.tuning.grid import DEFAULT, Setting, told


@dataclass(frozen=True)
class Place:
    """Where a setting stands.

    Attributes:
        name: Of the setting.
        values: The value of each parameter of the grid.
        by_player: Mean accuracy over seeds for each player; None where a run failed.
        mean: Mean over all runs; None where one failed.
        behind: By how much the best is better, on average over the runs that both have made.
        error: Standard error of that difference; None where there is one run only, which tells nothing of it.
    """

    name: str
    values: Mapping[str, Any]
    by_player: Mapping[str, float | None]
    mean: float | None
    behind: float | None = None
    error: float | None = None

    @property
    def is_level(self) -> bool:
        """Whether the best one's lead is within noise: not above twice its standard error."""
        return self.behind is not None and self.error is not None and self.behind <= 2 * self.error


def rank(rows: Sequence[Mapping[str, Any]]) -> list[Place]:
    """Return the settings, best first; those with failed runs are last, whatever their other runs gave.

    Args:
        rows: As `graphmsda.tune.tune` returns them.
    """
    by_setting: dict[str, dict[tuple[str, int], Mapping[str, Any]]] = {}
    for row in rows:
        by_setting.setdefault(row["setting"], {})[row["player"], row["seed"]] = row
    scores = {name: {cell: row["accuracy"] for cell, row in cells.items()} for name, cells in by_setting.items()}

    def order(name: str) -> tuple[int, float]:
        good = [score for score in scores[name].values() if score is not None]
        return len(scores[name]) - len(good), -statistics.fmean(good or [0.0])

    names = sorted(scores, key=order)
    return [_place(name, by_setting[name], scores[name], scores[names[0]]) for name in names]


def _place(
    name: str,
    cells: Mapping[tuple[str, int], Mapping[str, Any]],
    scores: Mapping[tuple[str, int], float | None],
    best: Mapping[tuple[str, int], float | None],
) -> Place:
    players = dict.fromkeys(player for player, _ in scores)
    by_player = {p: _mean([score for (player, _), score in scores.items() if player == p]) for p in players}
    values = next(iter(cells.values()))["values"]
    mean = _mean(list(scores.values()))
    if mean is None or _mean(list(best.values())) is None:
        return Place(name, values, by_player, mean)
    leads = [(best[cell] or 0.0) - (score or 0.0) for cell, score in scores.items()]
    error = statistics.stdev(leads) / math.sqrt(len(leads)) if len(leads) > 1 else None
    return Place(name, values, by_player, mean, statistics.fmean(leads), error)


def _mean(scores: Sequence[float | None]) -> float | None:
    good = [score for score in scores if score is not None]
    return statistics.fmean(good) if len(good) == len(scores) else None


def label(name: str, values: Mapping[str, Any]) -> str:
    """Return a setting for people.

    >>> label("default", {"tau": 0.3}), label("tau=0.1", {"tau": 0.1})
    ('default (tau 0.3)', 'tau 0.1')
    """
    text = ", ".join(f"{name} {told(value)}" for name, value in values.items())
    return text if name != DEFAULT else f"{DEFAULT} ({text})" if text else DEFAULT


def ranking_table(places: Sequence[Place]) -> str:
    """Return the settings as rows, in percent: players, their mean, and how far behind the best each is."""
    players = list(dict.fromkeys(player for place in places for player in place.by_player))
    table = new_table("setting", *(f"-> {player}" for player in players), "mean", "behind the best")
    table.columns[0].justify = "left"
    for number, place in enumerate(places):
        shares = [place.by_player.get(player) for player in players]
        cells = ["failed" if share is None else f"{100 * share:.1f}" for share in [*shares, place.mean]]
        table.add_row(label(place.name, place.values), *cells, "" if number == 0 else _behind(place))
    return render(table)


def _behind(place: Place) -> str:
    if place.behind is None:
        return ""
    return f"{100 * place.behind:.1f}" + ("" if place.error is None else f" ± {100 * place.error:.1f}")


def verdict(places: Sequence[Place], failures: Sequence[str] = ()) -> str:
    """Say in a few sentences which setting is best and whether it is told apart from the others.

    Args:
        places: As `rank` returns them.
        failures: What the runs that failed had to say.
    """
    best, *others = places
    sentences = []
    if best.mean is None:
        sentences.append(f"No setting finished all its runs; {label(best.name, best.values)} failed in fewest.")
    else:
        shown = f"Best on average: {label(best.name, best.values)}, {100 * best.mean:.1f} %."
        level = [place for place in others if place.is_level]
        if not others:
            sentences.append(shown)
        elif any(place.behind is not None and place.error is None for place in others):
            sentences.append(f"{shown} One run of each cannot tell a lead from noise; give more --players or --seeds.")
        elif not level:
            sentences.append(f"{shown} It leads every other setting by more than twice the standard error.")
        else:
            sentences.append(f"{shown} {_not_told_apart(best, level, len(others))}")
    if failures:
        count = "A run" if len(failures) == 1 else f"{len(failures)} runs"
        sentences.append(f"{count} failed, and the settings concerned count as worst; the first said: {failures[0]}")
    return "\n".join(sentences)


def _not_told_apart(best: Place, level: Sequence[Place], others: int) -> str:
    if len(level) == others and others > 2:
        which = f"any of the other {others} settings"
    else:
        few = [label(place.name, place.values) for place in level[:3]]
        more = f" and {len(level) - 3} more" if len(level) > 3 else ""
        which = "; ".join(few) + more
    text = f"Its lead is within noise, so it is not told apart from {which}."
    if any(place.name == DEFAULT for place in level):
        text += " The default is among them: staying with it is as good a choice."
    elif best.name == DEFAULT:
        text += " It is the default: there is no reason to change anything."
    return text


def recipe(setting: Setting, place: Place, data: Mapping[str, Any], *, seeds: Sequence[int]) -> str:
    """Return the YAML with which ``graphmsda fit --config`` trains on the real task.

    Backbone, batch size and learning rate are written out, for what `auto` makes of them may differ elsewhere; what
    follows from the number of samples is not, for the real task has one source more.
    """
    resolved = setting.resolved
    left_out = ("parameters", "seed", *FREE_TO_CHANGE)
    given = {name: value for name, value in setting.settings.items() if name not in left_out}
    pinned = {"backbone": resolved.backbone, "batch_size": resolved.batch_size, "lr": resolved.lr}
    settings = {"method": resolved.method, **given, **pinned, "parameters": dict(resolved.parameters)}
    mean = "not all of its runs finished" if place.mean is None else f"mean accuracy {place.mean:.4f}"
    comments = (
        f"Chosen by leave-one-source-out: {label(setting.name, setting.values)}; {mean}.",
        f"Played the target: {', '.join(place.by_player)}. Seeds: {', '.join(map(str, seeds))}.",
    )
    head = "".join(f"# {' '.join(comment.split())}\n" for comment in comments)
    return head + yaml.safe_dump({"data": dict(data), "settings": settings}, sort_keys=False, allow_unicode=True)
