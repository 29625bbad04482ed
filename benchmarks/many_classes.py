"""What entropies and bandwidths should do with many classes: rehearsals on pairs and triples of embedded digits.

    python benchmarks/many_classes.py --out results/demo-classes.json
    python benchmarks/many_classes.py --page docs/fidelity.md --out results/demo-classes.json    # the table alone

The data sets at hand have seven or ten classes, Office-31 and DomainNet 31 and 345. So digits of the embedded data are
put beside each other, a pair has 10 F classes if its first digit is below F, and each domain draws pairs in its own
way. Leave-one-source-out: the real target takes no part, each source in turn plays it, and is scored on the samples
that it was adapted to. A file that is there already is gone on with.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from graphmsda import Domain, EvalSet, Task, fit
from graphmsda.data import demo
from graphmsda.graphs.many_classes import FEW, bandwidth
from graphmsda.methods import complete_parameters
from record import dumps, origin

SAMPLES = {10: 720, 30: 1440, 100: 2880, 300: 5760}
"""Samples of each domain by the number of classes."""
Choice = tuple[str, Mapping[str, float]]
Cell = tuple[int, str, Choice, str, str, int, int]


def choices(classes: int) -> dict[str, Choice]:
    """Return what is compared: each method's defaults, and these without what they do about the number of classes."""
    mean = FEW / classes  # the weight that comes to the mean over all classes
    sigma, tau = complete_parameters("crf", {})["sigma"], complete_parameters("mrf", {})["tau"]
    fixed = {"sigma": (sigma**-2 - (bandwidth(sigma, classes) ** -2 - sigma**-2)) ** -0.5}
    return {
        "adabn": ("adabn", {}),
        "mrf": ("mrf", {}),
        "mrf, entropy and balance / K": ("mrf", {"entropy_weight": mean, "balance_weight": mean}),
        "mrf, temperature as CRF's bandwidth": ("mrf", {"tau": 1 / (1 / tau + math.log((classes - 1) / (FEW - 1)))}),
        "crf": ("crf", {}),
        "crf, entropy / K": ("crf", {"entropy_weight": mean}),
        "crf, bandwidth of ten classes": ("crf", fixed),
        "crf, both": ("crf", {"entropy_weight": mean, **fixed}),
        "mrf-plus": ("mrf-plus", {}),
        "mrf-plus, balance / K": ("mrf-plus", {"balance_weight": 3 * mean}),
    }


def draw(name: str, classes: int) -> Domain:
    """Return images of digits beside each other, half as wide as they were, in a domain's style."""
    images, labels, _ = (torch.tensor(part) for part in demo.render(name, "train"))
    generator = torch.Generator().manual_seed(demo.DOMAINS.index(name))
    places = max(1, math.ceil(math.log10(classes)))
    first = torch.nonzero(labels < classes // 10 ** (places - 1)).squeeze(1)
    drawn = [
        some[torch.randint(len(some), (SAMPLES[classes],), generator=generator)]
        for some in (first, *[torch.arange(len(labels))] * (places - 1))
    ]
    beside = F.avg_pool2d(torch.cat([images[rows] for rows in drawn], dim=3).float(), (1, 2)).round()
    y = torch.zeros(SAMPLES[classes], dtype=torch.int64)
    for rows in drawn:
        y = 10 * y + labels[rows]
    return Domain(name, beside.to(torch.uint8), y)


def train(cell: Cell) -> dict[str, Any]:
    """Train one cell and return its row."""
    classes, name, (method, parameters), target, playing, seed, epochs = cell
    torch.set_num_threads(1)
    begin = time.monotonic()
    sources = tuple(draw(other, classes) for other in demo.DOMAINS if other not in (target, playing))
    player = draw(playing, classes)
    task = Task(sources, player.unlabelled(), tuple(map(str, range(classes))))
    with tempfile.TemporaryDirectory() as out:
        run = fit(task, method, out=out, seed=seed, epochs=epochs, device="cpu", parameters=dict(parameters))
        accuracy = run.evaluate(EvalSet(playing, player.x, player.y)).accuracy
    about = {"classes": classes, "setting": name, "target": target, "playing": playing, "seed": seed, "epochs": epochs}
    made = {"method": method, "parameters": dict(parameters), "seconds": round(time.monotonic() - begin, 1)}
    return {**about, "accuracy": round(accuracy, 4), **made}


def cells(given: argparse.Namespace) -> Iterator[Cell]:
    """Yield all cells asked for."""
    for seed in given.seeds:
        for classes in given.classes:
            for playing in given.players:
                for name, choice in choices(classes).items():
                    if given.only is None or name in given.only:
                        yield classes, name, choice, given.target, playing, seed, given.epochs


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells a row from others."""
    return tuple(row[name] for name in ("classes", "setting", "target", "playing", "seed", "epochs"))


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table of settings by classes: the mean accuracy in percent over players and seeds."""
    counts = sorted({row["classes"] for row in rows})
    lines = [f"| | {' | '.join(f'{classes} classes' for classes in counts)} |", "|---" + "|---:" * len(counts) + "|"]
    for name in choices(counts[0]):
        found = [[row["accuracy"] for row in rows if (row["setting"], row["classes"]) == (name, n)] for n in counts]
        if any(found):
            means = (f"{100 * statistics.mean(some):.1f} ({len(some)})" if some else "–" for some in found)
            lines.append(f"| {name} | {' | '.join(means)} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", nargs="+", type=int, choices=SAMPLES, default=[30, 100])
    parser.add_argument("--target", choices=demo.DOMAINS, default="neon", help="the real target, which is left out")
    parser.add_argument("--players", nargs="+", choices=demo.DOMAINS, default=["plain", "texture", "camera", "chalk"])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the settings")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, help="put the table of --out into this page, between its markers")
    given = parser.parse_args(arguments)
    if given.target in given.players:
        parser.error(f"--players {given.target}: that is the real target; name others")
    rows: list[dict[str, Any]] = json.loads(given.out.read_text())["runs"] if given.out.is_file() else []
    if given.page is not None:
        told = "\n".join(["<!-- table:many-classes -->", *table(rows), "<!-- /table:many-classes -->"])
        page = re.sub("<!-- table:many-classes -->.*?<!-- /table:many-classes -->", lambda _: told,
                      given.page.read_text(), flags=re.DOTALL)  # fmt: skip
        given.page.write_text(page)
        return
    done = {key_of(row) for row in rows}
    todo = [cell for cell in cells(given) if (*cell[:2], *cell[3:]) not in done]
    command = shlex.join(["python", "benchmarks/many_classes.py", *(arguments or sys.argv[1:])])
    made = {"command": command, **origin(), "date": time.strftime("%Y-%m-%d")}
    made["hardware"] += f", {given.jobs} processes of one thread"
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for number, row in enumerate(pool.imap_unordered(train, todo), 1):
            rows.append(row | made)
            given.out.write_text(dumps({"runs": rows}) + "\n")
            print(f"{row['setting']}, {row['classes']} classes -> {row['playing']}: {100 * row['accuracy']:.1f} %, "
                  f"{row['seconds']:.0f} s, {number} of {len(todo)}", flush=True)  # fmt: skip
    print("\n".join(table([row for row in rows if row["classes"] in given.classes])))


if __name__ == "__main__":
    main()
