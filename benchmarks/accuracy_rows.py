"""Rows of accuracy in a file: reading, adding, merging and showing them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphmsda import UserError
from graphmsda.files import write_text

Results = dict[str, list[dict[str, Any]]]


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what makes a row of results the same cell as another."""
    return row["method"], row["setting"], row["target"], row.get("playing"), row["seed"], row["epochs"]


def read(path: Path) -> Results:
    """Return what a file of results holds, nothing if it does not exist."""
    if not path.is_file():
        return {"runs": [], "failed": []}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {"runs": list(content["runs"]), "failed": list(content.get("failed", []))}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a file of results; give another --out") from error


def add(results: Results, rows: Sequence[dict[str, Any]]) -> None:
    """Put rows in place of those of the same cells; a run that was made ends its failure."""
    keys = {key_of(row) for row in rows}
    failed = [row for row in rows if "error" in row]
    runs = [row for row in rows if "error" not in row]
    if runs:
        done = {key_of(row) for row in runs}
        results["runs"] = [row for row in results["runs"] if key_of(row) not in done] + runs
    results["failed"] = [row for row in results["failed"] if key_of(row) not in keys] + failed


def write(path: Path, results: Results) -> None:
    """Write a row a line, the file whole or not at all."""
    parts = [
        f'"{kind}": [\n' + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + ("\n]" if rows else "]")
        for kind, rows in results.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")


def merge(path: Path, others: Sequence[Path]) -> None:
    """Put rows measured elsewhere into a file, each in place of that of the same cell."""
    results = read(path)
    for other in others:
        if not other.is_file():
            raise UserError(f"--merge {other}: there is no such file")
        found = read(other)
        done = {key_of(row) for row in [*results["runs"], *found["runs"]]}
        add(results, found["runs"])
        add(results, [row for row in found["failed"] if key_of(row) not in done])
    write(path, results)
    print(f"{path}: {len(results['runs'])} runs, {len(results['failed'])} failed")


def line(row: Mapping[str, Any]) -> str:
    """Return one finished cell for people."""
    name = row["method"] if row["setting"] in ("default", row["method"]) else f"{row['method']} [{row['setting']}]"
    played = f" played by {row['playing']}" if "playing" in row else ""
    told = f"{name} -> {row['target']}{played}, seed {row['seed']}: "
    if "error" in row:
        return told + f"failed: {row['error'][:150]}"
    return told + f"{100 * row['accuracy']:.2f} % in {60 * row['minutes']:.0f} s"


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return methods and settings by targets, in percent, averaged over players and seeds.

    With one target that sources play, the columns are the players.
    """
    if not rows:
        return ["no cell is finished"]
    column = "playing" if len({row["target"] for row in rows}) == 1 and "playing" in rows[0] else "target"
    columns = list(dict.fromkeys(row[column] for row in rows))
    body = [["method", "setting", *columns, "mean", "cells"]]
    for method, setting in dict.fromkeys((row["method"], row["setting"]) for row in rows):
        own = [row for row in rows if (row["method"], row["setting"]) == (method, setting)]
        shares = [[100 * row["accuracy"] for row in own if row[column] == name] for name in columns]
        means = [statistics.mean(some) for some in shares if some]
        part = "" if len(means) == len(columns) else f" of {len(means)}"
        texts = [f"{statistics.mean(some):.2f}" if some else "-" for some in shares]
        body.append([method, setting, *texts, f"{statistics.mean(means):.2f}{part}", str(len(own))])
    widths = [max(map(len, texts)) for texts in zip(*body, strict=True)]
    return [
        "  ".join(text.ljust(width) if place < 2 else text.rjust(width) for place, (text, width) in enumerate(
            zip(texts, widths, strict=True)
        )).rstrip()
        for texts in body
    ]  # fmt: skip
