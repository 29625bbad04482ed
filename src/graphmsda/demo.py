"""The demonstration: each method on the embedded data, beside what target labels would give."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from graphmsda.data import demo
from graphmsda.engine.fit import fit
from graphmsda.errors import UserError
from graphmsda.methods import find_method
from graphmsda.tables import new_table, render

TARGETS = ("neon", "texture", "chalk")
EPOCHS = 20
CEILING = "target labels"


def run_demo(
    out: Path,
    *,
    targets: Sequence[str] | None = None,
    methods: Sequence[str] = ("source-only", "crf", "mrf"),
    seeds: Sequence[int] = (0,),
    epochs: int | None = None,
) -> dict[str, dict[str, float]]:
    """Train, print one table and say what to type next; returns ``{row: {target: accuracy}}``.

    Accuracies are those of the last step on the target's test part, averaged over seeds. The row called target labels
    is the supervised ceiling: the same sources and, openly, the target's training part with its labels.
    """
    targets = TARGETS if targets is None else targets
    for name in methods:
        find_method(name)
    for target in targets:
        if target not in demo.DOMAINS:
            raise UserError(f"--targets: there is no demo domain {target!r}; choose from {', '.join(demo.DOMAINS)}")
    begin = time.monotonic()
    rows = (*methods, CEILING)
    accuracies = {row: dict.fromkeys(targets, 0.0) for row in rows}
    for target in targets:
        for row in rows:
            for seed in seeds:
                accuracies[row][target] += _one(out, target, row, seed, epochs or EPOCHS) / len(seeds)
    print(_table(accuracies, targets, seeds))
    first = out / targets[0] / f"{methods[-1]}-seed{seeds[0]}"
    print(f"\n{time.monotonic() - begin:.0f} s in all; the runs lie in {out}. Next, for instance:")
    print(f"  graphmsda evaluate {first}")
    print("  graphmsda fit --sources YOURS/a YOURS/b --target YOURS/c --method mrf --out runs/mine")
    return accuracies


def _one(out: Path, target: str, row: str, seed: int, epochs: int) -> float:
    ceiling = row == CEILING
    task, evaluation = demo.supervised(target) if ceiling else demo.load(target)
    folder = out / target / f"{'ceiling' if ceiling else row}-seed{seed}"
    origin = {} if ceiling else {"task": f"demo:{target}"}
    # AdaBN on sources that include the labelled target reads the target with its own statistics, as a ceiling should.
    run = fit(
        task,
        "adabn" if ceiling else row,
        out=folder,
        progress=True,
        origin=origin,
        backbone="small",
        epochs=epochs,
        seed=seed,
    )
    accuracy = run.evaluate(evaluation).accuracy
    print(f"{row} -> {target}, seed {seed}: {100 * accuracy:.1f} %", file=sys.stderr)
    return accuracy


def _table(accuracies: dict[str, dict[str, float]], targets: Sequence[str], seeds: Sequence[int]) -> str:
    table = new_table("method", *(f"-> {target}" for target in targets), "mean")
    for row, of in accuracies.items():
        shares = [of[target] for target in targets]
        table.add_row(row, *(f"{100 * a:.1f}" for a in [*shares, sum(shares) / len(shares)]))
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean of seeds {', '.join(map(str, seeds))}"
    return f"\nAccuracy (%) on the target's test part after the last step, {which}\n{render(table)}"
