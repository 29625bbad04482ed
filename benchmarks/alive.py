"""Which terms of a method's loss are alive: their values, and how hard each pulls at the weights by itself.

    python benchmarks/alive.py --task demo:neon --method crf --epochs 5
    python benchmarks/alive.py --task digits-five:mm --method mrf --epochs 10 --set likelihood=verbatim

After each epoch a batch is read with the weights as they are, and the gradient of each term alone is taken by all
weights. A term whose gradient is 0 teaches nothing, whatever its value. What a method shows beside its loss,
such as the mean of CRF's adjacency off the diagonal, stands behind. Nothing is scored.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import torch

from graphmsda import UserError
from graphmsda.cli import read_value
from graphmsda.data.named import find_task
from graphmsda.engine.fit import Tally, take_step
from graphmsda.engine.settings import Settings
from graphmsda.engine.training import Training
from speed_tables import table


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="demo:neon")
    parser.add_argument("--method", default="crf")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="hyper-parameters")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--backbone", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    parameters = {name: read_value(value) for name, _, value in (pair.partition("=") for pair in given.set)}
    try:
        named = find_task(given.task)
        backbone = named.backbone if given.backbone == "auto" else given.backbone
        chosen = {"backbone": backbone, "epochs": given.epochs, "seed": given.seed, "parameters": parameters}
        settings = Settings(method=given.method, accelerate="off", **chosen).resolved(named.task, None)
    except UserError as error:
        print(f"alive.py: {error}", file=sys.stderr)
        return 2
    rows = watch(Training(named.task, settings, torch.device(settings.device)))
    print("\n".join(table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])))
    return 0


def watch(training: Training) -> list[dict[str, str]]:
    """Train, and return a row for each epoch: of each term its value and the norm of its own gradient."""
    settings, tally, rows = training.settings, Tally(), []
    training.method.train()
    while training.step < settings.steps:
        training.prepare()
        take_step(training, tally)
        training.step += 1
        if training.step % settings.steps_per_epoch == 0:
            rows.append({"epoch": str(training.step // settings.steps_per_epoch), **read(training)})
    return rows


def read(training: Training) -> dict[str, str]:
    """Return what the last batch says of each term; the state of the training stays as it is."""
    method = training.method
    kept = {name: tensor.clone() for name, tensor in method.state_dict().items()}
    weights = [parameter for parameter in method.parameters() if parameter.requires_grad]
    batch, _ = training.batch()
    told = {}
    for phase in method.phases(batch):  # as the optimiser meets them, but none of its steps is taken
        for name, term in phase.terms.items():
            found = (
                torch.autograd.grad(term, weights, retain_graph=True, allow_unused=True) if term.requires_grad else ()
            )
            norm = sum(float(gradient.square().sum()) for gradient in found if gradient is not None) ** 0.5
            told[name] = f"{float(term.detach()):.3g}, pulls {norm:.2g}"
        told |= {name: f"{float(value.detach()):.2g}" for name, value in (phase.shown or {}).items()}
    method.load_state_dict(kept)
    return told


if __name__ == "__main__":
    sys.exit(main())
