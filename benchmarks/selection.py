"""How well do label-free scores rank finished runs, and does the estimate's interval hold the truth?

    python benchmarks/selection.py STUDY_OR_RUNS ... --out results/selection.json --data-root DIR --device cuda
    python benchmarks/selection.py results/digits-five.json     # what benchmarks/accuracy.py has read of its runs
    python benchmarks/selection.py --out results/selection.json --page docs/selection.md    # the tables again

One pass over each run's data; every run's row is on disk as soon as it is measured, so that the same command goes on
where it was stopped, and runs of another machine or benchmark are added to those measured before. True accuracies are
of the target's test part: no score has seen it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import record
import selection_prior
import selection_tables
from graphmsda import Run, UserError
from graphmsda.engine import folder
from graphmsda.figures.runs import run_folders
from graphmsda.selection import SCORES, Evidence, estimate, gather
from graphmsda.selection.calibration import calibrate
from graphmsda.selection.combination import REHEARSED, combine, interval, off_by, true_logit
from graphmsda.selection.data import RunData, find_data
from graphmsda.selection.gather import read_test
from graphmsda.selection.residuals import rehearsal_residuals

Row = dict[str, Any]
ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="*", type=Path, metavar="DIR", help="runs, or folders of them such as studies")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "selection.json", metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE", help="page whose tables are written, docs/selection.md")
    parser.add_argument("--data-root", metavar="DIR", help="where benchmarks lie (default: $GRAPHMSDA_DATA)")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--commit", help="what was measured, where there is no git")
    given = parser.parse_args(arguments)
    try:
        if given.places:
            partial = given.out.with_suffix(".part.jsonl")
            known = read(given.out)
            rows = {row["run"]: row for row in [*known.get("rows", []), *folder.read_metrics(partial)]}
            # A table is read whole each time: its rows may have been replaced or renamed since.
            tables = tuple(f"{place.stem}/" for place in given.places if place.is_file())
            rows = {run: row for run, row in rows.items() if not (run.startswith(tables) and ", seed " in run)}
            made = record.origin(given.commit)
            for row in measure(given.places, set(rows), device=given.device, data_root=given.data_root):
                rows[row["run"]] = record.rounded({**made, **row})
                with partial.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[row["run"]]) + "\n")
            command = f"python benchmarks/selection.py {' '.join(place.name for place in given.places)}"
            commands = dict.fromkeys([*known.get("commands", []), command])
            write(given.out, {"commands": list(commands), "date": time.strftime("%Y-%m-%d")}, list(rows.values()))
            partial.unlink(missing_ok=True)
        result = json.loads(given.out.read_text(encoding="utf-8"))
    except UserError as error:
        print(f"selection.py: {error}", file=sys.stderr)
        return 2
    text = selection_tables.page(result)
    print(text)
    if given.page is not None:
        selection_tables.fill(given.page, text)
    return 0


def read(file: Path) -> dict[str, Any]:
    """Return what was measured before, nothing where there is no such file."""
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def write(file: Path, about: Row, rows: Sequence[Row]) -> None:
    """Write the figures of all runs together, and each run's row on a line of its own."""
    rows = [with_cap(row) for row in rows]
    told = [record.rounded(row) for row in with_other_targets(selection_prior.retold(rows))]
    head = record.dumps({**about, "benchmarks": record.rounded(selection_tables.summarise(told))})
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in told)
    file.write_text(f'{head[:-2]},\n "rows": [\n  {lines}\n ]\n}}\n', encoding="utf-8")


def measure(places: Sequence[Path], done: set[str], *, device: str, data_root: str | None) -> Iterator[Row]:
    """Yield a row for each finished run that is not done; runs that differ in their seed alone are read together."""
    twins: dict[str, list[Path]] = {}
    names: dict[Path, str] = {}
    for place in places:
        if place.is_file():
            yield from (row for row in of_table(place) if row["run"] not in done)
            continue
        for path in run_folders([place]):
            if (path / folder.MODEL_ABOUT).is_file() and path not in names:
                names[path] = (Path(place.name) / path.relative_to(place)).as_posix()
                twins.setdefault(_kind(path), []).append(path)
    for place_number, paths in enumerate(twins.values()):
        if all(names[path] in done for path in paths):
            continue
        begin = time.monotonic()
        runs = [Run.load(path, device=device) for path in paths]
        data = find_data(runs[0], data_root=data_root)
        found = [gather(run, data) for run in runs]
        for number, (path, run, evidence) in enumerate(zip(paths, runs, found, strict=True)):
            other = found[(number + 1) % len(found)] if len(found) > 1 else None
            if names[path] not in done:
                yield {"run": names[path], **read_run(run, data, evidence, other)}
        seconds = (time.monotonic() - begin) / len(paths)
        print(f"{place_number + 1}/{len(twins)} {names[paths[0]]}: {len(paths)} runs, {seconds:.1f} s each", flush=True)


def of_table(file: Path) -> Iterator[Row]:
    """Yield what benchmarks/accuracy.py has read of each run of its table, with what made the run."""
    for row in json.loads(file.read_text(encoding="utf-8"))["runs"]:
        if "selection" in row:
            words = [row["method"], row["setting"], row["target"], f"{row['epochs']} epochs", f"seed {row['seed']}"]
            made = {name: row[name] for name in ("commit", "hardware", "torch") if name in row}
            yield {"run": f"{file.stem}/{', '.join(words)}", **row["selection"], **made}


def _kind(path: Path) -> str:
    """Return what a run has in common with those that differ in their seed alone."""
    config = folder.read_config(path)
    settings = {name: value for name, value in config["settings"].items() if name != "seed"}
    data = config["data"]
    return json.dumps([data.get("task"), data.get("rehearsal"), data["domains"], settings], sort_keys=True, default=str)


def read_run(run: Run, data: RunData, evidence: Evidence, other: Evidence | None = None) -> Row:
    """Return the truth on a run's target, and all that is said of it without labels.

    Args:
        run: The run.
        data: Its data, with the target's test part.
        evidence: What `gather` has found of it.
        other: The same of a run with another seed.
    """
    test = read_test(run, data)
    if test is None:
        raise UserError(f"{run.path}: its target has no labelled test part to compare with; give runs of benchmarks")
    about, settings = run.about["data"], run.about["settings"]
    alone = estimate(run, evidence=evidence)
    both = None if other is None else estimate(run, evidence=evidence, second=other)
    calibration = calibrate(evidence, test)
    origin = about.get("rehearsal", about)
    return {
        "benchmark": str(origin.get("task", "own")).partition(":")[0],
        "target": run.domains[-1],
        "sources": list(run.domains[:-1]),
        "method": run.about["method"],
        "setting": {name: settings[name] for name in ("parameters", "epochs", "seed")},
        "samples": len(evidence.target),
        "accuracy": test.accuracy,
        "true_logit": true_logit(test),
        "scores": {name: score(evidence) for name, score in SCORES.items()},
        "estimates": {"one run": alone.as_dict()} | ({} if both is None else {"two seeds": both.as_dict()}),
        "calibration": {
            "temperature": calibration.temperature,
            "sources": calibration.sources,
            "target": calibration.target,
        },
    }


def with_cap(row: Row) -> Row:
    """Return a row with the score ``capped-mixval``, which older ones lack; they have what it is made of.

    >>> with_cap({"scores": {"mixval": 0.8, "transport": 0.3}})["scores"]
    {'mixval': 0.8, 'transport': 0.3, 'capped-mixval': 0.3}
    """
    scores = row["scores"]
    one, other = scores["mixval"], scores["transport"]
    capped = one if one is None or one != one else min(one, other)
    return {**row, "scores": {**scores, "capped-mixval": scores.get("capped-mixval", capped)}}


def with_other_targets(rows: Sequence[Row]) -> list[Row]:
    """Add the estimate calibrated on the same method's runs with other targets of the benchmark.

    It stands in for rehearsals, which a study has not made: a run with another target tells what the estimate was off
    by there. Unlike a rehearsal it was trained with labels of the target in question as one of its sources.
    """
    told = []
    for row in rows:
        peers = [
            (peer["target"], peer["estimates"]["one run"]["parts"], peer["true_logit"])
            for peer in rows
            if all(peer[name] == row[name] for name in ("benchmark", "method")) and peer["target"] != row["target"]
        ]
        estimates: Mapping[str, Any] = row["estimates"]
        if len({player for player, _, _ in peers}) > 1:
            learned = rehearsal_residuals(peers)
            parts = estimates["one run"]["parts"]
            centre = combine(parts, learned.weights)
            accuracy, low, high = interval(centre, off_by(learned.values, learned.values), REHEARSED, row["samples"])
            estimates = {**estimates, "other targets": {"accuracy": accuracy, "low": low, "high": high}}
        told.append({**row, "estimates": dict(estimates)})
    return told


if __name__ == "__main__":
    sys.exit(main())
