"""The table of a search: its trials, the best first, with what it was judged by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from graphmsda.study.cells import Cell, Study
from graphmsda.study.entries import Entry, Line, Table
from graphmsda.study.protocol import REHEARSAL
from graphmsda.study.trials import DEFAULT, is_higher_better, name_of, ranked, read_trials, score_of
from graphmsda.tuning.grid import told

SHARES = (REHEARSAL, "source-accuracy")  # scores that are fractions, shown in percent
ACCURACY = "target accuracy"


def search_tables(study: Study, named: str) -> list[Table]:
    """Return a table for each target of a search; `named` is what its method is called."""
    there = {cell.target for cell in study.cells}
    return [_table(study, named, target) for target in study.about["domains"] if target in there]


def _table(study: Study, named: str, target: str) -> Table:
    about = study.about["search"]
    score, names = about["score"], list(about["space"])
    by_setting: dict[str, list[Cell]] = {}
    for cell in study.cells:
        if cell.target == target:
            by_setting.setdefault(cell.setting, []).append(cell)
    found = {number: name_of(values) for number, values in read_trials(study.path, target).items()}
    trials = {number: setting for number, setting in found.items() if setting in by_setting}
    complete = read_trials(study.path, target, "all")
    cells = {number: by_setting[setting] for number, setting in trials.items()}
    places = ranked(study, cells, score)
    players = list(dict.fromkeys(cell.source for some in cells.values() for cell in some if cell.source))
    lines = []
    for number in [*(number for number, _ in places), *(n for n in trials if n not in dict(places))]:
        own = cells[number]
        entries = {f"-> {one}": _mean(study, [cell for cell in own if cell.source == one], score) for one in players}
        entries |= {score: _mean(study, own, score), ACCURACY: _mean(study, own, None)}
        mark = " (default)" if trials[number] == DEFAULT else ""
        values = complete.get(number) or {}
        lines.append(Line((f"{number}{mark}", *(told(values.get(name, "")) for name in names)), entries))
    columns = [f"-> {player}" for player in players] + ([score] if score == REHEARSAL else [score, ACCURACY])
    notes = [_judged(about), *_verdict(study, trials, cells, places, score)]
    if score != REHEARSAL:
        notes.append(f"Under {ACCURACY}: what labels say, which had no part in the choice.")
    title = f"Search of {named} on {study.about.get('benchmark') or 'your domains'} -> {target}"
    plain = () if score in SHARES else (score,)
    least = () if is_higher_better(score) else (score,)
    return Table(title, ("trial", *names), tuple(columns), lines, notes, apart=(ACCURACY,), plain=plain, least=least)


def _mean(study: Study, cells: Sequence[Cell], score: str | None) -> Entry:
    """Return the mean over all runs of a trial; without a score, of the accuracy on the target."""
    rows = [study.rows[cell.path] for cell in cells if cell.path in study.rows]
    values = [row["accuracy"] if score is None else score_of(row, score) for row in rows]
    good = [value for value in values if value is not None]
    return Entry((statistics.fmean(good),), 1) if good and len(good) == len(cells) else Entry((), 1)


def _judged(about: Mapping[str, Any]) -> str:
    from graphmsda.selection import SCORES

    score, seeds = about["score"], ", ".join(map(str, about["seeds"]))
    where = f"seeds {seeds}" if len(about["seeds"]) > 1 else f"seed {seeds}"
    if score == REHEARSAL:
        return f"Accuracy (%) on sources that play the target, last step, {where}."
    better = "more" if SCORES[score].higher else "less"
    return f"{score}: {SCORES[score].text} ({SCORES[score].paper}), {better} is better, {where}."


def _verdict(
    study: Study,
    trials: Mapping[int, str],
    cells: Mapping[int, Sequence[Cell]],
    places: Sequence[tuple[int, float]],
    score: str,
) -> list[str]:
    """Say by how much the best is better than the default, run by run, since runs differ more than settings do."""
    default = next((number for number, _ in places if trials[number] == DEFAULT), None)
    if default is None:
        return []
    best = places[0][0]
    if best == default:
        return ["The default is best: there is no reason to change anything."]
    one, other = (
        {(cell.target, cell.source, cell.seed): score_of(study.rows[cell.path], score) or 0.0 for cell in cells[number]}
        for number in (best, default)
    )
    leads = [one[key] - other[key] for key in one]
    unit, digits = (100, 1) if score in SHARES else (1, 4)
    lead = f"Trial {best} is ahead of the default by {unit * abs(statistics.fmean(leads)):.{digits}f}"
    if len(leads) < 2:
        return [f"{lead} in one run of each, which cannot tell a lead from noise; give more --seeds."]
    error = statistics.stdev(leads) / math.sqrt(len(leads))
    lead += f" ± {unit * error:.{digits}f} (standard error over {len(leads)} runs)"
    if abs(statistics.fmean(leads)) <= 2 * error:
        return [f"{lead}, which is within noise: staying with the default is as good a choice."]
    return [f"{lead}; the best of many is ahead by luck too."]
