"""What can be said of a finished run: its accuracy on the target's test part, and much without any target label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graphmsda.data.images import Decoded
from graphmsda.domains import EvalSet, Samples
from graphmsda.run import Run
from graphmsda.streaming import answer, chunk_size

SURE = 0.95  # a prediction above it counts as confident


def score(run: Run, test: EvalSet, target: Samples, validation: Sequence[tuple[str, EvalSet]]) -> dict[str, Any]:
    """Return accuracies (fractions) of the last step's model and what its predictions on the target look like.

    Args:
        run: The finished run.
        test: The target's test part.
        target: What was trained on of the target.
        validation: Held-out parts of sources, each with the name of the domain as which the run reads it.
    """
    held = [run.evaluate(part, domain=name).accuracy for name, part in validation]
    return {
        "accuracy": round(run.evaluate(test).accuracy, 6),
        "oracle_accuracy": None,
        "source_accuracy": round(sum(held) / len(held), 6) if held else None,
        "label_free": label_free(run, target),
    }


def label_free(run: Run, x: Samples) -> dict[str, float]:
    """Return how sure (nats, share) and how balanced (nats) predictions are, and how much they tell of the input.

    The last, ``information``, is the entropy of the mean prediction less the mean entropy.
    """

    def read(rows: range) -> Decoded:
        return Decoded(x[rows.start : rows.stop], list(range(len(rows))), [])

    size = chunk_size(x.shape[1:], run.device)
    parts = [range(begin, min(begin + size, len(x))) for begin in range(0, len(x), size)]
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
