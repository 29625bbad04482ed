"""Counts of a server in the text format of Prometheus."""

from __future__ import annotations

import bisect
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

Labels = tuple[tuple[str, str], ...]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Histogram:
    """How often a value was at most each of some bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics:
    """What a server has done since it began."""

    def __init__(self, about: Mapping[str, str]) -> None:
        self.about = tuple(about.items())
        self.requests: Counter[Labels] = Counter()
        self.images: Counter[Labels] = Counter()
        self.predicted: Counter[Labels] = Counter()
        self.leaning: Counter[Labels] = Counter()
        self.seconds, self.batches = Histogram(SECONDS), Histogram(IMAGES)
        self.in_flight = 0

    def text(self) -> str:
        """Return all of it, a line each."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        yield from _family("info", "gauge", "What is served.", {self.about: 1})
        yield from _family("requests_total", "counter", "Requests answered.", self.requests)
        yield from _family("images_total", "counter", "Images predicted or refused.", self.images)
        yield from _family("predicted_total", "counter", "Images by predicted class.", self.predicted)
        yield from _family("nearest_source_total", "counter", "Images by nearest source.", self.leaning)
        yield from _histogram("request_seconds", "Time from a prediction's request to its answer.", self.seconds)
        yield from _histogram("batch_images", "Images that went through the model together.", self.batches)
        yield from _family("requests_in_flight", "gauge", "Predictions being made now.", {(): self.in_flight})
        memory = resident_bytes()
        if memory is not None:
            yield from _family("resident_bytes", "gauge", "Memory of the process.", {(): memory})


def resident_bytes(process: int | None = None) -> int | None:
    """Return the memory that a process, by default this one, holds; None where the system does not tell."""
    try:
        pages = Path(f"/proc/{process or 'self'}/statm").read_text().split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _family(name: str, kind: str, text: str, values: Mapping[Labels, float]) -> Iterator[str]:
    yield f"# HELP graphmsda_{name} {text}"
    yield f"# TYPE graphmsda_{name} {kind}"
    for labels, value in list(values.items()):  # another thread may count meanwhile
        yield f"graphmsda_{name}{_braces(labels)} {value:.15g}"


def _histogram(name: str, text: str, histogram: Histogram) -> Iterator[str]:
    yield f"# HELP graphmsda_{name} {text}"
    yield f"# TYPE graphmsda_{name} histogram"
    total = 0
    for bound, count in zip([*map("{:g}".format, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        total += count
        yield f'graphmsda_{name}_bucket{{le="{bound}"}} {total}'
    yield f"graphmsda_{name}_sum {histogram.sum:.6f}"
    yield f"graphmsda_{name}_count {total}"


def _braces(labels: Labels) -> str:
    r"""Return labels as Prometheus writes them.

    >>> print(_braces((("class", 'a "b"'),)))
    {class="a \"b\""}
    """
    if not labels:
        return ""
    escaped = ((k, v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for k, v in labels)
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}"
