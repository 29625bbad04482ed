"""Training on a CPU: what a step owes to bfloat16 and to memory that is kept from step to step."""

from __future__ import annotations

import resource
import statistics
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from graphmsda.engine.memory import freed_memory_kept
from graphmsda.engine.settings import usual_precision
from steps import CUDA, Options, engine_step, free, how_often, milliseconds, noise_task, ratio, seconds

# The precision, and whether freed memory is kept, as training keeps it.
FORMS = {
    "float32, memory returned": ("32", False),
    "float32": ("32", True),
    "bfloat16, memory returned": ("bf16", False),
    "bfloat16": ("bf16", True),
}
# Pixels a side, classes, domains and samples of each: Digits-five, PACS and the embedded data.
SHAPES = {"3conv-2fc": (32, 10, 5, 128), "resnet18": (224, 7, 4, 16), "small": (32, 10, 5, 32)}


def measure_cpu(options: Options) -> Iterator[dict[str, Any]]:
    """A step of each method in both precisions, with memory kept and returned, in turns."""
    if CUDA:
        print("cpu: a GPU is there; set CUDA_VISIBLE_DEVICES= to leave it out; skipped")
        return
    forms = {name: form for name, form in FORMS.items() if form[0] in ("32", usual_precision("cpu", images=True))}
    if forms != FORMS:
        print("cpu: this one does not multiply in bfloat16, so only float32 is measured")
    for backbone, (side, classes, domains, batch) in SHAPES.items():
        task = noise_task(domains - 1, 4 * batch, side=side, classes=classes)
        for method in options.methods or ("crf", "mrf"):
            steps = {
                precision: engine_step(
                    task, method, batch_size=batch, backbone=backbone, weights="none", precision=precision
                )
                for precision, _ in forms.values()
            }
            times: dict[str, list[float]] = {name: [] for name in forms}
            pages: dict[str, list[float]] = {name: [] for name in forms}
            for _ in range(options.turns):
                for name, (precision, kept) in forms.items():
                    step = steps[precision]
                    with freed_memory_kept() if kept else nullcontext():
                        step()  # takes the memory that the next ones find
                        count = how_often(step, options)
                        before = cleared()
                        times[name].append(seconds(step, count))
                        pages[name].append((cleared() - before) / count)
            first, *_, last = forms
            yield {
                "what": f"a step of {method} on a CPU, {domains} x {batch}, {backbone}: {first} against {last}",
                "method": method,
                "backbone": backbone,
                "images": domains * batch,
                "ms": milliseconds(times),
                "seconds": times,
                "pages": {name: round(statistics.median(some)) for name, some in pages.items()},
                "ratio": ratio(times, first, last),
            }
            free()


def cleared() -> int:
    """Return how many pages the system has made for this process so far, each of them cleared."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
