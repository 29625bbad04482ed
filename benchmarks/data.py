"""How fast data reach training, each figure a ratio against something run beside it.

    python benchmarks/data.py --out results/data-cpu.json

Sections run on what lies below ``$GRAPHMSDA_DATA`` (Digits-five and PACS) and say so where it is absent:

- ``store``: an epoch of shuffled batches from the store against decoding the files anew.
- ``resident``: batches that lie on the device, against `torchvision`'s ``ImageFolder`` with a ``DataLoader`` and
  per-image transforms (run it on a GPU).
- ``training``: steps of ResNet-18 at 224 pixels on PACS fed from the store, kept on the device or fetched batch by
  batch, against the same steps on one batch that never changes.
- ``memory``: anonymous memory of a trainer with a set ten times as large.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from graphmsda.data import store
from graphmsda.data.benchmarks.benchmark import data_root
from graphmsda.data.formats import open_listing
from graphmsda.data.listing import Listing, take
from graphmsda.data.named import find_task
from graphmsda.data.sampler import Stream
from graphmsda.data.store import open_store
from graphmsda.engine.feed import Feed, take_rows
from graphmsda.engine.training import Training
from record import run_sections
from steps import BEST, DEVICE, WARM_UP, free, new_training, ratio, stepper, wait
from steps import seconds as mean_seconds

LARGEST_RAW = store.LARGEST_RAW


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    """Return the shortest of several times, after everything before has finished."""
    best = float("inf")
    for _ in range(repeats):
        wait()
        begin = time.perf_counter()
        work()
        wait()
        best = min(best, time.perf_counter() - begin)
    return best


def part_of(path: Path, count: int) -> Listing:
    listing = open_listing(path, labelled=False)
    return take(listing, range(0, len(listing), max(1, len(listing) // count)))


def measure_store(cache: Path) -> Iterator[dict[str, Any]]:
    """An epoch from the store against an epoch from the files, all cores in both."""
    cases = [
        ("digits-five/mnistm.zip", 32, 6_000, False),
        ("pacs/photo.zip", 227, 600, False),
        ("pacs/photo.zip", 227, 600, True),
    ]
    for name, size, count, enlarge in cases:
        path = data_root() / name
        if not path.is_file():
            print(f"store: {name} is not below {data_root()}; skipped")
            continue
        listing = part_of(path, count)
        if enlarge:  # as photographs usually come: the compressed store is for sets of many large ones
            name = f"{name} enlarged to JPEG files of 640 x 480"
            folder = cache / "enlarged"
            folder.mkdir()
            for index in range(len(listing)):
                listing.picture(index).resize((640, 480)).save(folder / f"{index:05}.jpg", quality=90)
            listing = open_listing(folder, labelled=False)
        batches = list(Stream(len(listing), 128, 0).batches(range(len(listing) // 128)))
        files = seconds(lambda: [listing.read(rows.tolist(), size) for rows in batches], 2)  # noqa: B023
        for kind, limit in (("raw", 2**40), ("jpeg", 0)):
            store.LARGEST_RAW = limit
            begin = time.perf_counter()
            x = open_store(listing, size, cache=cache).x
            built = time.perf_counter() - begin
            stored = seconds(lambda: [take_rows(x, rows) for rows in batches])  # noqa: B023
            yield {
                "what": f"{kind} store against decoding files, {name} at {size} x {size}",
                "images": len(batches) * 128,
                "seconds": {"files": files, "store": stored, "building it": built},
                "ratio": files / stored,
            }


def measure_resident(cache: Path) -> Iterator[dict[str, Any]]:
    """Normalised batches of 5 x 128 images on the device, against a DataLoader for each domain."""
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    place = data_root() / "digits-five"
    names = ("mnist", "mnistm", "usps", "svhn", "syn")
    if not all((place / f"{name}.zip").is_file() for name in names):
        print(f"resident: Digits-five is not in {place}; skipped")
        return
    steps, workers = 50, os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            with zipfile.ZipFile(place / f"{name}.zip") as archive:
                chosen = [member for member in archive.namelist() if member.startswith("train/")][: steps * 128]
                archive.extractall(Path(folder) / name, chosen)
        prepare = transforms.Compose(
            [transforms.Resize((32, 32)), transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)]
        )
        share = max(1, workers // len(names))
        loaders = [
            DataLoader(
                ImageFolder(str(Path(folder) / name / "train"), prepare), 128, shuffle=True, num_workers=share,
                pin_memory=DEVICE.type == "cuda", persistent_workers=True, drop_last=True,
            )
            for name in names
        ]  # fmt: skip
        listings = [open_listing(Path(folder) / name / "train", labelled=False) for name in names]
        samples = [open_store(listing, 32, cache=cache).x for listing in listings]

        def from_loaders() -> None:
            for parts in zip(*loaders, strict=False):
                torch.cat([images.to(DEVICE, non_blocking=True) for images, _ in parts])

        streams = [Stream(len(x), 128, n) for n, x in enumerate(samples)]
        feed = Feed(samples, streams, DEVICE)
        table = torch.stack([stream.batches(range(steps)) for stream in streams], dim=1).to(DEVICE)

        def from_feed() -> None:
            for step in range(steps):
                parts = feed.take(table[step]) if feed.ready else feed.fetch(step)
                (torch.cat(parts).float() / 255 - 0.5) / 0.5

        fast = seconds(from_feed) / steps  # first, as workers go on fetching after the last batch was taken
        from_loaders()  # starts them
        count = min(len(loader) for loader in loaders)
        slow = seconds(from_loaders, 2) / count
    yield {
        "what": f"resident batches against ImageFolder + DataLoader ({share * len(names)} workers), Digits-five",
        "seconds": {"DataLoader, a step of 640 images": slow, "resident": fast},
        "ratio": slow / fast,
    }


class Fixed:
    """A feed that returns one batch for ever."""

    ready = True

    def __init__(self, feed: Feed, rows: torch.Tensor) -> None:
        found = feed.take(rows) if feed.ready else feed.fetch(0)
        self.first = [part.clone() for part in found]
        feed.close()

    def take(self, rows: torch.Tensor) -> list[torch.Tensor]:
        """Return the first batch."""
        return self.first


def first_rows(training: Training) -> torch.Tensor:
    """Return the rows of a training's first step, on its device."""
    return torch.stack([stream.batches(range(1))[0] for stream in training.course.streams]).to(DEVICE)


def measure_training(cache: Path) -> Iterator[dict[str, Any]]:
    """Steps of Source-only and MRF on ResNet-18 with the data from the store, against a fixed batch."""
    if not (data_root() / "pacs" / "sketch.zip").is_file():
        print(f"training: PACS is not below {data_root()}; skipped")
        return
    cuda = DEVICE.type == "cuda"
    steps, turns, methods = (60, 5, ("source-only", "mrf")) if cuda else (1, 3, ("source-only",))
    for kind, resident in [("raw", "yes"), ("raw", "no"), ("jpeg", "no")]:
        if not cuda and resident == "yes":
            continue  # a mapped file is as near to a CPU as can be
        store.LARGEST_RAW = 2**40 if kind == "raw" else 0
        task = find_task("pacs:sketch", cache=cache).task
        for method in methods:
            given: dict[str, Any] = {"backbone": "resnet18", "resident": resident}
            trainings = {name: new_training(task, method, BEST, **given) for name in ("fixed", "fed")}
            fed = trainings["fed"]
            trainings["fixed"].feed = Fixed(fed.feed, first_rows(fed))  # type: ignore[assignment]
            works = {name: stepper(training) for name, training in trainings.items()}
            for work in works.values():
                for _ in range(WARM_UP):
                    work()
            times: dict[str, list[float]] = {"fixed": [], "fed": []}
            for _ in range(turns):  # turn by turn, as the machine's speed drifts
                for name, work in works.items():
                    times[name].append(mean_seconds(work, steps))
            yield {
                "what": f"{method}, ResNet-18 at 224 on PACS, {kind} store, "
                + ("kept on the device" if resident == "yes" else "fetched batch by batch"),
                "images a step": 4 * fed.settings.batch_size,
                "seconds": times,
                "ratio": ratio(times, "fixed", "fed"),
            }
            fed.feed.close()
            del trainings, fed, works, work
            free()


TRAINER = """
import sys
from pathlib import Path
from graphmsda import Domain, Task, Unlabelled, fit
from graphmsda.data import store
from graphmsda.data.formats import open_listing
from graphmsda.data.listing import take
import torch
path, copies, cache, out = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
store.LARGEST_RAW = 0
found = open_listing(path, labelled=True)
rows = [row for row in range(0, len(found), 4) for _ in range(copies)]
listing = take(found, rows)
x = store.open_store(listing, 128, cache=cache).x
y = torch.tensor([sorted(set(found.labels)).index(label) for label in listing.labels])
task = Task((Domain("a", x, y),), Unlabelled("t", x), tuple(sorted(set(found.labels))))
fit(task, "source-only", out=out, epochs=1, steps_per_epoch=30, batch_size=16, backbone="small", device="cpu")
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")), len(x))
"""


def measure_memory(cache: Path) -> Iterator[dict[str, Any]]:
    """Anonymous memory of a trainer that streams a set, and one ten times as large."""
    path = data_root() / "pacs" / "photo.zip"
    if not path.is_file():
        print(f"memory: {path} is absent; skipped")
        return
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for copies in (2, 20):
            command = [sys.executable, "-c", TRAINER, str(path), str(copies), str(cache)]
            subprocess.run([*command, f"{folder}/{copies}"], check=True, env=environment, capture_output=True)
            done = subprocess.run(
                [*command, f"{folder}/{copies}-again"], check=True, env=environment, capture_output=True, text=True
            )
            found.append([int(number) for number in done.stdout.split()])
    yield {
        "what": "anonymous memory of a trainer on a ten times larger streamed set",
        "images": [count for _, count in found],
        "RssAnon in kB": [memory for memory, _ in found],
        "ratio": found[1][0] / found[0][0],
    }


SECTIONS = {
    "store": measure_store,
    "resident": measure_resident,
    "training": measure_training,
    "memory": measure_memory,
}


def in_new_cache(measure: Callable[[Path], Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Run a section with an empty cache and the store's own rule of what is kept raw, which sections change."""
    store.LARGEST_RAW = LARGEST_RAW
    with tempfile.TemporaryDirectory() as cache:
        yield from measure(Path(cache))


if __name__ == "__main__":
    run_sections("data.py", __doc__, {name: partial(in_new_cache, measure) for name, measure in SECTIONS.items()})
