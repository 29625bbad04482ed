"""The paper's four benchmarks by name: the table of them, and one adaptation task out of one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from graphmsda.data.benchmarks.benchmark import TEST_SERVES, Benchmark, choose_name, resolve_domain
from graphmsda.data.benchmarks.benchmark import data_root as data_root
from graphmsda.data.benchmarks.digits_five import DIGITS_FIVE
from graphmsda.data.benchmarks.domainnet import DOMAINNET
from graphmsda.data.benchmarks.office31 import OFFICE_31
from graphmsda.data.benchmarks.pacs import PACS
from graphmsda.data.listing import Listing
from graphmsda.errors import UserError

BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark for benchmark in (DIGITS_FIVE, OFFICE_31, PACS, DOMAINNET)
}


@dataclass(frozen=True)
class TaskListings:
    """One adaptation task out of a benchmark, before anything is decoded.

    Attributes:
        sources: The training part of each source, with labels.
        target: What is trained on of the target, without labels: nothing that could be one was looked at.
        test: The test part of the target, with labels, for evaluation alone.
        validation: The validation part of each source, with labels; no image of it is in `sources`.
        benchmark: The benchmark.
        variant: The variant of it.
        record: What to store with a result: variant, seed, files and counts. Fit for JSON.
    """

    sources: tuple[Listing, ...]
    target: Listing
    test: Listing
    validation: tuple[Listing, ...]
    benchmark: Benchmark
    variant: str
    record: Mapping[str, object]

    @property
    def source_names(self) -> tuple[str, ...]:
        """The domain of each source."""
        return tuple(listing.name for listing in self.sources)

    @property
    def target_name(self) -> str:
        """The domain of the target."""
        return self.target.name


def find_benchmark(name: str) -> Benchmark:
    """Return a benchmark by name, whatever its case and separators.

    >>> find_benchmark("Office31").name
    'office-31'
    """
    return BENCHMARKS[choose_name(name, list(BENCHMARKS), "benchmark")]


def task_names() -> list[str]:
    """Return the name of every task, such as ``digits-five:mm``, which adapts the other four domains to MNIST-M."""
    return [f"{benchmark.name}:{domain}" for benchmark in BENCHMARKS.values() for domain in benchmark.domains]


def open_task_listings(name: str, root: Path, variant: str | None = None) -> TaskListings:
    """List the task that adapts all other domains of a benchmark to one of them.

    Args:
        name: Benchmark and target, such as ``digits-five:mm`` or ``pacs:S``.
        root: Folder that holds the benchmarks' folders: see `data_root`.
        variant: One of the benchmark's variants; by default the first.
    """
    benchmark_name, _, target_name = name.partition(":")
    benchmark = find_benchmark(benchmark_name)
    if not target_name:
        first = next(iter(benchmark.domains))
        raise UserError(f"task {name!r} names no target; give one of its domains, such as {benchmark.name}:{first}")
    target_domain = resolve_domain(benchmark, target_name)
    variant = benchmark.choose_variant(variant)
    place = root / benchmark.name
    _check_present(benchmark, place)

    def part_of(domain: str, part: str, *, labelled: bool = True) -> Listing:
        return benchmark.open(place, domain, part, labelled=labelled, variant=variant)

    names = [domain for domain in benchmark.domains if domain != target_domain]
    sources = tuple(part_of(domain, "train") for domain in names)
    validation = tuple(part_of(domain, "validation") for domain in names)
    target = part_of(target_domain, "all" if benchmark.transductive else "train", labelled=False)
    test = part_of(target_domain, "test")
    counts: dict[str, dict[str, object]] = {target_domain: {"target": len(target), "test": len(test)}}
    for domain, source, held in zip(names, sources, validation, strict=True):
        stand_in = any(TEST_SERVES in note for note in held.notes)
        counts[domain] = {
            "train": len(source),
            "validation": len(held),
            "validation from": "test part" if stand_in else "training data",
        }
    record = {**benchmark.describe(place, variant), "sources": names, "target": target_domain, "counts": counts}
    return TaskListings(sources, target, test, validation, benchmark, variant, record)


def list_rows(root: Path) -> list[dict[str, object]]:
    """Return a row for each benchmark, fit for JSON: what it is and what of it lies below `root`."""
    rows: list[dict[str, object]] = []
    for benchmark in BENCHMARKS.values():
        place = root / benchmark.name
        missing = benchmark.missing(place)
        rows.append(
            {
                "name": benchmark.name,
                "title": benchmark.title,
                "domains": dict(benchmark.domains),
                "classes": benchmark.classes,
                "images": benchmark.images,
                "size": benchmark.size,
                "licence": benchmark.licence,
                "image_size": benchmark.image_size,
                "variants": dict(benchmark.variants),
                "place": str(place),
                "on_disk": not missing,
                "missing": missing,
            }
        )
    return rows


def list_page(root: Path) -> str:
    """Return the table of benchmarks as plain text, with a line for each domain that is missing."""
    head = ("benchmark", "domains", "classes", "images", "size", "on disk")
    rows = [head]
    details: list[list[str]] = []
    for benchmark in BENCHMARKS.values():
        missing = benchmark.missing(root / benchmark.name)
        present = len(benchmark.domains) - len(missing)
        rows.append(
            (
                benchmark.name,
                str(len(benchmark.domains)),
                str(benchmark.classes),
                f"{benchmark.images:,}",
                _size(benchmark.size),
                "yes" if not missing else f"{present} of {len(benchmark.domains)}" if present else "no",
            )
        )
        lines = [f"{benchmark.title}: {', '.join(_named(benchmark, domain) for domain in benchmark.domains)}"]
        lines.append(f"  licence: {benchmark.licence}")
        if len(benchmark.variants) > 1:
            lines.append(f"  variants: {', '.join(benchmark.variants)}")
        if present:
            lines += [f"  missing {domain}: {why}" for domain, why in missing.items()]
        elif missing:
            lines.append(f"  missing: {next(iter(missing.values()))}; run graphmsda data prepare {benchmark.name}")
        details.append(lines)
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    table = [
        "  ".join(
            cell.rjust(width) if 0 < column < len(head) - 1 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    body = "\n\n".join("\n".join(lines) for lines in details)
    return f"Benchmarks below {root}\n\n" + "\n".join(table) + f"\n\n{body}\n"


def _check_present(benchmark: Benchmark, place: Path) -> None:
    missing = benchmark.missing(place)
    if missing:
        benchmark.require(place, next(iter(missing)))


def _named(benchmark: Benchmark, domain: str) -> str:
    title = benchmark.domains[domain]
    return domain if title.lower().replace(" ", "_") == domain else f"{domain} ({title})"


def _size(size: int | None) -> str:
    if size is None:
        return "not stated"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
