"""Tables and pictures of docs/performance.md, from what benchmarks/speed.py measured.

    python benchmarks/plot_speed.py --table                      # print the tables
    python benchmarks/plot_speed.py --page docs/performance.md   # put them and the pictures into the page

Pictures need matplotlib.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from record import read
from speed_tables import Run, fill, grouped, tables

# Okabe and Ito's colours, which people with any kind of colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7")
DARK = COLOURS[:3]
AXES = {"classes": "classes K", "sources": "sources M", "batch": "samples of each domain", "features": "dimensions d"}


def pictured(runs: Sequence[Run], section: str) -> Run | None:
    """Return the entry to draw: a GPU's, where there is one."""
    some = [run for run in runs if run["section"] == section]
    return next((run for run in some if "NVIDIA" in run["hardware"]), some[0] if some else None)


def draw_growth(run: Run, file: Path) -> None:
    """Draw time, and memory where it is known, against each number, on logarithmic axes with fitted exponents."""
    from matplotlib import pyplot as plt

    series = [row for row in run["rows"] if "axis" in row]
    kinds = [("seconds", 1e3, "time, ms", "exponent"), ("bytes", 2**-20, "memory, MiB", "exponent of memory")]
    kinds = [kind for kind in kinds if all(row[kind[0]][0] for row in series)]
    figure, axes = plt.subplots(len(kinds), len(AXES), figsize=(13, 3.3 * len(kinds)), squeeze=False, sharey="row")
    for places, (key, unit, label, fitted) in zip(axes, kinds, strict=True):
        for place, (axis, title) in zip(places, AXES.items(), strict=True):
            for row in (row for row in series if row["axis"] == axis):
                at = ("crf", "mrf", "eq. 13").index(row["of"])
                place.plot(
                    row["values"], [unit * value for value in row[key]], marker="os^"[at], color=COLOURS[at],
                    linestyle=("-", "--", ":")[at], label=f"{row['of']}: exponent {row[fitted]:.2f}",
                )  # fmt: skip
            ticks = next(row["values"] for row in series if row["axis"] == axis)
            place.set(xscale="log", yscale="log", xlabel=title, xticks=ticks, xticklabels=ticks)
            place.minorticks_off()
            place.set_ylim(top=max(unit * max(row[key]) for row in series) * 6)  # room for the legend
            place.grid(color="0.9")
            place.legend(fontsize=8, frameon=False)
        places[0].set_ylabel(label)
    figure.suptitle(f"Growth of the graph's own part of a step ({run['hardware']})", fontsize=11)
    figure.tight_layout()
    figure.savefig(file, dpi=110, facecolor="white")
    plt.close(figure)


def draw_step(run: Run, file: Path) -> None:
    """Draw what the device does in an accelerated step, as one bar for each method."""
    from matplotlib import pyplot as plt

    rows = [row for row in run["rows"] if "kernels" in row]
    figure, place = plt.subplots(figsize=(9, 1.4 + 0.6 * len(rows)))
    for height, row in enumerate(reversed(rows)):
        left = 0.0
        for colour, (name, spent) in zip(COLOURS, grouped(row).items(), strict=True):
            place.barh(height, spent, left=left, color=colour, edgecolor="white", label=name if height == 0 else None)
            if spent > 0.04 * max(some["device microseconds"] for some in rows):
                ink = "white" if colour in DARK else "black"
                place.text(left + spent / 2, height, f"{spent:.0f}", ha="center", va="center", fontsize=9, color=ink)
            left += spent
    place.set(yticks=range(len(rows)), yticklabels=[row["method"] for row in reversed(rows)])
    place.set_xlabel("microseconds of device time in an accelerated step")
    place.spines[["top", "right"]].set_visible(False)
    place.legend(ncols=3, fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1))
    figure.tight_layout()
    figure.savefig(file, dpi=110, facecolor="white")
    plt.close(figure)


PICTURES: dict[str, tuple[str, Callable[[Run, Path], None]]] = {
    "step.png": ("steps", draw_step),
    "growth.png": ("growth", draw_growth),
}
SAID = {
    "step.png": "microseconds of device time by kind of kernel, for each method",
    "growth.png": "time and memory against classes, sources, samples and dimensions",
}


def main() -> None:
    """Print tables, or put tables and pictures where the page shows them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/speed.json"))
    parser.add_argument("--table", action="store_true", help="print the tables and leave files alone")
    parser.add_argument("--page", type=Path, help="page to put the tables into, between its markers")
    parser.add_argument("--images", type=Path, default=Path("docs/images"), help="folder of the pictures")
    given = parser.parse_args()
    runs = read(given.results)
    if not runs:
        sys.exit(f"{given.results}: nothing is measured there; run benchmarks/speed.py --out {given.results} first")
    if given.table:
        print("\n\n".join(f"## {name}\n\n{text}" for name, text in tables(runs).items()))
        return
    given.images.mkdir(parents=True, exist_ok=True)
    found = tables(runs)
    for name, (section, draw) in PICTURES.items():
        run = pictured(runs, section)
        if run is not None and (section != "steps" or any("kernels" in row for row in run["rows"])):
            draw(run, given.images / name)
            found[name] = f"![{SAID[name]}](images/{name})"
    if given.page is not None:
        given.page.write_text(fill(given.page.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
