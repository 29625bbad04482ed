"""The tables of docs/performance.md, from what benchmarks/speed.py measured."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from kernels import GROUPS, REST, group

Run = dict[str, Any]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a markdown table, the first column to the left and the others to the right."""
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def number(value: float | None, digits: int = 3) -> str:
    """Return a number of a few digits, for people.

    >>> number(0.012345), number(12345.6), number(None)
    ('0.0123', '12,300', '–')
    """
    if value is None:
        return "–"
    value = float(f"{value:.{digits}g}")
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def size(value: float | None) -> str:
    """Return bytes in the unit that suits them."""
    if value is None:
        return "–"
    return f"{number(value / 2**30)} GiB" if value >= 2**30 else f"{number(value / 2**20)} MiB"


def percent(value: float | None, *, sign: bool = False) -> str:
    """Return a fraction in percent."""
    return "–" if value is None else f"{100 * value:{'+' if sign else ''}.2f}"


def steps_table(run: Run) -> list[str]:
    """Milliseconds of a step in each form, and what the fastest gains."""
    names = list(run["rows"][0]["ms"])
    rows = [
        [
            f"`{row['method']}`, {row['batch']} of each domain",
            *(number(row["ms"][name]) for name in names),
            f"{number(row['ratio'])} ×",
            f"{number(row['textbook, one batch / engine'])} ×",
            f"{row['price of the graph']:.3f}" if "price of the graph" in row else "–",
        ]
        for row in run["rows"]
    ]
    head = ["ms a step", *names, "textbook / fastest", "the same without its loader", "fastest / plain"]
    return table(head, rows)


def kernels_table(run: Run, most: int = 6) -> list[str]:
    """What an accelerated step's device time goes to, and its longest kernels."""
    rows = [row for row in run["rows"] if "kernels" in row]
    if not rows:
        return []
    head = ["microseconds of a step", *(f"`{row['method']}`" for row in rows)]
    groups = [grouped(row) for row in rows]
    lines = table(
        head,
        [
            *([name, *(number(some[name]) for some in groups)] for name in GROUPS),
            ["all", *(number(row["device microseconds"]) for row in rows)],
            ["kernels", *(number(row["kernels a step"]) for row in rows)],
        ],
    )
    for row in rows:
        longest = [[f"`{name[:80]}`", number(spent), number(calls)] for name, spent, calls in row["kernels"][:most]]
        lines += ["", *table([f"longest in `{row['method']}`", "microseconds", "calls"], longest)]
    return lines


def grouped(row: Run) -> dict[str, float]:
    """Return microseconds by what they go to; what is not listed by name counts as in the row."""
    found = dict.fromkeys(GROUPS, 0.0)
    for name, spent, _ in row["kernels"]:
        found[group(name)] += spent
    found[REST] += max(0.0, row["device microseconds"] - sum(found.values()))
    return found


def price_table(run: Run) -> list[str]:
    """The graph's methods against plain cross-entropy."""
    rows = [
        [
            f"`{r['method']}`, {r['batch']} of each domain",
            number(r["ms"]["plain"]),
            number(r["ms"][r["method"]]),
            f"{r['ratio']:.3f}",
        ]
        for r in run["rows"]
    ]
    return table(["", "plain, ms", "with the graph, ms", "ratio"], rows)


def run_table(run: Run) -> list[str]:
    """Seconds of a whole run, phase by phase."""
    lines = []
    for row in run["rows"]:
        names = [name for name in row["warm"] if name != "accuracy"]
        cells = [[name, number(row["cold"].get(name)), number(row["warm"].get(name))] for name in names]
        cells.append(["accuracy, %", percent(row["cold"]["accuracy"]), percent(row["warm"]["accuracy"])])
        lines += table([f"`{row['method']}`, {row['steps']:,} steps", "cold caches", "warm caches"], cells)
    return lines


def resnet_table(run: Run) -> list[str]:
    """Images a second beside those of the bare loop."""
    fair = "against the bare loop captured"
    rows = [
        [
            f"`{r['method']}`, 4 x {r['batch']}",
            number(r["images a second"][r["method"]]),
            number(r["images a second"]["bare"]),
            f"{r['ratio']:.2f}",
            number(r["images a second"].get("bare, captured")),
            number(r.get(fair)),
        ]
        for r in run["rows"]
    ]
    return table(["images a second", "engine", "bare loop", "ratio", "bare loop, captured", "ratio"], rows)


def inference_table(run: Run) -> list[str]:
    """Images a second of predictions beside those of the bare network."""
    rows = [
        [
            f"`{r['method']}` at {r['side']} x {r['side']}",
            number(r["images a second"]["predict"]),
            number(r["images a second"][r["fastest"]]),
            f"{r['ratio']:.2f}",
            number(r["images a second"].get("bare, images on the device")),
            number(r.get("against the forward pass of images on the device")),
        ]
        for r in run["rows"]
    ]
    return table(["images a second", "`Run.predict`", "bare", "ratio", "bare, images on the device", "ratio"], rows)


def growth_table(run: Run) -> list[str]:
    """Exponents of time and memory, and single sizes."""
    series = [row for row in run["rows"] if "axis" in row]
    rows = [
        [
            f"{r['of']}: {r['axis']} {r['values'][0]} to {r['values'][-1]}",
            f"{number(1000 * r['seconds'][0])} to {number(1000 * r['seconds'][-1])}",
            number(r["exponent"], 2),
            f"{size(r['bytes'][0])} to {size(r['bytes'][-1])}",
            number(r["exponent of memory"], 2),
        ]
        for r in series
    ]
    single = [
        [row["what"], number(1000 * row["seconds"]), "", size(row["bytes"]), ""]
        for row in run["rows"]
        if "axis" not in row
    ]
    return table(["", "ms", "exponent", "memory", "exponent"], rows + single)


def accuracy_table(run: Run) -> list[str]:
    """What speed does to accuracy."""
    rows = [
        [
            f"`{r['method']}` on {r['task']}, {len(r['runs'])} runs",
            percent(r["means"]["accelerated"]),
            percent(r["means"]["eager float32"]),
            percent(r["difference"], sign=True),
            percent(r["standard error"]),
        ]
        for r in run["rows"]
    ]
    return table(["accuracy, %", "by default", "eager float32", "difference", "its standard error"], rows)


def cpu_table(run: Run) -> list[str]:
    """Milliseconds of a step on a CPU in each form."""
    names = list(run["rows"][0]["ms"])
    rows = [
        [f"`{r['method']}`, {r['backbone']}, {r['images']} images", *(number(r["ms"][name]) for name in names),
         f"{number(r['ratio'])} ×", ", ".join(f"{r['pages'][name]:,}" for name in names)]
        for r in run["rows"]
    ]  # fmt: skip
    return table(["ms a step", *names, "first / last", "pages cleared in each"], rows)


def together_table(run: Run) -> list[str]:
    """Steps a second of several runs at once."""
    rows = [[str(r["runs"]), number(sorted(r["steps a second"])[len(r["steps a second"]) // 2]), f"{r['ratio']:.2f}"]
            for r in run["rows"]]  # fmt: skip
    return table(["runs at once", "steps a second, all together", "against one"], rows)


TABLES: dict[str, tuple[str, Callable[[Run], list[str]]]] = {
    "steps": ("steps", steps_table),
    "kernels": ("steps", kernels_table),
    "price": ("price", price_table),
    "run": ("run", run_table),
    "resnet": ("resnet", resnet_table),
    "inference": ("inference", inference_table),
    "cpu": ("cpu", cpu_table),
    "growth": ("growth", growth_table),
    "accuracy": ("accuracy", accuracy_table),
    "together": ("together", together_table),
}


def tables(runs: Sequence[Run]) -> dict[str, str]:
    """Return the text of each table: one for each hardware, with what made it."""
    found = {}
    for name, (section, show) in TABLES.items():
        parts = []
        for run in sorted(
            (run for run in runs if run["section"] == section), key=lambda run: "NVIDIA" not in run["hardware"]
        ):
            lines = show(run)
            if lines:
                made = f"{run['hardware']}, PyTorch {run['torch']}, commit {run['commit']}: `{run['command']}`"
                parts.append("\n".join([*lines, "", made]))
        found[name] = "\n\n".join(parts) or f"Not measured yet: `python benchmarks/speed.py --only {section}`."
    return found


def fill(page: str, found: dict[str, str]) -> str:
    """Return the page with each table between its markers."""
    for name, text in found.items():
        marked = re.compile(f"(<!-- table:{name} -->\n).*?(<!-- /table:{name} -->)", re.DOTALL)
        page = marked.sub(lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page)
    return page
