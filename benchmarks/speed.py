"""What training and inference cost, each figure a ratio against something run beside it.

    python benchmarks/speed.py --out results/speed.json
    python benchmarks/plot_speed.py --page docs/performance.md

The sections, of which ``--only`` chooses some:

- ``steps``: a step of Source-only, CRF and MRF at the shape of Digits-five: step by step, captured, accelerated, and as
  a textbook writes it; on a GPU also which kernels it consists of.
- ``price``: a step of CRF and MRF against a cross-entropy step of the same network on as many images.
- ``run``: a run of the paper's length through the command line, with cold and warm caches (needs Digits-five below
  ``$GRAPHMSDA_DATA``; ``--steps`` shortens it, ``--task demo:neon`` needs no data). On a CPU a few steps of the demo.
- ``resnet``: ResNet-18 at 224 pixels against the bare training loop on one batch that never changes.
- ``inference``: `Run.predict` on an array against the bare network's forward pass.
- ``cpu``: a step on a CPU in float32 and bfloat16, with freed memory kept and returned (only without a GPU).
- ``growth``: time and memory of the graph's own part of a step against classes, sources, samples and dimensions.
- ``accuracy``: after 20 epochs, as by default against step by step in float32.
- ``together``: several runs at once on one GPU.

On a CPU some sizes are smaller, and the rows say which. Where steps are timed there (but in ``cpu``), memory is kept
from call to call as training keeps it, for all that they are compared with, too.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from graphmsda import fit
from graphmsda.engine.fit import INTERVAL
from graphmsda.engine.memory import freed_memory_kept
from graphmsda.streaming import chunk_size, pieces
from growth import measure_growth
from kernels import described, profile
from processor import measure_cpu
from record import parser_of, run_and_merge
from resnet import measure_resnet
from runs import measure_accuracy, measure_run, measure_together
from steps import (
    BEST,
    CUDA,
    DEVICE,
    MODES,
    Options,
    Work,
    engine_step,
    free,
    milliseconds,
    noise_task,
    ratio,
    turn_by_turn,
)
from textbook import textbook_step

SOURCES = 4
ON_DEVICE = "bare, images on the device"


def measure_steps(options: Options) -> Iterator[dict[str, Any]]:
    """Five domains, 3conv-2fc: four sources and the target, or for Source-only, which sees no target, five sources.

    On a GPU the plain step, cross-entropy on all images, is timed in turns with each method: the price of the graph.
    """
    batch = options.batch or (128 if CUDA else 16)
    tasks = {sources: noise_task(sources, 8 * batch) for sources in (SOURCES, SOURCES + 1)}
    plain = engine_step(tasks[SOURCES + 1], "source-only", batch_size=batch) if CUDA else None
    for method in options.methods or ("source-only", "crf", "mrf"):
        task = tasks[SOURCES + (method == "source-only")]
        works: dict[str, Work] = {
            mode: plain
            if plain is not None and method == "source-only" and mode == BEST
            else engine_step(task, method, mode, batch_size=batch)
            # The accelerated one first: the kernels that cuDNN settles on, it tries them all, stay for the process.
            for mode in (sorted(MODES, key=lambda mode: mode != BEST) if CUDA else ("eager",))
        }
        if plain is not None:
            works["plain"] = plain
        works["textbook"] = textbook_step(method, task, batch, DEVICE, loading=True)
        works["textbook, one batch"] = textbook_step(method, task, batch, DEVICE, loading=False)
        times = turn_by_turn(works, options)
        row = {
            "what": f"a step of {method}: the textbook's against this engine's, {SOURCES + 1} x {batch}, 3conv-2fc",
            "method": method,
            "batch": batch,
            "ms": milliseconds(times),
            "seconds": times,
            "ratio": ratio(times, "textbook", BEST),
            "textbook, one batch / engine": ratio(times, "textbook, one batch", BEST),
        }
        if CUDA:
            row["eager / accelerated"] = ratio(times, "eager", BEST)
            row["price of the graph"] = ratio(times, BEST, "plain")
            row |= described(profile(works[BEST], INTERVAL))  # the readings between steps once
        yield row
        del works


def measure_price(options: Options) -> Iterator[dict[str, Any]]:
    """Plain is Source-only on five sources: cross-entropy on all images of a step. On a GPU, `steps` measures it."""
    if CUDA:
        print("price: a part of steps on a GPU, where compiling twice takes minutes; skipped")
        return
    batch = options.batch or 128
    size = 4 * batch
    works: dict[str, Work] = {
        "plain": engine_step(noise_task(SOURCES + 1, size), "source-only", batch_size=batch),
        "crf": engine_step(noise_task(SOURCES, size), "crf", batch_size=batch),
        "mrf": engine_step(noise_task(SOURCES, size), "mrf", batch_size=batch),
    }
    times = turn_by_turn(works, options)
    for method in ("crf", "mrf"):
        some = {name: times[name] for name in ("plain", method)}
        yield {
            "what": f"a step of {method} against a cross-entropy step on as many images, {SOURCES + 1} x {batch}",
            "method": method,
            "batch": batch,
            "ms": milliseconds(some),
            "seconds": some,
            "ratio": ratio(times, method, "plain"),
        }
    free()


def measure_inference(options: Options) -> Iterator[dict[str, Any]]:
    """Images a second of `Run.predict` on an array, against the bare network's forward pass in float32.

    The bare network gets the same array, in the pieces that `Run` takes and in larger ones; the faster counts.
    """
    for side, backbone, count in ((32, "3conv-2fc", 131_072 if CUDA else 512), (224, "resnet18", 8192 if CUDA else 32)):
        task = noise_task(SOURCES, 32, side=side)
        images = torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8)
        inputs = images.permute(0, 3, 1, 2)
        for method in ("crf", "mrf"):
            with tempfile.TemporaryDirectory() as folder:
                given = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 8, "backbone": backbone, "weights": "none"}
                run = fit(task, method, out=Path(folder) / method, device=DEVICE.type, **given)
            chunk = chunk_size(inputs.shape[1:], DEVICE)
            works: dict[str, Work] = {
                "bare": partial(bare_forward, run.method, inputs, chunk),
                "bare, larger pieces": partial(bare_forward, run.method, inputs, 4 * chunk, whole=True),
                "predict": partial(run.predict, images.numpy()),
            }
            if CUDA:
                works[ON_DEVICE] = partial(bare_forward, run.method, inputs.to(DEVICE), chunk)
            times = turn_by_turn(works, options, warm=3)
            fastest = min(("bare", "bare, larger pieces"), key=lambda name: statistics.median(times[name]))
            row = {
                "what": f"images a second of Run.predict with {method} against the bare {backbone}, {side} x {side}",
                "method": method,
                "side": side,
                "images": count,
                "images a second": {name: count / statistics.median(some) for name, some in times.items()},
                "seconds": times,
                "fastest": fastest,
                "ratio": ratio(times, fastest, "predict"),
            }
            if CUDA:
                row["against the forward pass of images on the device"] = ratio(times, ON_DEVICE, "predict")
            yield row
            del works
            free()


@torch.inference_mode()
def bare_forward(method: Any, images: Tensor, chunk: int, *, whole: bool = False) -> None:
    """Embed all images, chunk by chunk, each as a whole or in the pieces that suit the device."""
    for part in torch.split(images, chunk):
        x = part.to(DEVICE)
        for piece in [x] if whole else pieces(x):
            method.embed(piece)


def as_in_training(
    measure: Callable[[Options], Iterator[dict[str, Any]]], options: Options
) -> Iterator[dict[str, Any]]:
    """Run a section with memory treated as training on the device treats it."""
    with nullcontext() if CUDA else freed_memory_kept():
        yield from measure(options)


SECTIONS = {
    "steps": partial(as_in_training, measure_steps),
    "price": partial(as_in_training, measure_price),
    "run": measure_run,
    "resnet": partial(as_in_training, measure_resnet),
    "inference": measure_inference,
    "cpu": measure_cpu,
    "growth": measure_growth,
    "accuracy": measure_accuracy,
    "together": measure_together,
}


def main() -> int:
    """Run what the command line asks for; what fails leaves the rest alone."""
    parser = parser_of(__doc__, SECTIONS)
    add = parser.add_argument
    add("--batch", type=int, help="samples of each domain, in place of a section's own number")
    add("--methods", nargs="+", choices=("source-only", "crf", "mrf"), help="methods of steps, run and accuracy")
    add("--seeds", nargs="+", type=int, help="seeds of accuracy, trained at the same time (default: 0 1 2)")
    add("--tasks", nargs="+", help="tasks of accuracy (default: demo digits-five:mm)")
    add("--epochs", type=int, help="epochs of accuracy (default: 20)")
    add("--task", help="task of run (default: digits-five:mm, on a CPU demo:neon)")
    add("--steps", type=int, help="steps of run (default: 19500 on a GPU)")
    add(
        "--profile", action="store_true", default=None, help="after run, show where the host's time goes in a third one"
    )
    add("--turns", type=int, help="how often each thing is timed")
    given = parser.parse_args()
    names = {field.name for field in dataclasses.fields(Options)}
    options = Options(**{name: value for name, value in vars(given).items() if name in names and value is not None})
    sections = {name: partial(measure, options) for name, measure in SECTIONS.items()}
    return run_and_merge(_command(given), given, sections)


def _command(given: argparse.Namespace) -> str:
    """Return the command again, without where results go and which commit was said to be measured."""
    left_out = ("out", "commit", "profile")
    words = [f"--{name.replace('_', '-')} {' '.join(map(str, value)) if isinstance(value, list) else value}"
             for name, value in vars(given).items() if value is not None and name not in left_out]  # fmt: skip
    return " ".join(["python benchmarks/speed.py", *words])


if __name__ == "__main__":
    sys.exit(main())
