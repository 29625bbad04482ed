"""Measure the demonstration; write results/demo.json and the README's table, or results/demo-all-targets.json.

    python benchmarks/demo_table.py [--runs DIR] [--commit HASH]
    python benchmarks/demo_table.py --all [--runs DIR] [--commit HASH]

The first is what `graphmsda demo` prints, the second has all targets and three seeds and leaves the README alone. Runs
that are finished in DIR are not run again; name the commit that trained them if it is not the present one. What is
recorded is the `graphmsda demo` command that does the same.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path

from graphmsda.data.demo import DOMAINS
from graphmsda.demo import mean_table, run_demo
from record import origin

ROOT = Path(__file__).parents[1]
METHODS = ("source-only", "adabn", "crf", "mrf")
SEEDS = (0, 1, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all targets and three seeds")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="default: runs/demo-table or runs/demo-all-targets")
    parser.add_argument("--commit", help="commit that trained the runs (default: the present one)")
    given = parser.parse_args()
    if given.all:
        name, seeds = "demo-all-targets", " ".join(map(str, SEEDS))
        command = f"graphmsda demo --targets {' '.join(DOMAINS)} --methods {' '.join(METHODS)} --seeds {seeds}"
        rows = run_demo(given.runs or Path("runs/demo-all-targets"), targets=DOMAINS, methods=METHODS, seeds=SEEDS)
    else:
        name, command = "demo", "graphmsda demo"
        rows = run_demo(given.runs or Path("runs/demo-table"))
    about = {"command": command, **origin(given.commit), "date": time.strftime("%Y-%m-%d")}
    (ROOT / "results" / f"{name}.json").write_text(json.dumps(about | {"runs": rows}, indent=1) + "\n")
    if given.all:
        return
    head, *body = mean_table(rows)
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *body]
    told = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    told += f"\n\n`{command}`, commit {about['commit']}, {about['hardware']}"
    readme = ROOT / "README.md"
    table = f"<!-- table:demo -->\n{told}\n<!-- /table:demo -->"
    readme.write_text(re.sub(r"<!-- table:demo -->.*?<!-- /table:demo -->", table, readme.read_text(), flags=re.DOTALL))


if __name__ == "__main__":
    main()
