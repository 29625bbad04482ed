"""What a choice without target labels would have come to, beside the best that labels can choose."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from graphmsda.report.page import Section
from graphmsda.report.parts import Html, Row, bullets, details, paragraph, table
from graphmsda.report.study_blocks import Block, Competitor
from graphmsda.report.study_tables import name_of, percent


def choice_section(found: Sequence[Competitor]) -> Section | None:
    """Return the section; None where there is nothing to choose from or by."""
    from graphmsda.selection import SCORES

    made = {name: _line(name, 1 if score.higher else -1, found) for name, score in SCORES.items()}
    lines = [line for line in made.values() if line]
    oracle = _oracle(found)
    if not lines and not oracle:
        return None
    body = Html("")
    if lines:
        heads = ["chosen by", "accuracy, %", "best there, %", "lost, points", "rank correlation", "blocks"]
        body += table(heads, lines, caption="Rows of the table, chosen by a score of their runs")
        mean = statistics.fmean(one.mean for one in found)
        body += paragraph(
            "In each block the row with the best score is taken; of several, their mean. Without any choice, a row has "
            f"{percent(mean)} % on average. Rank correlation is Spearman's between score and accuracy inside a block, "
            "averaged: 1 is a score that orders rows as labels would, 0 one that says nothing.",
            "note",
        )
        known = [f"{name}: {SCORES[name].text} ({SCORES[name].paper})" for name, line in made.items() if line]
        body += details("What the scores are", bullets(known))
    lead = "Had nobody had labels of the target: which row would each label-free score have picked, and how good is it?"
    return Section("Choosing without labels", body + oracle, lead)


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the correlation of ranks, None where one of the two is constant.

    >>> spearman([1.0, 2.0, 3.0], [0.1, 0.5, 0.2])
    0.5
    """
    from scipy.stats import rankdata

    ranks = [rankdata(np.round(values, 9)) for values in (first, second)]
    away = [one - one.mean() for one in ranks]
    size = math.sqrt(float((away[0] ** 2).sum() * (away[1] ** 2).sum()))
    return None if size == 0 else round(float((away[0] * away[1]).sum()) / size, 9)


def _line(name: str, sign: int, found: Sequence[Competitor]) -> Row | None:
    reached, best, alike = [], [], []
    for block in sorted({block for one in found for block in one.accuracy}):
        there = _scored(name, sign, found, block)
        if len(there) < 2:
            continue
        scores, shares = zip(*there, strict=True)
        reached.append(statistics.fmean(share for score, share in there if score == max(scores)))
        best.append(max(shares))
        correlation = spearman(scores, shares)
        alike += [] if correlation is None else [correlation]
    if not reached:
        return None
    mean, top = statistics.fmean(reached), statistics.fmean(best)
    correlated = f"{statistics.fmean(alike):+.2f}" if alike else "–"
    return [name_of(name), percent(mean), percent(top), percent(top - mean), correlated, str(len(reached))]


def _scored(name: str, sign: int, found: Sequence[Competitor], block: Block) -> list[tuple[float, float]]:
    """Return score and accuracy of those that have both in a block."""
    return [(sign * one.scores[block][name], one.accuracy[block]) for one in found if name in one.scores.get(block, {})]


def _oracle(found: Sequence[Competitor]) -> Html:
    """Return how much better the best step was than the last, of runs in which somebody watched."""
    rows: list[Row] = []
    for one in found:
        blocks = [block for block in one.oracle if block in one.accuracy]
        if blocks:
            last = statistics.fmean(one.accuracy[block] for block in blocks)
            best = statistics.fmean(one.oracle[block] for block in blocks)
            rows.append([name_of(one.name), percent(last), percent(best), percent(best - last), str(len(blocks))])
    if not rows:
        return Html("")
    heads = ["method", "last step, %", "best step, %", "difference, points", "blocks"]
    note = "Which step is best is known by target labels alone: a bound, not what a choice without labels can reach."
    return table(heads, rows, caption="The last step against the best, an oracle") + paragraph(note, "note")
