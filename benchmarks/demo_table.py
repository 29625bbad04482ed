"""Measure the demonstration over all targets; write results/demo.json and the README's table.

    python benchmarks/demo_table.py [--seeds 0 1 2] [--runs DIR] [--commit HASH]

Runs that are finished in DIR are not run again; name the commit that trained them if it is not the present one. What
is recorded is the `graphmsda demo` command that does the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import time
from pathlib import Path

from graphmsda.data.demo import DOMAINS
from graphmsda.demo import mean_table, run_demo
from graphmsda.engine.folder import read_metrics

ROOT = Path(__file__).parents[1]
METHODS = ("source-only", "adabn", "crf", "mrf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/demo-table"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N")
    parser.add_argument("--commit", help="commit that trained the runs (default: the present one)")
    given = parser.parse_args()
    rows = run_demo(given.runs, targets=DOMAINS, methods=METHODS, seeds=given.seeds)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    for row in rows:
        name = "ceiling" if row["method"] == "target labels" else row["method"]
        history = read_metrics(given.runs / row["target"] / f"{name}-seed{row['seed']}" / "metrics.jsonl")
        row["minutes"] = round(history[-1]["seconds"] / 60, 2)
    about = {
        "command": f"graphmsda demo --targets {' '.join(DOMAINS)} --methods {' '.join(METHODS)} "
        f"--seeds {' '.join(map(str, given.seeds))}",
        "commit": given.commit or commit.stdout.strip(),
        "hardware": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "date": time.strftime("%Y-%m-%d"),
    }
    (ROOT / "results" / "demo.json").write_text(json.dumps(about | {"runs": rows}, indent=1) + "\n")
    head, *body = mean_table(rows)
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *body]
    told = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    told += f"\n\n`{about['command']}`, commit {about['commit']}, {about['hardware']}"
    readme = ROOT / "README.md"
    table = f"<!-- table:demo -->\n{told}\n<!-- /table:demo -->"
    readme.write_text(re.sub(r"<!-- table:demo -->.*?<!-- /table:demo -->", table, readme.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
