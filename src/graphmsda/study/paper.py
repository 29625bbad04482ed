"""The paper's own numbers (``paper.json``), as fractions and seconds, for the tables to put beside ours."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

Figure = tuple[float, ...]
"""A mean, or a mean and a standard deviation."""


@cache
def numbers() -> dict[str, Any]:
    """Return Tables 2 to 8 as they are printed: percent, seconds."""
    content: dict[str, Any] = json.loads((files("graphmsda.study") / "paper.json").read_text(encoding="utf-8"))
    return content


def accuracy(benchmark: str | None, standard: str, method: str, target: str | None) -> Figure | None:
    """Return an entry of Tables 2 to 5, or without a target the average as it is printed; None where there is none.

    >>> accuracy("digits-five", "multi-source", "mrf", "mm")
    (0.907, 0.007)
    """
    for row in numbers()["accuracy"].get(benchmark, {}).get("rows", ()):
        if (row["standard"], row["method"]) == (standard, method):
            return _fractions([row["average"]] if target is None else row["targets"].get(target))
    return None


def ablation(
    benchmark: str | None, method: str, on: frozenset[str], of: frozenset[str], target: str | None
) -> Figure | None:
    """Return an entry of Tables 6 and 7: the terms that are `on`, `of` those that were varied."""
    table = numbers()["ablation"].get(method)
    if table is None or table["benchmark"] != benchmark or frozenset(table["terms"]) != of:
        return None
    for row in table["rows"]:
        if frozenset(row["on"]) == on:
            return _fractions([row["average"]] if target is None else row["targets"].get(target))
    return None


def timing(method: str, phase: str) -> Figure | None:
    """Return an entry of Table 8, in seconds."""
    rows = [row for row in numbers()["timing"]["rows"] if row["method"] == method]
    return tuple(rows[0][phase]) if rows else None


def reference(kind: str, benchmark: str | None, method: str = "") -> str | None:
    """Say where the numbers for a kind of study come from; None where there are none."""
    found: Any = {
        "table": numbers()["accuracy"].get(benchmark),
        "ablation": numbers()["ablation"].get(method) if benchmark == "digits-five" else None,
        "timing": numbers()["timing"],
    }.get(kind)
    return None if found is None else f"Table {found['table']} of {numbers()['source']}"


def _fractions(percent: list[float] | None) -> Figure | None:
    return None if percent is None else tuple(round(value / 100, 6) for value in percent)
