"""The demonstration: each method on the embedded data, beside what target labels would give."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from graphmsda import __version__
from graphmsda.data import demo
from graphmsda.engine.fit import fit
from graphmsda.errors import UserError
from graphmsda.files import write_text
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
) -> list[dict[str, Any]]:
    """Train, print one table and say what to type next; returns and writes one row per run.

    Accuracies (fractions) are those of the last step on the target's test part. The method called target labels is the
    supervised ceiling: the same sources and, openly, the target's training part with its labels.
    """
    targets = TARGETS if targets is None else targets
    for name in methods:
        find_method(name)
    for target in targets:
        if target not in demo.DOMAINS:
            raise UserError(f"--targets: there is no demo domain {target!r}; choose from {', '.join(demo.DOMAINS)}")
    begin = time.monotonic()
    rows = []
    for target in targets:
        for method in (*methods, CEILING):
            for seed in seeds:
                accuracy = _one(out, target, method, seed, epochs or EPOCHS)
                rows.append({"method": method, "target": target, "seed": seed, "accuracy": accuracy})
    write_text(out / "results.json", json.dumps({"version": __version__, "runs": rows}, indent=1) + "\n")
    head, *body = mean_table(rows)
    table = new_table(*head)
    for cells in body:
        table.add_row(*cells)
    which = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean of seeds {', '.join(map(str, seeds))}"
    print(f"\nAccuracy (%) on the target's test part after the last step, {which}\n{render(table)}")
    first = out / targets[0] / f"{methods[-1]}-seed{seeds[0]}"
    print(f"\n{time.monotonic() - begin:.0f} s in all; the runs lie in {out}. Next, for instance:")
    print(f"  graphmsda evaluate {first}")
    print("  graphmsda fit --sources YOURS/a YOURS/b --target YOURS/c --method mrf --out runs/mine")
    return rows


def _one(out: Path, target: str, method: str, seed: int, epochs: int) -> float:
    ceiling = method == CEILING
    task, evaluation = demo.supervised(target) if ceiling else demo.load(target)
    folder = out / target / f"{'ceiling' if ceiling else method}-seed{seed}"
    origin = {} if ceiling else {"task": f"demo:{target}"}
    # CORAL without its own term on sources that include the labelled target: a plain classifier, every domain with its
    # own batch statistics in training and when it is read, as a ceiling should.
    run = fit(
        task,
        "coral" if ceiling else method,
        parameters={"weight": 0.0} if ceiling else {},
        out=folder,
        progress=True,
        origin=origin,
        backbone="small",
        epochs=epochs,
        seed=seed,
    )
    accuracy = run.evaluate(evaluation).accuracy
    print(f"{method} -> {target}, seed {seed}: {100 * accuracy:.1f} %", file=sys.stderr)
    return accuracy


def mean_table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return methods by targets, in percent, averaged over seeds; the first row names the columns."""
    targets = list(dict.fromkeys(row["target"] for row in rows))
    cells = [["method", *(f"-> {target}" for target in targets), "mean"]]
    for method in dict.fromkeys(row["method"] for row in rows):
        shares = [mean(r["accuracy"] for r in rows if (r["method"], r["target"]) == (method, t)) for t in targets]
        cells.append([method, *(f"{100 * share:.1f}" for share in [*shares, mean(shares)])])
    return cells
