"""What the estimate is off by where labels are known: sources that play the target, within a run or in rehearsals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graphmsda.selection.combination import combine, learned_weights, true_logit
from graphmsda.selection.estimators import read_parts
from graphmsda.selection.evidence import Evidence, Seen


def target_parts(evidence: Evidence, second: Evidence | None = None) -> dict[str, float]:
    """Return what each estimator says of the target."""
    other = None if second is None else second.target
    return read_parts(evidence.sources, evidence.numbers, evidence.target, tempered=evidence.held_out, second=other)


def source_residuals(evidence: Evidence, second: Evidence | None = None) -> tuple[list[float], list[float]]:
    """Return what the estimate is off by on each source (true less estimated logit), given the other sources alone.

    The first list is of the sources as the model reads them, the second of the same read with the batch statistics of
    other domains, averaged over these.
    """
    own, moved = [], []
    count = len(evidence.sources)
    for player in range(count if count > 1 else 0):
        places = [place for place in range(count) if place != player]
        others = [evidence.sources[place] for place in places]
        numbers = [evidence.numbers[place] for place in places]

        def off(seen: Seen, twin: Seen | None, others: list[Seen] = others, numbers: list[int] = numbers) -> float:
            return true_logit(seen) - combine(read_parts(others, numbers, seen, second=twin))

        own.append(off(evidence.sources[player], None if second is None else second.sources[player]))
        if evidence.shifted:
            twins = [None] * len(evidence.shifted[player]) if second is None else second.shifted[player]
            found = [off(seen, twin) for seen, twin in zip(evidence.shifted[player], twins, strict=True)]
            moved.append(sum(found) / len(found))
    return own, moved or own


@dataclass(frozen=True)
class Residuals:
    """What the estimate was off by in rehearsals.

    Attributes:
        values: One for each player, averaged over its runs.
        players: Their names.
        runs: How many runs there were.
        weights: What each estimator weighs, by what it was off by.
    """

    values: list[float]
    players: list[str]
    runs: int
    weights: dict[str, float]


def rehearsal_residuals(found: Sequence[tuple[str, Mapping[str, float], float]]) -> Residuals:
    """Return what the estimate was off by for each player, estimators being weighed by how they did for the others.

    Args:
        found: Of each rehearsal the player, what each estimator said, and the logit of the true accuracy.
    """
    players = list(dict.fromkeys(player for player, _, _ in found))
    values = []
    for player in players:
        weights = learned_weights([one for one in found if one[0] != player])
        off = [truth - combine(parts, weights) for who, parts, truth in found if who == player]
        values.append(sum(off) / len(off))
    return Residuals(values, players, len(found), learned_weights(found))
