"""The data of a study: a benchmark, or labelled domains of your own, each the target in turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from graphmsda.data import demo
from graphmsda.data.benchmarks.benchmark import resolve_domain
from graphmsda.data.benchmarks.catalogue import find_benchmark
from graphmsda.data.formats import open_listing
from graphmsda.data.named import NamedTask, find_task
from graphmsda.data.task import Loading, build_eval_set, build_task
from graphmsda.domains import Domain, EvalSet, Task
from graphmsda.errors import UserError

NOISE = "noise"  # images of noise in the shape of Digits-five, for timing
LOCAL = ("data_root", "cache", "root")  # where things lie on a machine, which says nothing of what they are


@dataclass(frozen=True)
class Data:
    """What a process has to know to read any task of a study.

    Attributes:
        benchmark: Name of a benchmark, or ``demo``; None for domains of your own.
        places: Name and path of each of these.
        reading: How data are read, and where they lie on this machine: flags of `graphmsda.reading.READING`.
    """

    benchmark: str | None
    places: tuple[tuple[str, str], ...] = ()
    reading: tuple[tuple[str, Any], ...] = ()

    @property
    def domains(self) -> tuple[str, ...]:
        """All domains."""
        if self.benchmark is None:
            return tuple(name for name, _ in self.places)
        known = {"demo": demo.DOMAINS, NOISE: (NOISE,)}
        return known.get(self.benchmark) or tuple(find_benchmark(self.benchmark).domains)

    @property
    def classes(self) -> int | None:
        """How many classes there are, where that is known before anything is read."""
        if self.benchmark is None:
            return None
        return 10 if self.benchmark in ("demo", NOISE) else find_benchmark(self.benchmark).classes

    def about(self) -> dict[str, Any]:
        """Return what makes it the same data on every machine."""
        reading = {name: str(value) for name, value in self.reading if name not in LOCAL}
        return {"benchmark": self.benchmark, "domains": list(self.domains), "reading": reading}

    def domain(self, text: str) -> str:
        """Return a domain by any of its names."""
        if self.benchmark not in (None, "demo", NOISE):
            return resolve_domain(find_benchmark(str(self.benchmark)), text)
        if text not in self.domains:
            raise UserError(f"--targets {text}: there is no such domain; choose from {', '.join(self.domains)}")
        return text


def choose_data(benchmark: str | None, domains: list[str] | None, reading: Mapping[str, Any]) -> Data:
    """Return the data that were named on the command line."""
    how = tuple(sorted(reading.items()))
    if (benchmark is None) == (domains is None):
        found = "neither --benchmark nor --domains was given" if benchmark is None else "both were given"
        raise UserError(f"{found}; give --benchmark NAME, such as digits-five or demo, or --domains PATH PATH ...")
    if benchmark is not None:
        return Data("demo" if benchmark == "demo" else find_benchmark(benchmark).name, (), how)
    if "variant" in reading:
        raise UserError("--variant was given with --domains, but only benchmarks have variants; leave it out")
    places = {Path(path).name.partition(".")[0] or path: str(path) for path in domains or ()}
    if len(places) < len(domains or ()):
        raise UserError(f"--domains {' '.join(domains or ())}: two have the same name; give each a name of its own")
    if len(places) < 2:
        raise UserError("--domains: one alone has no source; give at least two labelled domains")
    return Data(None, tuple(places.items()), how)


@lru_cache(maxsize=8)
def load(data: Data, target: str) -> NamedTask:
    """Return the task that adapts all other domains to one, read at most once by a process."""
    reading = dict(data.reading)
    root, variant = reading.pop("data_root", None), reading.pop("variant", None)
    if data.benchmark == NOISE:
        return _noise()
    if data.benchmark is not None:
        return find_task(f"{data.benchmark}:{target}", root=root, variant=variant, **reading)
    how = Loading(**reading)
    places = dict(data.places)
    names = [*(name for name in places if name != target), target]

    def listing(name: str, part: str, *, labelled: bool) -> Any:
        return open_listing(places[name], labelled=labelled, part=part, format=how.format, root=how.root, alone=True)

    listings = [listing(name, "train", labelled=name != target) for name in names]
    task = build_task(listings[:-1], listings[-1], names, how)
    size = task.target.x.shape[-1]
    test = build_eval_set(listing(target, "test", labelled=True), target, task.classes, size, how)
    origin = {"sources": [places[name] for name in names[:-1]], "target": places[target]}
    return NamedTask(task, test, {}, origin, how.notes)


def _noise(sources: int = 4, size: int = 1024, side: int = 32, classes: int = 10) -> NamedTask:
    generator = torch.Generator().manual_seed(0)

    def domain(name: str) -> Domain:
        x = torch.randint(0, 256, (size, 3, side, side), dtype=torch.uint8, generator=generator)
        return Domain(name, x, torch.arange(size) % classes)

    parts = [domain(f"source {number}") for number in range(sources)]
    target = domain(NOISE)
    task = Task(tuple(parts), target.unlabelled(), tuple(map(str, range(classes))))
    return NamedTask(task, EvalSet(NOISE, target.x, target.y), {}, {}, [], "3conv-2fc")
