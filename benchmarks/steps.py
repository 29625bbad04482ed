"""Steps to time: the engine's own at a given shape, how they are captured, and the clock."""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from graphmsda import Domain, Task
from graphmsda.engine import accelerate
from graphmsda.engine.fit import INTERVAL, Tally, take_step
from graphmsda.engine.optim import EVERY
from graphmsda.engine.settings import Settings, usual_precision
from graphmsda.engine.training import Training

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CUDA = DEVICE.type == "cuda"
MIXED = usual_precision(DEVICE.type, images=True) == "bf16"  # whether the engine computes in bfloat16 by default
WARM_UP = max(accelerate.WARM_UP, EVERY) + 3 if CUDA else 1  # calls before the clock: compiled, captured, averaged
CLASSES = 10

# How the engine takes its steps. A run shorter than `accelerate.WORTH_COMPILING` is captured, not compiled.
MODES: dict[str, dict[str, Any]] = {
    "eager": {"accelerate": "off", "epochs": 100},
    "captured": {"accelerate": "auto", "epochs": 1},
    "accelerated": {"accelerate": "auto", "epochs": 100},
}
BEST = "accelerated" if CUDA else "eager"

Work = Callable[[], Any]
Times = dict[str, list[float]]


@dataclass(frozen=True)
class Options:
    """What the command line decides for the sections.

    Attributes:
        batch: Samples of each domain; 0 leaves it to the section.
        methods: Methods of ``steps``, ``run`` and ``accuracy``; none leaves it to the section.
        seeds: Seeds of ``accuracy``.
        tasks: Tasks of ``accuracy``: ``demo`` stands for its three targets.
        epochs: Epochs of ``accuracy``.
        task: Task of ``run``.
        steps: Steps of ``run``.
        profile: Whether ``run`` also shows where the host's time goes.
        turns: How often each thing is timed.
        seconds: Least duration of one timing.
    """

    batch: int = 0
    methods: Sequence[str] = ()
    seeds: Sequence[int] = (0, 1, 2)
    tasks: Sequence[str] = ("demo", "digits-five:mm") if CUDA else ("demo",)
    epochs: int = 20
    task: str = "digits-five:mm" if CUDA else "demo:neon"
    steps: int = 19_500 if CUDA else 5
    profile: bool = False
    turns: int = 5 if CUDA else 3
    seconds: float = 0.3 if CUDA else 0.05


def wait() -> None:
    """Let the device finish."""
    if CUDA:
        torch.cuda.synchronize()


def seconds(work: Work, times: int = 1) -> float:
    """Return the time of one call out of several in a row."""
    wait()
    begin = time.perf_counter()
    for _ in range(times):
        work()
    wait()
    return (time.perf_counter() - begin) / times


def warm_up(name: str, work: Work, times: int = WARM_UP) -> None:
    """Call something until it runs as it will, and say what that took: compilation, mostly."""
    took = seconds(lambda: [work() for _ in range(times)])
    print(f"  {name}: ready after {took:.1f} s", file=sys.stderr, flush=True)


def how_often(work: Work, options: Options) -> int:
    """Return how many calls last as long as a timing should."""
    return max(1, math.ceil(options.seconds / max(seconds(work), 1e-6)))


def turn_by_turn(works: Mapping[str, Work], options: Options, warm: int = WARM_UP) -> Times:
    """Time several things in turns, as the machine's speed drifts, each after so many calls."""
    found: Times = {name: [] for name in works}
    for name, work in works.items():
        warm_up(name, work, warm)
    times = {name: how_often(work, options) for name, work in works.items()}
    for _ in range(options.turns):
        for name, work in works.items():
            found[name].append(seconds(work, times[name]))
    return found


def shortest(work: Work, options: Options) -> float:
    """Return the least of a few times of something that is warm."""
    times = how_often(work, options)
    return min(seconds(work, times) for _ in range(min(3, options.turns)))


def ratio(times: Mapping[str, Sequence[float]], above: str, below: str) -> float:
    """Return how much longer one takes than another, turn by turn."""
    return statistics.median(a / b for a, b in zip(times[above], times[below], strict=True))


def milliseconds(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the median of each in milliseconds."""
    return {name: 1000 * statistics.median(some) for name, some in times.items()}


def noise_task(sources: int, size: int, *, side: int = 32, classes: int = CLASSES) -> Task:
    """Return noise in the shape of a benchmark, `size` images in each domain."""
    generator = torch.Generator().manual_seed(0)

    def domain(name: str) -> Domain:
        x = torch.randint(0, 256, (size, 3, side, side), dtype=torch.uint8, generator=generator)
        return Domain(name, x, torch.arange(size) % classes)

    parts = [domain(f"source {number}") for number in range(sources)]
    return Task(tuple(parts), domain("target").unlabelled(), tuple(str(k) for k in range(classes)))


def new_training(task: Task, method: str, mode: str, **settings: Any) -> Training:
    """Return a training ready for its first step, of 195 steps an epoch as on Digits-five."""
    settings = {"backbone": "3conv-2fc", "weights": "none", "device": DEVICE.type, **settings}
    training = Training(
        task, Settings(method=method, steps_per_epoch=195, **MODES[mode], **settings).resolved(task), DEVICE
    )
    training.method.train()
    return training


def stepper(training: Training) -> Callable[[], None]:
    """Return a function that takes the next step as `graphmsda.engine.fit.train` does."""
    tally = Tally()
    step = accelerate.stepper(training, lambda: take_step(training, tally))

    def advance() -> None:
        training.prepare()
        step()
        training.step += 1
        if training.step % INTERVAL == 0:
            tally.read()
            training.snapshot()

    return advance


def engine_step(task: Task, method: str, mode: str = BEST, **settings: Any) -> Callable[[], None]:
    """Return a function that takes one step of a new training."""
    return stepper(new_training(task, method, mode, **settings))


def captured(step: Work) -> Work:
    """Return a replay of something without a host's part, on a GPU; on a CPU the thing itself."""
    if not CUDA:
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return partial(_replay, graph, step)


def _replay(graph: torch.cuda.CUDAGraph, _: Work) -> None:
    """Replay; the step is held only so that the memory it reads lives on."""
    graph.replay()


def peak_memory(step: Work) -> int | None:
    """Return the bytes that a step needs beside what it is given; None on a CPU, where PyTorch does not count."""
    if not CUDA:
        return None
    step()
    wait()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    wait()
    return torch.cuda.max_memory_allocated() - before


def free() -> None:
    """Give back what earlier steps held."""
    gc.collect()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    if CUDA:
        torch.cuda.empty_cache()
