"""What training and inference cost, each figure a ratio against something run beside it.

    python benchmarks/speed.py --out results/speed-cpu.json

- ``price``: a step of CRF and MRF against a cross-entropy step of the same network on as many images.
- ``yardstick``: a step of this engine against the textbook's: one forward pass per domain, float32, batches built by a
  `DataLoader`, for Source-only.
- ``inference``: `Run.predict` on an array against the bare network's forward pass.
- ``growth``: time of the graph's own part of a step against the number of classes, of sources, of samples
  and of dimensions, with the exponent fitted over the larger half.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from graphmsda import Domain, Task, fit
from graphmsda.backbones import three_conv_two_fc
from graphmsda.domains import Batch, Labelled
from graphmsda.engine.fit import Tally, take_step
from graphmsda.engine.settings import Settings
from graphmsda.engine.training import Training
from graphmsda.methods import build_method
from record import run_sections

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CUDA = DEVICE.type == "cuda"
STEPS, TURNS = (50, 5) if CUDA else (1, 4)
CLASSES, BATCH = 10, 128


def wait() -> None:
    if CUDA:
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any], times: int = 1) -> float:
    """Return the time of one call out of several in a row."""
    wait()
    begin = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return (time.perf_counter() - begin) / times


def turn_by_turn(works: dict[str, Callable[[], Any]], times: int = STEPS) -> dict[str, list[float]]:
    """Time several things in turns, as the machine's speed drifts; each runs once before."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(TURNS):
        for name, work in works.items():
            found[name].append(seconds(work, times))
    return found


def ratio(times: dict[str, list[float]], above: str, below: str) -> float:
    return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))


def digits_task(sources: int) -> Task:
    """Noise in the shape of Digits-five."""
    generator = torch.Generator().manual_seed(0)

    def domain(name: str) -> Domain:
        x = torch.randint(0, 256, (4 * BATCH, 3, 32, 32), dtype=torch.uint8, generator=generator)
        return Domain(name, x, torch.arange(4 * BATCH) % CLASSES)

    parts = [domain(f"source {number}") for number in range(sources)]
    return Task(tuple(parts), domain("target").unlabelled(), tuple(str(k) for k in range(CLASSES)))


def stepper(method: str, sources: int) -> Callable[[], None]:
    """Return a function that takes one step of a method at the Digits-five shape."""
    task = digits_task(sources)
    settings = Settings(method=method, backbone="3conv-2fc", batch_size=BATCH, device=DEVICE.type).resolved(task)
    training = Training(task, settings, DEVICE, lambda: torch.autocast(DEVICE.type, torch.bfloat16, enabled=CUDA))
    training.method.train()
    tally = Tally()

    def step() -> None:
        take_step(training, tally)
        training.step += 1

    return step


def measure_price() -> Iterator[dict[str, Any]]:
    """Plain is Source-only on five sources: cross-entropy on all 640 images."""
    works = {"plain": stepper("source-only", 5), "crf": stepper("crf", 4), "mrf": stepper("mrf", 4)}
    times = turn_by_turn(works)
    for method in ("crf", "mrf"):
        yield {
            "what": f"a step of {method} against a cross-entropy step on as many images (5 x 128, 3conv-2fc)",
            "seconds": {name: times[name] for name in ("plain", method)},
            "ratio": ratio(times, method, "plain"),
        }


def textbook() -> Callable[[], None]:
    """The step as a textbook writes it: each domain alone, float32, a `DataLoader` for each."""
    task = digits_task(5)
    body, features = three_conv_two_fc((3, 32, 32), 0.5)
    network = nn.Sequential(body, nn.Linear(features, CLASSES)).to(DEVICE)
    optimiser = torch.optim.Adam(network.parameters(), 2e-4, weight_decay=5e-4)
    loaders = [
        iter(_endless(DataLoader(TensorDataset(source.x[:], source.y), BATCH, shuffle=True, drop_last=True)))
        for source in task.sources
    ]

    def step() -> None:
        losses = []
        for loader in loaders:
            x, y = (part.to(DEVICE) for part in next(loader))
            losses.append(nn.functional.cross_entropy(network((x.float() / 255 - 0.5) / 0.5), y))
        optimiser.zero_grad()
        torch.stack(losses).mean().backward()
        optimiser.step()

    return step


def _endless(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def measure_yardstick() -> Iterator[dict[str, Any]]:
    """Both train Source-only on five sources."""
    times = turn_by_turn({"textbook": textbook(), "engine": stepper("source-only", 5)})
    yield {
        "what": "the textbook's step against this engine's, Source-only on 5 x 128 images",
        "seconds": times,
        "ratio": ratio(times, "textbook", "engine"),
    }


def measure_inference() -> Iterator[dict[str, Any]]:
    """Images a second of `Run.predict` on an array, against the bare network's forward pass in the same chunks."""
    task = digits_task(4)
    images = torch.randint(0, 256, (8192 if CUDA else 1024, 32, 32, 3), dtype=torch.uint8).numpy()
    with tempfile.TemporaryDirectory() as folder:
        for method in ("crf", "mrf"):
            options = {"epochs": 1, "steps_per_epoch": 2, "batch_size": 32, "backbone": "3conv-2fc"}
            run = fit(task, method, out=Path(folder) / method, device=DEVICE.type, **options)
            inputs = torch.from_numpy(images).permute(0, 3, 1, 2)

            @torch.inference_mode()
            def bare() -> None:
                for part in torch.split(inputs, 256):  # noqa: B023
                    run.method.embed(part.to(DEVICE))  # noqa: B023

            times = turn_by_turn({"bare": bare, "predict": lambda: run.predict(images)}, 1)  # noqa: B023
            yield {
                "what": f"images a second of Run.predict with {method} against the bare network, 32 x 32",
                "images": len(images),
                "seconds": times,
                "ratio": ratio(times, "bare", "predict"),
            }


class Identity(nn.Module):
    """A backbone that costs nothing: what remains of a step is the graph."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features
        self.scale = nn.Parameter(torch.ones(features))

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        """Return the samples, with a gradient."""
        return x * self.scale


def graph_step(method: str, classes: int, sources: int, batch: int, features: int) -> Callable[[], None]:
    """Return a function that computes loss and gradient of a method on given embeddings."""
    generator = torch.Generator().manual_seed(0)
    built = build_method(method, Identity(features), classes, sources + 1, {}).to(DEVICE)  # type: ignore[arg-type]

    def part() -> Labelled:
        x = torch.randn(batch, features, generator=generator)
        return Labelled(x.to(DEVICE), torch.randint(0, classes, (batch,), generator=generator).to(DEVICE))

    given = Batch(
        tuple(part() for _ in range(sources)), part().x, torch.tensor(0.5, device=DEVICE), torch.Generator(DEVICE)
    )

    def step() -> None:
        (phase,) = built.phases(given)
        torch.stack(list(phase.terms.values())).sum().backward()
        built.zero_grad()

    return step


BASE = {"classes": 31, "sources": 4, "batch": 16, "features": 256}
SERIES = {
    "classes": (10, 31, 65, 345, 1000),
    "sources": (1, 2, 5, 10, 20),
    "batch": (8, 16, 32, 64, 128),
    "features": (128, 256, 512, 1024, 2048),
}


def measure_growth() -> Iterator[dict[str, Any]]:
    """Each series changes one number and leaves the others at `BASE`."""
    for method in ("crf", "mrf"):
        for name, values in SERIES.items():
            times = []
            for value in values:
                step = graph_step(method, **{**BASE, name: value})
                step()
                times.append(min(seconds(step) for _ in range(3)))
            slope = math.log(times[-1] / times[-3]) / math.log(values[-1] / values[-3])
            yield {
                "what": f"growth of {method}'s graph with {name}, others at {BASE}",
                name: list(values),
                "seconds": times,
                "exponent": slope,
            }


SECTIONS = {
    "price": measure_price,
    "yardstick": measure_yardstick,
    "inference": measure_inference,
    "growth": measure_growth,
}


if __name__ == "__main__":
    run_sections("speed.py", __doc__, SECTIONS)
