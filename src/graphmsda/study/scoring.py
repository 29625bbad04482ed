"""What can be said of a finished run: its accuracy on the target's test part, and much without any target label."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from graphmsda.data.images import Decoded
from graphmsda.data.named import NamedTask
from graphmsda.domains import EvalSet, Samples
from graphmsda.engine.watch import oracle_accuracy
from graphmsda.run import Run
from graphmsda.streaming import answer, split_rows

SURE = 0.95  # a prediction above it counts as confident


def score(
    run: Run, tests: Sequence[EvalSet], target: Samples, validation: Sequence[tuple[str, EvalSet]]
) -> dict[str, Any]:
    """Return accuracies (fractions) of the last step's model and what its predictions on the target look like.

    Args:
        run: The finished run.
        tests: The target's test part, or several parts that count as one.
        target: What was trained on of the target.
        validation: Held-out parts of sources, each with the name of the domain as which the run reads it.
    """
    parts = [(run.evaluate(part).accuracy, len(part.y)) for part in tests]
    held = [run.evaluate(part, domain=name).accuracy for name, part in validation]
    accuracy = sum(share * count for share, count in parts) / sum(count for _, count in parts)
    return {
        "accuracy": round(accuracy, 6),
        "oracle_accuracy": oracle_accuracy(run.path, [accuracy]),
        "source_accuracy": round(sum(held) / len(held), 6) if held else None,
        "label_free": label_free(run, target),
    }


def target_scores(run: Run, named: NamedTask, sources: Sequence[str]) -> dict[str, float | None]:
    """Return all scores of `graphmsda.selection.SCORES`, by which models are ranked without target labels.

    Args:
        run: The finished run.
        named: Its data; nothing is taken of the target's test part.
        sources: The sources that it was trained on.
    """
    from graphmsda.selection import score_run
    from graphmsda.selection.data import find_data

    data = find_data(run, named)
    data = replace(data, sources=tuple(part for part in data.sources if part.name in sources), test=None)
    found = score_run(run, data)
    return {name: round(value, 6) if math.isfinite(value) else None for name, value in found.items()}


def read_score(row: Mapping[str, Any], score: str) -> float | None:
    """Return a score of a finished run from its result; None where it is not there."""
    scores = row.get("scores") or {}
    label_free = row.get("label_free") or {}
    older = {"entropy": label_free.get("mean_entropy"), "information": label_free.get("information")}
    value = scores.get(score, older.get(score))
    return None if value is None else float(value)


def is_higher_better(score: str) -> bool:
    """Whether the higher value of a score is the better one."""
    if score == "information":  # the usual one, without the time that reading all of them takes
        return True
    from graphmsda.selection import SCORES

    return SCORES[score].higher


def label_free(run: Run, x: Samples) -> dict[str, float]:
    """Return how sure (nats, share) and how balanced (nats) predictions are, and how much they tell of the input.

    The last, ``information``, is the entropy of the mean prediction less the mean entropy.
    """

    def read(rows: range) -> Decoded:
        return Decoded(x[rows.start : rows.stop], list(range(len(rows))), [])

    parts = split_rows(len(x), x.shape[1:], run.device)
    with torch.inference_mode():
        found = answer(run.method, run.method.predictor(), run.device, read, parts)
        probabilities = torch.cat([part.probabilities for part in found]).double()
    unsure = torch.special.entr(probabilities).sum(1).mean()
    balance = torch.special.entr(probabilities.mean(0)).sum()
    figures = {
        "mean_entropy": unsure,
        "entropy_of_mean": balance,
        "share_confident": (probabilities.amax(1) > SURE).double().mean(),
        "information": balance - unsure,
    }
    return {name: round(float(value), 6) for name, value in figures.items()}
