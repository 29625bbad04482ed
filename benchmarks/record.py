"""What benchmarks share: the choice of sections, and results with what made them.

    python benchmarks/record.py results/speed.json FROM.json ...

puts what was measured elsewhere, on another machine say, into a file of results.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from graphmsda.engine.settings import usual_precision

Row = dict[str, Any]
Section = Callable[[], Iterator[Row]]


def parser_of(about: str | None, sections: Mapping[str, Any]) -> argparse.ArgumentParser:
    """Return a parser with what every benchmark can be given."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sections, default=list(sections))
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--commit", help="what was measured, where there is no git")
    return parser


def run_sections(script: str, about: str | None, sections: Mapping[str, Section]) -> None:
    """Run the sections asked for on the command line, print each row and write all of them to ``--out``."""
    given = parser_of(about, sections).parse_args()
    rows = []
    for name in given.only:
        for row in sections[name]():
            rows.append({"section": name, **row})
            print(figure(row), flush=True)
    if given.out is not None:
        command = f"python benchmarks/{script} --only {' '.join(given.only)}"
        result = {"command": command, **origin(given.commit), "rows": rows}
        given.out.write_text(json.dumps(result, indent=2) + "\n")


def run_and_merge(command: str, given: argparse.Namespace, sections: Mapping[str, Section]) -> int:
    """Run sections and put each row into ``--out`` as soon as there is one; return how many sections failed.

    A section that fails leaves the others alone, and the rows it had are kept: time on a GPU is dear.
    """
    failed = 0
    for name in given.only:
        count = 0
        try:
            for row in sections[name]():
                count += 1
                print(figure(row), flush=True)
                if given.out is not None:
                    made = {"section": name, "command": command, **origin(given.commit)}
                    merge(given.out, [{**made, "rows": [rounded(row)]}])
        except Exception:
            traceback.print_exc()
            print(f"{name}: failed after {count} rows", flush=True)
            failed += 1
    return failed


def merge(path: Path, found: Sequence[Row]) -> None:
    """Put entries into a file of results, each in place of the one of the same section and hardware.

    Of the same commit only rows that were measured again are replaced: a section may be measured method by method.
    """
    entries = {(run["section"], run["hardware"]): run for run in read(path)}
    for run in found:
        place = run["section"], run["hardware"]
        old = entries.get(place)
        if old is not None and all(old.get(name) == run.get(name) for name in ("commit", "torch")):
            again = {row["what"] for row in run["rows"]}
            commands = dict.fromkeys([*old["command"].split("; "), *run["command"].split("; ")])
            rows = [row for row in old["rows"] if row["what"] not in again] + run["rows"]
            run = {**run, "command": "; ".join(commands), "rows": rows}
        entries[place] = run
    path.write_text(dumps({"runs": list(entries.values())}) + "\n")


def read(path: Path) -> list[Row]:
    """Return the entries of a file of results, none if it does not exist."""
    runs: list[Row] = json.loads(path.read_text())["runs"] if path.is_file() else []
    return runs


def origin(commit: str | None = None) -> dict[str, str]:
    """Return what made a result: commit, hardware and PyTorch."""
    if commit is None:
        git = ["git", "rev-parse", "--short", "HEAD"]
        with suppress(OSError, subprocess.CalledProcessError):
            commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    hardware = f"{platform.machine()}, {os.cpu_count()} cores"
    if torch.cuda.is_available():
        hardware += f", {torch.cuda.get_device_name()}"
    elif usual_precision("cpu", images=True) == "bf16":
        hardware += " with AVX512-BF16"
    return {"commit": commit or "unknown", "hardware": hardware, "torch": torch.__version__}


def figure(row: Mapping[str, Any]) -> str:
    """Return a row's one figure, for people."""
    kind = next((name for name in ("exponent", "ratio") if name in row), None)
    if kind is not None:
        return f"{row['what']}: {kind} {row[kind]:.2f}"
    return f"{row['what']}: {1000 * row['seconds']:.2f} ms"


def rounded(value: Any) -> Any:
    """Return the same with numbers of four digits: more are noise.

    >>> rounded({"a": [0.123456, 12]})
    {'a': [0.1235, 12]}
    """
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    return [rounded(part) for part in value] if isinstance(value, list | tuple) else value


def dumps(value: Any, indent: int = 0) -> str:
    """Return JSON with what is short on one line.

    >>> print(dumps({"a": [1, 2], "b": {}}))
    {"a": [1, 2], "b": {}}
    """
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= 118 or not isinstance(value, dict | list):
        return line
    space = "\n" + " " * (indent + 1)
    parts = value.items() if isinstance(value, dict) else ((None, part) for part in value)
    lines = [("" if name is None else f"{json.dumps(name)}: ") + dumps(part, indent + 1) for name, part in parts]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}{space}{f',{space}'.join(lines)}\n{' ' * indent}{closing}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("into", type=Path)
    parser.add_argument("found", type=Path, nargs="+")
    places = parser.parse_args()
    for file in places.found:
        merge(places.into, read(file))
