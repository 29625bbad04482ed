"""Tables of docs/results.md, docs/fidelity.md and the README, from what benchmarks/accuracy.py measured.

    python benchmarks/results_page.py            # put them into the pages
    python benchmarks/results_page.py --print    # show them and leave the pages alone

Rows called "default" make the table of methods, the paper's numbers beside them; those named in
``benchmarks/equations.yaml`` the table of readings of the equations; all others the table of other settings. Rehearsals
enter none. A row that does not say which command, commit and hardware made it is refused. Times are those of
``graphmsda study timing``, kept in ``results/timing.json``.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import graphmsda
from accuracy import read_settings
from accuracy_rows import read
from graphmsda import UserError
from graphmsda.study import paper
from graphmsda.study.summary import NAMES
from results_numbers import Row, against, average, cells, seconds, seeds
from speed_tables import fill, table

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "results.md", ROOT / "docs" / "fidelity.md", ROOT / "README.md")
EQUATIONS = ROOT / "benchmarks" / "equations.yaml"
METHODS = {"source-only": "Source-only", "adabn": "AdaBN", "crf": "CRF", "mrf": "MRF", "mrf-plus": "MRF+"}
METHODS |= {name: NAMES.get(name, name.upper()) for name in graphmsda.METHODS if name not in METHODS}
MAIN = ("source-only", "adabn", "crf", "mrf", "mrf-plus")  # shown even where they have not been measured
NEEDED = ("method", "setting", "target", "seed", "epochs", "accuracy", "command", "commit", "hardware")
NEEDED_OF_TIMES = ("method", "training", "inference", "command", "commit", "hardware", "torch", "date")
# Targets in the order of the paper's table, as columns are headed.
TARGETS = {
    "digits-five": {"mm": "mm", "mt": "mt", "up": "up", "sv": "sv", "syn": "syn, re-synthesised"},
    "pacs": {"art_painting": "A", "cartoon": "C", "photo": "P", "sketch": "S"},
}
TITLES = {"digits-five": "Digits-five", "pacs": "PACS"}
FAR = 3  # points below the paper's number that are spoken of


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "results", metavar="DIR")
    parser.add_argument("--pages", type=Path, nargs="+", default=PAGES, metavar="FILE")
    parser.add_argument("--print", action="store_true", help="print the tables and leave the pages alone")
    given = parser.parse_args(arguments)
    try:
        found = tables(given.results)
        absent = [page for page in given.pages if not page.is_file()]
        if absent:
            raise UserError(f"--pages {absent[0]}: there is no such file; give pages with places for tables")
    except UserError as error:
        print(f"results_page.py: {error}", file=sys.stderr)
        return 2
    if given.print:
        print("\n\n".join(f"## {name}\n\n{text}" for name, text in found.items()))
        return 0
    for page in given.pages:
        page.write_text(fill(page.read_text(encoding="utf-8"), found), encoding="utf-8")
    return 0


def tables(folder: Path) -> dict[str, str]:
    """Return the text of each place in the pages: averages, two tables for each benchmark, readings, and the times."""
    real = {
        benchmark: [row for row in checked(folder / f"{benchmark}.json") if not row.get("playing")]
        for benchmark in TARGETS
    }
    found = {"averages": averages_text(real)}
    for benchmark, rows in real.items():
        default = [row for row in rows if row["setting"] == "default"]
        others = [row for row in rows if row["setting"] != "default"]
        if benchmark == "digits-five":
            readings, others = apart(others, list(read_settings(EQUATIONS, None)))
            found["readings"] = settings_text(benchmark, [*compared(default, readings), *readings], default)
        found[benchmark] = methods_text(benchmark, default, others)
        found[f"{benchmark}-settings"] = settings_text(benchmark, others, default)
    found["timing"] = timing_text(checked(folder / "timing.json", NEEDED_OF_TIMES, "graphmsda study timing"))
    return found


def apart(rows: Sequence[Row], names: Sequence[str]) -> tuple[list[Row], list[Row]]:
    """Return the rows of the settings with these names, in their order, what they are compared with, and all others.

    A name may be followed by that of what it is compared with: see `settings_text`.
    """
    settings = dict.fromkeys(row["setting"] for row in rows)
    chosen = [setting for name in names for setting in settings if f"{setting}, ".startswith(f"{name}, ")]
    bases = [end for setting in chosen for end in ends(setting) if end in settings]
    chosen = list(dict.fromkeys([*bases, *chosen]))
    named = sorted((row for row in rows if row["setting"] in chosen), key=lambda row: chosen.index(row["setting"]))
    return named, [row for row in rows if row["setting"] not in chosen]


def ends(name: str) -> list[str]:
    """Return what a name ends with after its commas.

    >>> ends("mrf, one batch, short")
    ['one batch, short', 'short']
    """
    parts = name.split(", ")
    return [", ".join(parts[place:]) for place in range(1, len(parts))]


def compared(default: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    """Return the rows of the default that rows of other settings are compared with, of all seeds."""
    cells = {(row["method"], row["target"], row["epochs"]) for row in rows}
    return [row for row in default if (row["method"], row["target"], row["epochs"]) in cells]


def averages_text(real: Mapping[str, Sequence[Row]]) -> str:
    """Return what the main methods reach on average over all targets of each benchmark, beside the paper's averages."""
    head = ["", *(text for name in TITLES.values() for text in (name, "the paper"))]
    body = []
    for method in MAIN:
        texts = []
        for benchmark, rows in real.items():
            printed = of_paper(benchmark, method)
            texts += [on_average(benchmark, [row for row in rows if row["method"] == method]), *(printed[-1:] or "–")]
        body.append([METHODS[method], *texts])
    return "\n".join(table(head, body))


def on_average(benchmark: str, rows: Sequence[Row]) -> str:
    """Return the average of a method's default, or of the setting with every target measured last, and its seeds.

    Of a setting that was trained for several lengths it is the shortest's.
    """
    targets = TARGETS[benchmark]
    made = dict.fromkeys((row["setting"], row["epochs"]) for row in reversed(rows))
    for setting, epochs in sorted(made, key=lambda one: (one[0] != "default", one[1])):
        some = [row for row in rows if (row["setting"], row["epochs"]) == (setting, epochs)]
        if whole(some, targets):
            named = "" if setting == "default" else f"{setting}, "
            count = seeds(some, targets)
            return f"{average(some, list(targets), 'accuracy')} ({named}{count} seed{'s' if count != '1' else ''})"
    return "–"


def checked(path: Path, needed: Sequence[str] = NEEDED, by: str = "benchmarks/accuracy.py") -> list[Row]:
    """Return the runs of a file, none if it does not exist; refuse those of which it is not known what made them."""
    runs = read(path)["runs"]
    for number, row in enumerate(runs, 1):
        for name in needed:
            if row.get(name) in (None, "", "unknown"):
                which = " ".join(str(row[key]) for key in ("method", "target", "seed") if key in row)
                raise UserError(
                    f"{path}: run {number} ({which}) has no {name}; measure it again with {by}, "
                    "which records what made it"
                )
    return list(runs)


def methods_text(benchmark: str, rows: Sequence[Row], others: Sequence[Row] = ()) -> str:
    """Return the table of methods with the paper's rows below ours, and how ours were made.

    Where a main method's default has not been measured on every target, its other settings that have stand below it.
    """
    if not rows:
        return (
            f"Not measured yet: `python benchmarks/accuracy.py --benchmark {benchmark} --out results/{benchmark}.json`."
        )
    targets = TARGETS[benchmark]
    head = ["", *(f"→ {name}" for name in targets.values()), "average", "seeds", "epochs", "oracle (test labels)"]
    body = []
    for method, name in METHODS.items():
        own = [row for row in rows if row["method"] == method]
        body += lines_of(f"**{name}**", own, targets)
        if not own and method in MAIN:
            body.append([f"**{name}**", *["–"] * (len(targets) + 4)])
        if method in MAIN and not whole(own, targets):
            more = [row for row in others if row["method"] == method]
            for setting in dict.fromkeys(row["setting"] for row in more):
                some = [row for row in more if row["setting"] == setting]
                body += lines_of(f"{name}, {setting}", some, targets) if whole(some, targets) else []
        printed = of_paper(benchmark, method)
        if printed and (own or method in MAIN):
            body.append([f"{name}, the paper{printed[0]}", *printed[1:], "5", "100", "–"])
    return "\n".join([*table(head, body), "", *misses(benchmark, rows), *details(rows)])


def lines_of(name: str, rows: Sequence[Row], targets: Mapping[str, str]) -> list[list[str]]:
    """Return a line of the table of methods for each length of training."""
    found = []
    for epochs in sorted({row["epochs"] for row in rows}):
        some = [row for row in rows if row["epochs"] == epochs]
        oracle = average(some, list(targets), "oracle_accuracy")
        found.append([name, *cells(some, list(targets)), seeds(some, targets), str(epochs), oracle])
    return found


def whole(rows: Sequence[Row], targets: Mapping[str, str]) -> bool:
    """Say whether there is a run for every target."""
    return {row["target"] for row in rows} >= targets.keys()


def misses(benchmark: str, rows: Sequence[Row]) -> list[str]:
    """Return a sentence on each entry that lies more than 3 points below the paper's."""
    found = []
    for method, name in METHODS.items():
        ours = cells([row for row in rows if row["method"] == method], list(TARGETS[benchmark]))
        heads = [*(f"→ {target}" for target in TARGETS[benchmark]), "the average"]
        pairs = zip(heads, ours, of_paper(benchmark, method)[1:], strict=False)
        gaps = [(head, float(p.split()[0]) - float(o.split()[0])) for head, o, p in pairs if o != "–"]
        large = [f"{head} by {gap:.1f}" for head, gap in gaps if gap > FAR]
        found += [f"{name}: {', '.join(large)}"] if large else []
    return [f"More than {FAR} points below the paper: {'; '.join(found)}.", ""] if found else []


def of_paper(benchmark: str, method: str) -> list[str]:
    """Return how the paper has trained a method, where not on sources apart, and its numbers, the average last."""
    for standard, told in {"multi-source": "", "source-combine": ", sources combined"}.items():
        found = [paper.accuracy(benchmark, standard, method, target) for target in (*TARGETS[benchmark], None)]
        if all(found):
            return [told, *(" ± ".join(f"{100 * value:.1f}" for value in some or ()) for some in found)]
    return []


def settings_text(benchmark: str, rows: Sequence[Row], default: Sequence[Row]) -> str:
    """Return the table of other settings, each with its difference to the default on the same targets and seeds.

    A setting whose name ends with another's after a comma ("tau 0.1, without the balance") is compared with that one.
    """
    if not rows:
        return "None measured yet."
    targets = [target for target in TARGETS[benchmark] if any(row["target"] == target for row in rows)]
    head = ["method", "setting", *(f"→ {TARGETS[benchmark][t]}" for t in targets), "seeds", "epochs", "difference"]
    body = []
    order = list(METHODS)
    names = dict.fromkeys((row["method"], row["setting"], row["epochs"]) for row in rows)
    for method, setting, epochs in sorted(names, key=lambda k: order.index(k[0]) if k[0] in order else len(order)):
        some = [row for row in rows if (row["method"], row["setting"], row["epochs"]) == (method, setting, epochs)]
        count = seeds(some, {row["target"] for row in some})
        shown = setting.removeprefix(method).removeprefix(",").strip()  # names of readings begin with their method's
        texts = [f"`{method}`", shown, *cells(some, targets)[:-1], count, str(epochs)]
        own = [row for row in [*default, *rows] if row["method"] == method]
        base = next((found for end in ends(setting) if (found := [row for row in own if row["setting"] == end])), None)
        difference = against(some, base or [row for row in own if row["setting"] == "default"])
        body.append([*texts, "" if setting == "default" else difference])
    lines = table(head, body)
    lines[1] = lines[1].replace("|---|---:", "|---|---", 1)  # a name reads from the left
    return "\n".join([*lines, "", *details(rows)])


def timing_text(rows: Sequence[Row]) -> str:
    """Return the seconds of 100 iterations of each method, the paper's beside ours, and how they were measured."""
    if not rows:
        return "Not measured yet: `graphmsda study timing --out studies/timing`."
    phases = ("training", "inference")
    head = ["", *(f"{phase}, s" for phase in phases), *(f"{phase}, the paper" for phase in phases)]
    body = []
    for method, name in METHODS.items():
        for row in rows:
            if row["method"] == method:
                ours = [seconds(row[phase]) for phase in phases]
                printed = [paper.timing(method, phase) for phase in phases]
                body.append(
                    [name, *ours, *(" ± ".join(f"{value:.2f}" for value in some or ()) or "–" for some in printed)]
                )
    lacking = ", ".join(name for method, name in METHODS.items() if not any(row["method"] == method for row in rows))
    made: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        origin = tuple(row[part] for part in ("hardware", "torch", "commit", "date", "command"))
        made.setdefault(origin, []).append(METHODS[row["method"]])
    made[max(made, key=lambda origin: len(made[origin]))] = ["All others" if len(made) > 1 else "All"]
    lines = [
        f"- {', '.join(names)}: {hardware}, PyTorch {torch}, commit {commit}, {date}: `{command}`"
        for (hardware, torch, commit, date, command), names in made.items()
    ]
    lines += [f"- Not measured yet: {lacking}."] if lacking else []
    return "\n".join([*table(head, body), "", *lines])


def details(rows: Sequence[Row]) -> list[str]:
    """Return what made each row, folded away: commit, hardware and the command that makes it again."""
    lines = ["<details><summary>How each row was made</summary>", ""]
    for method, setting in dict.fromkeys((row["method"], row["setting"]) for row in rows):
        own = [row for row in rows if (row["method"], row["setting"]) == (method, setting)]
        name = f"`{method}`" if setting == "default" else f"`{method}`, {setting}"
        if any("trained" in row for row in own):
            name += f" (read off the runs {next(row['trained'] for row in own if 'trained' in row)})"
        commits = "; ".join(dict.fromkeys(f"{row['commit']}, {row.get('remark', '')}".rstrip(", ") for row in own))
        hardware = "; ".join(dict.fromkeys(row["hardware"] for row in own))
        minutes = [row["minutes"] for row in own if row.get("minutes") is not None]
        took = f", {statistics.mean(minutes):.1f} minutes a run" if minutes else ""
        commands = " and ".join(f"`{command}`" for command in merged([row["command"] for row in own]))
        lines.append(f"- {name}: commit {commits}; {hardware}{took}: {commands}")
    return [*lines, "", "</details>"]


def merged(commands: Sequence[str]) -> list[str]:
    """Return commands of single cells as few, with all their targets and seeds.

    >>> merged(["a --targets mm --seeds 0 --out b", "a --targets mm --seeds 1 --out b"])
    ['a --targets mm --seeds 0 1 --out b']
    """
    found: dict[str, dict[str, list[str]]] = {}
    for command in commands:
        parts = dict(re.findall(r"--(targets|seeds) (\S+)", command))
        bare = re.sub(r"--(targets|seeds) \S+", r"--\1 {\1}", command)
        kept = found.setdefault(bare, {})
        for name, value in parts.items():
            kept.setdefault(name, [])
            kept[name] += [value] if value not in kept[name] else []
    texts = []
    for bare, parts in found.items():
        for name, values in parts.items():
            bare = bare.replace(f"{{{name}}}", " ".join(sorted(values) if name == "seeds" else values))
        texts.append(bare)
    return texts


if __name__ == "__main__":
    sys.exit(main())
