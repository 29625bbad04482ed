"""Numbers of accuracy and time as the tables of docs/results.md write them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def against(rows: Sequence[Row], default: Sequence[Row]) -> str:
    """Return the mean difference to the default over the cells that both have, in points, with their number."""
    other = {(row["target"], row["seed"], row["epochs"]): row["accuracy"] for row in default}
    found = [
        row["accuracy"] - other[key] for row in rows if (key := (row["target"], row["seed"], row["epochs"])) in other
    ]
    return f"{100 * statistics.mean(found):+.1f} ({len(found)})" if found else "–"


def cells(rows: Sequence[Row], targets: Sequence[str]) -> list[str]:
    """Return mean and standard deviation over seeds for each target, then for the average over all targets."""
    shares = [[row["accuracy"] for row in rows if row["target"] == target] for target in targets]
    return [*map(spread, shares), average(rows, targets, "accuracy")]


def average(rows: Sequence[Row], targets: Sequence[str], name: str) -> str:
    """Return mean and standard deviation over seeds of the average over all targets; a dash where one is missing.

    The mean is over all runs of a target; the deviation over seeds that every target has.
    """
    found = [{row["seed"]: row[name] for row in rows if row["target"] == target} for target in targets]
    if not all(found) or any(value is None for some in found for value in some.values()):
        return "–"
    mean = statistics.mean(statistics.mean(some.values()) for some in found)
    common = set.intersection(*(set(some) for some in found))
    each = [statistics.mean(some[seed] for some in found) for seed in sorted(common)]
    return f"{100 * mean:.1f}" + (f" ± {100 * statistics.stdev(each):.1f}" if len(each) > 1 else "")


def spread(shares: Sequence[float]) -> str:
    """Return mean and, of several, standard deviation in percent.

    >>> spread([0.5, 0.52]), spread([0.5]), spread([])
    ('51.0 ± 1.4', '50.0', '–')
    """
    if not shares:
        return "–"
    more = f" ± {100 * statistics.stdev(shares):.1f}" if len(shares) > 1 else ""
    return f"{100 * statistics.mean(shares):.1f}{more}"


def seeds(rows: Sequence[Row], targets: Any) -> str:
    """Return how many seeds each target has, the least and the most where they differ."""
    counts = sorted(sum(row["target"] == target for row in rows) for target in targets)
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def seconds(times: Sequence[float]) -> str:
    """Return mean and, of several, standard deviation.

    >>> seconds([0.1, 0.2]), seconds([0.1])
    ('0.150 ± 0.071', '0.100')
    """
    return f"{statistics.mean(times):.3f}" + (f" ± {statistics.stdev(times):.3f}" if len(times) > 1 else "")
