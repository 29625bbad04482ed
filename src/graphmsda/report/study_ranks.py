"""Which method is better, and whether that is more than chance: the section on ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphmsda.report import study_charts as charts
from graphmsda.report.page import Section
from graphmsda.report.parts import Cell, Html, Row, details, figure, join, paragraph, table
from graphmsda.report.study_blocks import Competitor, Field, comparable
from graphmsda.report.study_tables import name_of, percent, several
from graphmsda.study.significance import (
    LEVEL,
    Comparison,
    Pair,
    block_ranks,
    compare,
    critical_difference,
    friedman,
    least_p,
)

TITLE = "Ranks and significance"
MOST_PAIRS = 300  # listed on the page


Ranking = tuple[Field, Comparison]


def ranking(found: Sequence[Competitor]) -> Ranking | None:
    """Compare the rows of a table; None where no two have anything in common."""
    field = comparable(found)
    return (field, compare(field.names, field.scores)) if len(field.names) > 1 and field.blocks else None


def told_apart(done: Comparison) -> list[str]:
    """Return the methods than which the first is significantly better."""
    pairs = [pair for pair in done.pairs if pair.first == 0 and pair.adjusted < LEVEL and pair.difference > 0]
    return [done.names[pair.second] for pair in sorted(pairs, key=lambda pair: pair.second)]


def ranks_section(found: Sequence[Competitor], ranked: Ranking | None) -> Section | None:
    """Return the section, None where there are not two to compare."""
    if len(found) < 2:
        return None
    if ranked is None:
        return Section(TITLE, paragraph("No target and seed has been finished by all methods yet: nothing to rank."))
    field, done = ranked
    lead = f"In each block, a target with a seed, methods are ranked by accuracy: {_count(field)}."
    body = join(paragraph(text, "warning") for text in _cautions(field, done))
    body += paragraph(_verdict(done)) + _diagram(done) + _table(field, done)
    body += paragraph(_by_target(field), "note")
    listed = done.pairs[:MOST_PAIRS]
    summary = f"All {len(done.pairs)} pairs" if len(listed) == len(done.pairs) else f"The first {len(listed)} pairs"
    body += details(summary, _pairs(done, listed)) + paragraph(_method(done), "note")
    return Section(TITLE, body, lead)


def probability(p: float) -> str:
    """Return a p-value for people.

    >>> probability(0.00021), probability(0.0312), probability(0.4)
    ('< 0.001', '0.031', '0.40')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def _count(field: Field) -> str:
    targets, seeds = ({block[place] for block in field.blocks} for place in (0, 1))
    text = f"{several(len(field.blocks), 'block')} of {several(len(targets), 'target')} and "
    text += several(len(seeds), "seed")
    if field.dropped:
        text += f"; {field.dropped} more lack some method and do not count"
    if field.left_out:
        text += f"; left out for want of runs: {', '.join(field.left_out)}"
    return text


def _cautions(field: Field, done: Comparison) -> list[str]:
    """Return what these blocks are too few for."""
    found, size, blocks = [], len(done.names), done.blocks
    pairs = len(done.pairs)
    if least_p(blocks) * pairs >= LEVEL:
        enough = next(number for number in range(blocks, 64) if least_p(number) * pairs < LEVEL)
        found.append(
            f"Too few blocks to tell single methods apart: with {blocks} of them and {several(pairs, 'pair')}, no "
            f"p-value of a pair can fall below {LEVEL} after correction, whatever the accuracies. It takes at least "
            f"{enough} blocks."
        )
    if done.difference >= size - 1 and size > 2:
        unit = critical_difference(size, 1)
        enough = math.floor((unit / (size - 1)) ** 2) + 1
        found.append(
            f"Nemenyi's critical difference, {done.difference:.2f}, is more than first and last of {size} methods can "
            f"be apart: its diagram cannot separate any. It takes at least {enough} blocks."
        )
    if len({target for target, _ in field.blocks}) == 1:
        found.append("There is one target: what is significant here is so for this target, not for others.")
    return found


def _verdict(done: Comparison) -> str:
    test = f"Friedman's test, χ² = {done.statistic:.1f}, p {_is(done.p)}"
    best = f"{done.names[0]} has the best average rank, {done.ranks[0]:.2f} of {len(done.names)}"
    if done.p >= LEVEL:
        return f"{best}, but that all methods are alike is not ruled out ({test}): the order may be chance."
    beaten = told_apart(done)
    text = f"The methods are not all alike ({test}). {best}"
    if len(beaten) == len(done.names) - 1:
        return f"{text}; it is significantly better than every other (Wilcoxon's test, Holm's correction)."
    if beaten:
        return f"{text}; it is significantly better than {_and(beaten)} (Wilcoxon's test, Holm's correction)."
    return f"{text}, but is not significantly better than any single other (Wilcoxon's test, Holm's correction)."


def _diagram(done: Comparison) -> Html:
    names = [f"{name} {rank:.2f}" for name, rank in zip(done.names, done.ranks, strict=True)]
    groups = [", ".join(done.names[number] for number in group) for group in done.groups]
    told = f"Average ranks: {'; '.join(names)}. Critical difference {done.difference:.2f}. "
    told += f"Not told apart: {'; '.join(groups)}." if groups else "All are told apart."
    caption = (
        f"Critical difference diagram: average ranks over {several(done.blocks, 'block')}. A thick stroke on the "
        f"right joins methods that Nemenyi's test does not tell apart at {LEVEL}."
    )
    return figure(charts.ranks(done), caption, description=told)


def _table(field: Field, done: Comparison) -> Html:
    first = {pair.second: pair for pair in done.pairs if pair.first == 0}
    places = [field.names.index(name) for name in done.names]
    wins = (block_ranks(field.scores) <= 1).sum(0)
    rows: list[Row] = []
    for number, (name, place) in enumerate(zip(done.names, places, strict=True)):
        pair = first.get(number)
        beside = [_p(pair.p), _p(pair.adjusted), f"{pair.wins} : {pair.losses}"] if pair else ["–", "–", "–"]
        rank = Cell(f"{done.ranks[number]:.2f}", strong=number == 0)
        rows.append([name_of(name), rank, percent(float(field.scores[:, place].mean())), str(wins[place]), *beside])
    heads = ["method", "rank", "accuracy, %", "blocks won", "p", "corrected p", "lost : won"]
    caption = f"Ranks over {several(done.blocks, 'block')}; the last three columns compare with {done.names[0]}"
    return table(heads, rows, caption=caption, sortable=True)


def _pairs(done: Comparison, listed: Sequence[Pair]) -> Html:
    rows: list[Row] = [
        [name_of(f"{done.names[pair.first]} – {done.names[pair.second]}"), f"{100 * pair.difference:+.1f}",
         f"{pair.wins} : {pair.losses}", _p(pair.p), _p(pair.adjusted)]
        for pair in listed
    ]  # fmt: skip
    heads = ["pair", "difference, points", "won : lost", "p", "corrected (Holm)"]
    return table(heads, rows, caption="Wilcoxon's signed-rank test, pair by pair", sortable=True)


def _p(p: float) -> Cell:
    return Cell(probability(p), sort=p, strong=p < LEVEL)


def _by_target(field: Field) -> str:
    targets = field.by_target()
    if len(targets) == len(field.blocks):
        return "There is one seed: how much of a difference is due to the seed cannot be told."
    text = "Seeds of one target share its data: blocks are not independent, and p-values above are rather too small."
    if len(targets) < 2:
        return text
    _, p = friedman(targets)
    ranks = block_ranks(targets).mean(0)
    best = field.names[int(ranks.argmin())]
    return (
        f"{text} The careful reading averages over seeds first and takes the {len(targets)} targets as blocks: "
        f"p {_is(p)} by Friedman's test, and {best} has the best average rank, {ranks.min():.2f}."
    )


def _method(done: Comparison) -> str:
    return (
        "Tests as in Demsar (JMLR 7, 2006). Friedman's p-value is counted over random orders inside the blocks, "
        "Wilcoxon's over all signs of the differences, so both hold for few blocks and for ties; Holm's correction is "
        f"for all {several(len(done.pairs), 'pair')}. Bold: below {LEVEL}."
    )


def _is(p: float) -> str:
    return probability(p) if p < 0.001 else f"= {probability(p)}"


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, ["; ".join(names[:-1]), names[-1]]))
