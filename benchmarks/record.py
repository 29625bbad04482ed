"""What benchmarks share: the choice of sections, and results with what made them."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

Section = Callable[[], Iterator[dict[str, Any]]]


def run_sections(script: str, about: str | None, sections: Mapping[str, Section]) -> None:
    """Run the sections asked for on the command line, print each row and write all of them to ``--out``."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sections, default=list(sections))
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--commit", help="what was measured, where there is no git")
    given = parser.parse_args()
    rows = []
    for name in given.only:
        for row in sections[name]():
            rows.append({"section": name, **row})
            kind = "exponent" if "exponent" in row else "ratio"
            print(f"{row['what']}: {kind} {row[kind]:.2f}", flush=True)
    if given.out is None:
        return
    commit = given.commit or subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()  # fmt: skip
    hardware = f"{platform.machine()}, {os.cpu_count()} cores"
    if torch.cuda.is_available():
        hardware += f", {torch.cuda.get_device_name()}"
    command = f"python benchmarks/{script} --only {' '.join(given.only)}"
    result = {"command": command, "commit": commit, "hardware": hardware, "torch": torch.__version__, "rows": rows}
    given.out.write_text(json.dumps(result, indent=2) + "\n")
