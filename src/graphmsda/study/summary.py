"""From the runs of a study to tables like the paper's, before they are written in any format."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from graphmsda.methods import METHODS
from graphmsda.study import paper
from graphmsda.study.cells import Cell, Row, Study
from graphmsda.study.entries import ON, Entry, Line, Table, mark_best
from graphmsda.study.paper import Figure
from graphmsda.study.protocol import STANDARDS, TITLES, best_of, best_source

NAMES = {"m3sda": "M3SDA", "m3sda-beta": "M3SDA-beta", "crf": "CRF-MSDA", "mrf": "MRF-MSDA", "mrf-plus": "MRF-MSDA+"}
NAMES |= {"source-only": "Source-only", "adabn": "AdaBN", "coral": "CORAL", "meta-mcd": "Meta-MCD"}
NAMES |= {name: name.upper() for name in ("dan", "dann", "adda", "jan", "rtn", "mcd", "mdan", "dctn", "mdda", "cmss")}
TIMED = (100, "3conv-2fc", 128)  # iterations, network and images of each domain of the paper's Table 8


def tables(study: Study, by: str | None = None) -> list[Table]:
    """Return the tables of a study, whatever its kind, as far as it has got.

    Args:
        study: The study.
        by: One of `graphmsda.selection.SCORES`: it chooses the source of single best, and of an ablation or a
            sensitivity study a last row has what it chooses for each target.
    """
    make: Callable[[], list[Table]] = {
        "table": partial(_accuracy_tables, study, by or "information"),
        "ablation": partial(_ablation_tables, study, by),
        "sensitivity": partial(_sensitivity_tables, study, by),
        "timing": partial(_timing_tables, study),
        "search": partial(_search_tables, study),
    }[study.about["kind"]]
    open_cells = len(study.cells) - len(study.rows)
    last = [f"{open_cells} of {len(study.cells)} cells are not finished"] if open_cells else []
    last += [f"{len(study.errors)} failed: the same command tries them again"] if study.errors else []
    made = make()
    return [replace(mark_best(table), notes=(*table.notes, *last)) for table in made]


def _accuracy_tables(study: Study, by: str) -> list[Table]:
    benchmark, targets = study.about.get("benchmark"), _targets(study)
    lines = []
    for standard in STANDARDS:
        for method in methods_in_order(cell.method for cell in study.cells if cell.standard == standard):
            own = [cell for cell in study.cells if (cell.standard, cell.method) == (standard, method)]
            chosen = {t: chosen_cells(study, own, t, by=by) for t in targets}
            entries = {
                f"-> {target}": replace(
                    _entry(study, chosen[target], [c for c in own if c.target == target]),
                    paper=paper.accuracy(benchmark, standard, method, target),
                )
                for target in targets
            }
            average = _average(study, chosen, own, targets)
            entries["Avg"] = replace(average, paper=paper.accuracy(benchmark, standard, method, None))
            entries["oracle"] = _oracle(study, own, targets)
            lines.append(Line((TITLES[standard], NAMES.get(method, method)), entries))
    notes = [f"Accuracy (%) on the target's test part after the last step{_seeds(study)}."]
    notes += _beside(paper.reference("table", benchmark))
    single = any(cell.standard == "single-best" for cell in study.cells)
    if single:
        notes.append(
            f"Single best: the source is chosen without target labels{_by(by)}; under oracle, and in the paper, by the "
            "accuracy on the target."
        )
    columns = (*(f"-> {target}" for target in targets), "Avg", "oracle")
    if all(line.entries["oracle"].mean is None for line in lines):
        columns = columns[:-1]
    title = f"Accuracy on {benchmark or 'your domains'}"
    main = Table(title, ("standard", "method"), columns, lines, notes, apart=("oracle",))
    return [main, _source_table(study, targets, by)] if single else [main]


def _source_table(study: Study, targets: Sequence[str], by: str) -> Table:
    lines = []
    cells = [cell for cell in study.cells if cell.standard == "single-best"]
    for method in methods_in_order(cell.method for cell in cells):
        own = [cell for cell in cells if cell.method == method]
        picks = {target: chosen_cells(study, own, target, by=by) for target in targets}
        for source in [name for name in _domains(study) if any(cell.source == name for cell in own)]:
            some = [cell for cell in own if cell.source == source]
            entries = {
                f"-> {target}": replace(
                    _entry(study, there, there), chosen=bool(picks[target]) and picks[target][0].source == source
                )
                for target in targets
                if (there := [cell for cell in some if cell.target == target])
            }
            lines.append(Line((NAMES.get(method, method), source), entries))
    columns = tuple(f"-> {target}" for target in targets)
    notes = [f"Accuracy (%) of every single source; the one chosen without target labels{_by(by)} is marked."]
    return Table("Single best, source by source", ("method", "source"), columns, lines, notes)


def _ablation_tables(study: Study, by: str | None) -> list[Table]:
    benchmark, targets, found = study.about.get("benchmark"), _targets(study), []
    for method, terms in dict.fromkeys((cell.method, tuple(cell.varied)) for cell in study.cells):
        own = [cell for cell in study.cells if (cell.method, tuple(cell.varied)) == (method, terms)]
        lines = []
        choices = {tuple(cell.varied.values()) for cell in own}
        for choice in sorted(choices, key=lambda one: (sum(one), [not each for each in one])):
            some = [cell for cell in own if tuple(cell.varied.values()) == choice]
            on = frozenset(name for name, each in zip(terms, choice, strict=True) if each)

            printed = partial(paper.ablation, benchmark, method, on, frozenset(terms))
            lines.append(Line(tuple(ON if each else "" for each in choice), _plain(study, some, targets, printed)))
        notes = [
            f"Accuracy (%) on the target's test part after the last step{_seeds(study)}; a term left out weighs 0."
        ]
        if any(entry.paper for line in lines for entry in line.entries.values()):
            notes += _beside(paper.reference("ablation", benchmark, method))
        if by is not None:
            lines.append(_chosen_line(study, own, targets, by, len(terms)))
        title = f"Loss terms of {NAMES.get(method, method)} on {benchmark or 'your domains'}"
        found.append(Table(title, terms, (*(f"-> {t}" for t in targets), "Avg"), lines, notes))
    return found


def _sensitivity_tables(study: Study, by: str | None) -> list[Table]:
    targets, found = _targets(study), []
    for method, name in dict.fromkeys((cell.method, next(iter(cell.varied))) for cell in study.cells):
        own = [cell for cell in study.cells if cell.method == method and name in cell.varied]
        values = sorted(
            {cell.varied[name] for cell in own},
            key=lambda v: (0, v, "") if isinstance(v, int | float) else (1, 0, str(v)),
        )
        lines = [
            Line((str(v),), _plain(study, [c for c in own if c.varied[name] == v], targets, lambda target: None))
            for v in values
        ]
        if by is not None:
            lines.append(_chosen_line(study, own, targets, by, 1))
        notes = [f"Accuracy (%) on the target's test part after the last step{_seeds(study)}."]
        title = f"{name} of {NAMES.get(method, method)} on {study.about.get('benchmark') or 'your domains'}"
        found.append(Table(title, (name,), (*(f"-> {t}" for t in targets), "Avg"), lines, notes))
    return found


def _search_tables(study: Study) -> list[Table]:
    from graphmsda.study.search_table import search_tables

    method = study.about["search"]["method"]
    return search_tables(study, NAMES.get(method, method))


def _timing_tables(study: Study) -> list[Table]:
    lines = []
    columns = {"training (s)": "training", "inference (s)": "inference"}
    cells = {cell.method: cell for cell in study.cells}
    about = next(iter(cells.values())).varied if cells else {}
    made = next(iter(study.rows.values()), {})
    same = (about.get("iterations"), made.get("backbone"), made.get("batch_size")) == TIMED
    for method in methods_in_order(cells):
        row, repeats = study.rows.get(cells[method].path, {}), int(cells[method].varied["repeats"])
        entries = {
            column: Entry(tuple(row.get(phase, ())), repeats, paper.timing(method, phase) if same else None)
            for column, phase in columns.items()
        }
        lines.append(Line((NAMES.get(method, method),), entries))
    notes = [
        f"Seconds of {about.get('iterations')} iterations, mean and standard deviation of {about.get('repeats')}; "
        f"{made.get('backbone')}, {made.get('batch_size')} images of each domain, {made.get('hardware')}."
    ]
    notes += _beside(paper.reference("timing", None) if same else None)
    return [Table("Running time", ("method",), tuple(columns), lines, notes, seconds=True)]


def _plain(
    study: Study, cells: Sequence[Cell], targets: Sequence[str], printed: Callable[[str | None], Figure | None]
) -> dict[str, Entry]:
    """Return the entries of a row without a choice of source."""
    by_target = {target: [cell for cell in cells if cell.target == target] for target in targets}
    entries = {f"-> {t}": replace(_entry(study, some, some), paper=printed(t)) for t, some in by_target.items()}
    return entries | {"Avg": replace(_average(study, by_target, cells, targets), paper=printed(None))}


def _entry(study: Study, cells: Sequence[Cell], asked: Sequence[Cell]) -> Entry:
    rows = [study.rows[cell.path] for cell in cells if cell.path in study.rows]
    return Entry(tuple(row["accuracy"] for row in rows), len({cell.seed for cell in asked}))


def _chosen_line(study: Study, cells: Sequence[Cell], targets: Sequence[str], by: str, heads: int) -> Line:
    """Return the row of what a score chooses among settings, for each target; nothing where a run is missing."""
    chosen: dict[str, Sequence[Cell]] = {}
    for target in targets:
        there = [cell for cell in cells if cell.target == target]
        rows = [(cell.setting, study.rows[cell.path]) for cell in there if cell.path in study.rows]
        best = best_of(rows, score=by) if len(rows) == len(there) else None
        chosen[target] = [cell for cell in there if cell.setting == best]
    entries = {f"-> {t}": _entry(study, some, cells) for t, some in chosen.items()}
    entries["Avg"] = _average(study, chosen, cells, targets)
    return Line((f"chosen by {by}", *[""] * (heads - 1)), entries, chosen=True)


def chosen_cells(
    study: Study, cells: Sequence[Cell], target: str, *, oracle: bool = False, by: str = "information"
) -> list[Cell]:
    """Return the cells of a row and target that are reported: of single best, those of one source."""
    there = [cell for cell in cells if cell.target == target]
    if not there or there[0].standard != "single-best":
        return there
    # A choice among some of the sources would be another one later: only seeds that have all of them count.
    missing = {cell.seed for cell in there if cell.path not in study.rows}
    rows: list[Row] = [study.rows[cell.path] for cell in there if cell.seed not in missing]
    source = best_source(rows, oracle=oracle, score=by)
    return [cell for cell in there if cell.source == source and cell.seed not in missing]


def _average(
    study: Study, chosen: Mapping[str, Sequence[Cell]], asked: Sequence[Cell], targets: Sequence[str]
) -> Entry:
    """Return the average over targets for each seed that all of them have."""
    seeds = sorted({cell.seed for cell in asked})
    rows = [{c.seed: study.rows[c.path]["accuracy"] for c in chosen[t] if c.path in study.rows} for t in targets]
    means = [statistics.fmean(row[seed] for row in rows) for seed in seeds if all(seed in row for row in rows)]
    return Entry(tuple(means), len(seeds))


def _oracle(study: Study, cells: Sequence[Cell], targets: Sequence[str]) -> Entry:
    """Return the average with every choice made by the accuracy on the target: of the source, or of the step."""
    if cells and cells[0].standard == "single-best":
        return _average(study, {t: chosen_cells(study, cells, t, oracle=True) for t in targets}, cells, targets)
    rows = {
        cell.path: {**row, "accuracy": row["oracle_accuracy"]}
        for cell in cells
        if (row := study.rows.get(cell.path)) and row.get("oracle_accuracy") is not None
    }
    by_target = {target: [cell for cell in cells if cell.target == target] for target in targets}
    return _average(replace(study, rows=rows), by_target, cells, targets)


def _domains(study: Study) -> list[str]:
    return list(study.about.get("domains") or ())


def _targets(study: Study) -> list[str]:
    there = {cell.target for cell in study.cells}
    return [name for name in _domains(study) if name in there]


def methods_in_order(names: Iterable[str]) -> list[str]:
    """Return methods in the order of `METHODS`, the paper's two last, as in its tables."""
    order = [*(name for name in METHODS if name not in ("crf", "mrf", "mrf-plus")), "crf", "mrf", "mrf-plus"]
    return sorted(dict.fromkeys(names), key=lambda name: (order.index(name) if name in order else len(order), name))


def _seeds(study: Study) -> str:
    seeds: list[Any] = sorted({cell.seed for cell in study.cells})
    if len(seeds) == 1:
        return f", seed {seeds[0]}"
    return f", mean and standard deviation over seeds {', '.join(map(str, seeds))}"


def _by(score: str) -> str:
    return "" if score == "information" else f" by {score}"


def _beside(reference: str | None) -> list[str]:
    return [] if reference is None else [f"In parentheses: {reference}."]
