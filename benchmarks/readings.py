"""Compare readings of the paper's equations on the embedded data, many small runs side by side.

    python benchmarks/readings.py --choose --out results/demo-choice.json   # leave-one-source-out: chooses the defaults
    python benchmarks/readings.py --out results/demo-readings.json          # what each reading does on the real targets

A file that is there already is gone on with: cells it holds are not run again.

Choosing never scores a real target: each source in turn plays the target, the real target is left out altogether, and
the score is the accuracy on the playing source's training part, whose labels a user would have.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from graphmsda import METHODS, EvalSet, Task, fit
from graphmsda.data import demo

EPOCHS = 20
READINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "source-only": ("source-only", {}, {}),
    "adabn": ("adabn", {}, {}),
    "crf": ("crf", {}, {}),
    "crf one-way": ("crf", {"two_way": False}, {}),
    "crf adjacency not normalised": ("crf", {"normalise": "none"}, {}),
    "crf adjacency row-normalised": ("crf", {"normalise": "row"}, {}),
    "crf relative bandwidth 0.3": ("crf", {"sigma": 0.3}, {}),
    "crf relative bandwidth 0.5": ("crf", {"sigma": 0.5}, {}),
    "crf mean distance, sigma 0.005": ("crf", {"scale": "mean", "sigma": 0.005}, {}),
    "crf summed distance, sigma 0.005": ("crf", {"scale": "sum", "sigma": 0.005}, {}),
    "crf lambda_1 0": ("crf", {"lambda_1": 0.0}, {}),
    "crf lambda_1 20": ("crf", {"lambda_1": 20.0}, {}),
    "crf lambda_2 0": ("crf", {"lambda_2": 0.0}, {}),
    "crf lambda_2 0.1": ("crf", {"lambda_2": 0.1}, {}),
    "crf no entropy": ("crf", {"entropy_weight": 0.0}, {}),
    "crf entropy / K": ("crf", {"entropy_weight": 1.0}, {}),
    "crf entropy as printed": ("crf", {"entropy_weight": 1.0, "entropy_per_class": False}, {}),
    "crf no prototype classification": ("crf", {"prototype_weight": 0.0}, {}),
    "crf cited pseudo-label rule": ("crf", {"pseudo_labels": "accuracy"}, {}),
    "crf no dropout in the graph": ("crf", {"dropout": 0.0}, {}),
    "crf preset paper": ("crf", {}, {"preset": "paper"}),
    "mrf": ("mrf", {}, {}),
    "mrf relative tau 0.1": ("mrf", {"tau": 0.1}, {}),
    "mrf relative tau 1": ("mrf", {"tau": 1.0}, {}),
    "mrf mean distance, tau 0.1": ("mrf", {"scale": "mean", "tau": 0.1}, {}),
    "mrf summed distance, tau 0.1": ("mrf", {"scale": "sum", "tau": 0.1}, {}),
    "mrf no likelihood": ("mrf", {"alpha": 0.0}, {}),
    "mrf alpha 1": ("mrf", {"alpha": 1.0}, {}),
    "mrf eq. 22 verbatim, alpha 1": ("mrf", {"likelihood": "verbatim", "alpha": 1.0}, {}),
    "mrf eq. 22 mean clique, alpha 1": ("mrf", {"likelihood": "mean-clique", "alpha": 1.0}, {}),
    "mrf logistic": ("mrf", {"likelihood": "logistic"}, {}),
    "mrf no clique energy": ("mrf", {"clique_weight": 0.0}, {}),
    "mrf no wrong edges": ("mrf", {"wrong_edges": 0}, {}),
    "mrf no entropy": ("mrf", {"entropy_weight": 0.0}, {}),
    "mrf entropy / K": ("mrf", {"entropy_weight": 1.0}, {}),
    "mrf entropy as printed": ("mrf", {"entropy_weight": 1.0, "entropy_per_class": False}, {}),
    "mrf cited pseudo-label rule": ("mrf", {"pseudo_labels": "accuracy"}, {}),
    "mrf prototypes start at random": ("mrf", {"start": "normal"}, {}),
    "mrf preset paper": ("mrf", {}, {"preset": "paper"}),
}
# Compared when choosing the defaults, beside the defaults themselves.
CANDIDATES = (
    "adabn",
    "crf",
    "crf one-way",
    "crf relative bandwidth 0.3",
    "crf lambda_1 20",
    "crf entropy / K",
    "mrf",
    "mrf relative tau 0.1",
    "mrf relative tau 1",
    "mrf alpha 1",
    "mrf entropy / K",
)


def leave_one_out(real: str, playing: str) -> tuple[Task, EvalSet]:
    """Return the task in which `playing` is the target and `real` does not exist; scored on the player's labels."""
    task, _ = demo.load(real)
    player = next(source for source in task.sources if source.name == playing)
    rest = tuple(source for source in task.sources if source.name != playing)
    return Task(rest, player.unlabelled(), task.classes), EvalSet(playing, player.x, player.y)


def one(cell: tuple[str, str, str | None, int, int, str]) -> dict[str, Any]:
    reading, real, playing, seed, epochs, device = cell
    torch.set_num_threads(1)
    method, parameters, settings = READINGS[reading]
    task, evaluation = demo.load(real) if playing is None else leave_one_out(real, playing)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as out:
        settings = {"backbone": "small", "epochs": epochs, "seed": seed, "device": device, "precision": "32"} | settings
        run = fit(task, method, out=Path(out), parameters=parameters, **settings)
        accuracy = run.evaluate(evaluation).accuracy
    return {
        "reading": reading,
        "target": real,
        "playing": playing,
        "seed": seed,
        "accuracy": accuracy,
        "seconds": round(time.monotonic() - begin, 1),
    }


def cells(given: argparse.Namespace) -> Iterator[tuple[str, str, str | None, int, int, str]]:
    for seed in given.seeds:
        for number, real in enumerate(demo.DOMAINS):
            players = [demo.DOMAINS[(number + shift) % 5] for shift in (1, 3)] if given.choose else [None]
            for playing in players:
                for reading in CANDIDATES if given.choose else READINGS:
                    if given.only is None or any(word in reading for word in given.only):
                        yield reading, real, playing, seed, given.epochs, given.device


def current_commit() -> str:
    return subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()


def hardware(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choose", action="store_true", help="leave-one-source-out instead of the real targets")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--only", nargs="+", help="readings whose name contains one of these words")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--commit", help="commit to record where there is no git (default: the present one)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after this long, keeping what is done")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--page", type=Path, help="put the table of --out into this page, between its markers")
    given = parser.parse_args()
    if given.page is not None:
        lines = table(json.loads(given.out.read_text())["runs"])
        mark = given.out.stem
        told = f"<!-- table:{mark} -->\n" + "\n".join(lines) + f"\n<!-- /table:{mark} -->"
        text = re.sub(f"<!-- table:{mark} -->.*?<!-- /table:{mark} -->", told, given.page.read_text(), flags=re.DOTALL)
        given.page.write_text(text)
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    where = {
        "command": "python " + " ".join(sys.argv),
        "commit": given.commit or current_commit(),
        "hardware": f"{hardware(given.device)}, {given.jobs} processes of one thread",
        "date": time.strftime("%Y-%m-%d"),
    }
    runs: list[dict[str, Any]] = json.loads(given.out.read_text())["runs"] if given.out.is_file() else []
    done = {(row["reading"], row["target"], row["playing"], row["seed"]) for row in runs}
    begin = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for row in pool.imap_unordered(one, [cell for cell in cells(given) if cell[:4] not in done]):
            runs.append(row | where)
            given.out.write_text(json.dumps({"runs": runs}, indent=1))
            if time.monotonic() - begin > 60 * given.minutes:
                pool.terminate()
                break
    print("\n".join(table(runs)))


def table(runs: list[dict[str, Any]]) -> list[str]:
    """Return a markdown table of readings by targets, in percent, and how each compares with its method's default."""
    targets = [target for target in demo.DOMAINS if any(row["target"] == target for row in runs)]
    mean = {
        (reading, target): statistics.mean(some)
        for reading in READINGS
        for target in targets
        if (some := [r["accuracy"] for r in runs if (r["reading"], r["target"]) == (reading, target)])
    }
    lines = ["| reading | " + " | ".join(f"→ {t}" for t in targets) + " | mean | against the default |"]
    lines.append("|---" + "|---:" * (len(targets) + 2) + "|")
    for reading in READINGS:
        default = READINGS[reading][0]
        common = [t for t in targets if (reading, t) in mean and (default, t) in mean]
        if not common:
            continue
        shares = [mean[reading, t] for t in common]
        change = statistics.mean(shares) - statistics.mean(mean[default, t] for t in common)
        cells = [f"{100 * mean[reading, t]:.1f}" if t in common else "" for t in targets]
        cells += [f"{100 * statistics.mean(shares):.1f}", "" if reading in METHODS else f"{100 * change:+.1f}"]
        lines.append(f"| {reading} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
