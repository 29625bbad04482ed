"""Whole runs: how long one of the paper's length takes, what speed does to accuracy, and several on one GPU."""

from __future__ import annotations

import importlib.util
import json
import math
import multiprocessing
import os
import pstats
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from graphmsda import UserError, fit
from graphmsda.data import demo
from graphmsda.data.named import find_task
from steps import CUDA, MIXED, Options, engine_step, noise_task, seconds, warm_up

PER_EPOCH = 195  # steps of an epoch on Digits-five
PACKAGES = ("torch", "triton", "sympy", "mpmath", "numpy", "scipy", "lightning_fabric", "torchvision", "rich", "yaml",
            "safetensors", "PIL", "networkx", "jinja2", "typing_extensions", "graphmsda")  # fmt: skip
EXACT = {"precision": "32", "accelerate": "off"}


def compile_packages(folder: Path) -> None:
    """Put the byte code of the packages that a run imports below a folder, for Python to find it there.

    pip leaves it beside the packages; where an installation has none, Python would make it anew for every process.
    """
    found = [importlib.util.find_spec(name) for name in PACKAGES]
    places = [place for spec in found if spec is not None for place in spec.submodule_search_locations or ()]
    compiler = [sys.executable, "-m", "compileall", "-q", "-q", "-j", "0", *places]
    subprocess.run(compiler, env={**os.environ, "PYTHONPYCACHEPREFIX": str(folder)}, check=False)


def measure_run(options: Options) -> Iterator[dict[str, Any]]:
    """A run through the command line, start-up and final evaluation included: with empty caches, then again."""
    for method in options.methods or ("mrf",):
        with tempfile.TemporaryDirectory() as folder:
            row: dict[str, Any] = {
                "what": f"a run of {method} on {options.task}, {options.steps:,} steps: cold against warm caches",
                "method": method,
                "steps": options.steps,
            }
            compile_packages(Path(folder) / "bytecode")
            for name in ("cold", "warm"):
                row[name] = command_line_run(method, options, Path(folder), name)
                if row[name] is None:
                    return
                print(f"  {method}, {name}: {json.dumps(row[name])}", file=sys.stderr, flush=True)
                row["ratio"] = row["cold"]["seconds"] / row[name]["seconds"]
                yield row  # the second time in place of the first
            if options.profile:
                file = Path(folder) / "profile"
                command_line_run(method, options, Path(folder), "profiled", ("-m", "cProfile", "-o", str(file)))
                pstats.Stats(str(file), stream=sys.stderr).sort_stats("cumulative").print_stats(60)


def command_line_run(
    method: str, options: Options, folder: Path, name: str, before: Sequence[str] = ()
) -> dict[str, float] | None:
    """Run ``graphmsda fit`` as a user does and return what it took and gave; None where there are no data.

    ``before`` are words for Python that come before ``-m graphmsda``.
    """
    out, caches = folder / name, folder / "caches"
    command = [
        *(
            sys.executable,
            *before,
            "-m",
            "graphmsda",
            "fit",
            "--task",
            options.task,
            "--method",
            method,
            "--out",
            str(out),
        ),
        *("--epochs", str(max(1, options.steps // PER_EPOCH))),
        *("--steps-per-epoch", str(min(PER_EPOCH, options.steps))),
    ]
    environment = {
        **os.environ,
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "GRAPHMSDA_CACHE": str(caches / "store"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }
    begin = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    took = time.perf_counter() - begin
    if done.returncode != 0:
        if done.returncode != 2:
            raise RuntimeError(done.stderr)
        print(f"run: {done.stderr.strip().splitlines()[-1]}; skipped")
        return None
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    (accuracy,) = re.findall(r"target's test part: ([\d.]+) %", done.stdout)
    result = {
        "seconds": took,
        "start-up, data, final evaluation": took - rows[-1]["seconds"],
        f"first {rows[0]['step']} steps, compilation included": rows[0]["seconds"],
        "other steps": rows[-1]["seconds"] - rows[0]["seconds"],
        "accuracy": float(accuracy) / 100,
    }
    if len(rows) > 1:
        result["ms a step, later ones"] = 1000 * result["other steps"] / (rows[-1]["step"] - rows[0]["step"])
    return result


def measure_accuracy(options: Options) -> Iterator[dict[str, Any]]:
    """As by default, mixed precision and on a GPU accelerated, against step by step in float32; seeds in parallel."""
    if not MIXED:
        print("accuracy: this CPU takes steps one by one in float32 in any case; skipped")
        return
    targets = demo_targets()
    for task in options.tasks:
        names = targets if task == "demo" else [task]
        try:
            find_task(names[0])  # fills the store before processes race for it
        except UserError as error:
            print(f"accuracy: {error}; skipped")
            continue
        for method in options.methods or ("crf", "mrf"):
            yield compare_accuracy(task, names, method, options)


def demo_targets() -> list[str]:
    """Return the tasks that ``graphmsda demo`` shows."""
    from graphmsda.demo import TARGETS

    return [f"demo:{target}" for target in TARGETS]


def compare_accuracy(task: str, names: list[str], method: str, options: Options) -> dict[str, Any]:
    """Train as by default (here called accelerated) and in float32, the same seeds, and say how far apart they are."""
    kinds: dict[str, dict[str, Any]] = {"accelerated": {}, "eager float32": EXACT}
    at_once = len(options.seeds) if CUDA else os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder, _pool(at_once) as pool:
        cells = [
            (name, method, seed, settings, options.epochs, f"{folder}/{kind}-{name.replace(':', '-')}-{seed}")
            for kind, settings in kinds.items()
            for name in names
            for seed in options.seeds
        ]
        results = pool.starmap(accuracy_of, cells, chunksize=1)
    half = len(results) // 2
    found = {kind: [accuracy for accuracy, _ in results[n * half : (n + 1) * half]] for n, kind in enumerate(kinds)}
    spent = {kind: [took for _, took in results[n * half : (n + 1) * half]] for n, kind in enumerate(kinds)}
    differences = [a - b for a, b in zip(*found.values(), strict=True)]
    return {
        "what": f"accuracy of {method} on {task} after {options.epochs} epochs: accelerated against eager float32",
        "method": method,
        "task": task,
        "runs": [f"{name}, seed {seed}" for name in names for seed in options.seeds],
        "accuracies": found,
        "means": {kind: statistics.mean(some) for kind, some in found.items()},
        "difference": statistics.mean(differences),
        "standard error": statistics.stdev(differences) / math.sqrt(len(differences)) if half > 1 else None,
        "seconds of each run": spent,
        "ratio": statistics.mean(found["accelerated"]) / statistics.mean(found["eager float32"]),
    }


def _pool(processes: int) -> Any:
    if not CUDA:
        os.environ["OMP_NUM_THREADS"] = "1"  # of each of them
    return multiprocessing.get_context("spawn").Pool(processes)


def accuracy_of(
    name: str, method: str, seed: int, settings: dict[str, Any], epochs: int, out: str
) -> tuple[float, float]:
    """Train once and return the accuracy on the target's test part and the seconds of training."""
    if name.startswith("demo:"):
        task, test = demo.load(name.removeprefix("demo:"))
        backbone = "small"
    else:
        named = find_task(name)
        task, test, backbone = named.task, named.test, named.backbone
    begin = time.perf_counter()
    run = fit(task, method, out=out, epochs=epochs, seed=seed, backbone=backbone, **settings)
    return run.evaluate(test).accuracy, time.perf_counter() - begin


def measure_together(options: Options, most: int = 3) -> Iterator[dict[str, Any]]:
    """Steps a second of several runs of MRF in one process, each on a stream of its own, against one run.

    This tells what is to be gained; the runs share a random generator, so they are no runs to keep.
    """
    if not CUDA:
        print("together: streams are a GPU's; skipped")
        return
    batch = options.batch or 128
    task = noise_task(4, 8 * batch)
    streams = [torch.cuda.Stream() for _ in range(most)]
    works = []
    for number, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            works.append(engine_step(task, "mrf", batch_size=batch, seed=number))
            warm_up(f"run {number + 1}", works[-1])
    alone = 0.0
    for count in range(1, most + 1):

        def round_of_steps(count: int = count) -> None:
            for work, stream in zip(works[:count], streams[:count], strict=True):
                with torch.cuda.stream(stream):
                    work()

        times = max(20, math.ceil(options.seconds / seconds(round_of_steps, 20)))
        found = [count / seconds(round_of_steps, times) for _ in range(options.turns)]
        rate = statistics.median(found)
        alone = alone or rate
        yield {
            "what": f"steps a second of {count} runs of mrf at once on one GPU, against one run",
            "runs": count,
            "steps a second": found,
            "ratio": rate / alone,
        }
