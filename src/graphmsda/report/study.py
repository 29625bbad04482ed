"""The report of a study: its tables, who is better by more than chance, what it took, and where it comes from."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graphmsda import __version__
from graphmsda.report import study_charts as charts
from graphmsda.report.page import Section, page
from graphmsda.report.parts import Html, Row, as_html, figure, paragraph, table, tiles
from graphmsda.report.study_blocks import Competitor, competitors
from graphmsda.report.study_choice import choice_section
from graphmsda.report.study_origin import failures_section, origin_section
from graphmsda.report.study_ranks import Ranking, ranking, ranks_section, told_apart
from graphmsda.report.study_tables import name_of, percent, several, table_sections
from graphmsda.study.cells import Study, read_study
from graphmsda.study.entries import Table
from graphmsda.study.summary import tables

KINDS = {"table": "Comparison", "ablation": "Ablation", "sensitivity": "Sensitivity", "timing": "Running time"}
KINDS["search"] = "Search"


def study_page(folder: str | Path) -> str:
    """Return the report of the study in a folder, finished or not, as one HTML page."""
    return write_page(read_study(folder))


def write_page(study: Study) -> str:
    """Return the report of a study that has been read."""
    kind, found = study.about["kind"], tables(study)
    rivals = competitors(study) if kind in ("table", "ablation", "sensitivity") else []
    ranked = ranking(rivals) if kind != "sensitivity" else None  # its values are points of a curve, not rivals
    made: list[Section | None] = [
        Section("At a glance", _glance(study, found, ranked)),
        failures_section(study),
        *table_sections(study, found),
        ranks_section(rivals, ranked) if kind != "sensitivity" else None,
        choice_section(rivals),
        _timing_charts(found) if kind == "timing" else _time_section(study, rivals) if kind == "table" else None,
        origin_section(study),
    ]
    data = study.about.get("benchmark") or "your domains"
    domains = study.about.get("domains") or []
    title = f"{KINDS[kind]} on {data}"
    subtitle = f"{several(len(study.rows), 'run')} of graphmsda study {kind}; domains: {', '.join(domains)}"
    return page(
        title, [one for one in made if one is not None], subtitle=subtitle, footer=f"Made by graphmsda {__version__}."
    )


def _glance(study: Study, found: Sequence[Table], ranked: Ranking | None) -> Html:
    done, failed = f"{len(study.rows)} of {len(study.cells)}", len(study.errors)
    items = _best(study, found)
    if ranked is not None:
        _, compared = ranked
        beaten = f"{len(told_apart(compared))} of {len(compared.names) - 1}"
        remark = f"others than which {compared.names[0]}, first by rank, is significantly better"
        items.append(("Beyond chance", beaten, remark))
    targets, seeds = {cell.target for cell in study.cells}, {cell.seed for cell in study.cells}
    items.append(("Cells finished", done, f"{failed} failed" if failed else "none failed"))
    if study.about["kind"] != "timing":
        told = f"{', '.join(sorted(targets))}; {', '.join(map(str, sorted(seeds)))}"
        items.append(("Targets × seeds", f"{len(targets)} × {len(seeds)}", told))
    return tiles(items)


def _best(study: Study, found: Sequence[Table]) -> list[tuple[str, str, str]]:
    """Return the best row of the first table, where there is something to choose from."""
    if not found or not found[0].lines:
        return []
    one = found[0]
    search = study.about.get("search")
    column = one.columns[0] if one.seconds else search["score"] if search else "Avg"
    best = [line for line in one.lines if column in line.entries and line.entries[column].best]
    if not best:
        return []
    entry, labels = best[0].entries[column], [label for label in best[0].labels if label]
    spread = entry.std or 0.0
    if one.seconds:
        return [(f"Fastest {column.partition(' ')[0]}", labels[0], f"{entry.mean or 0:.2f} s")]
    if search:
        values = ", ".join(f"{head} {label}" for head, label in zip(one.heads[1:], best[0].labels[1:], strict=True))
        return [("Best trial", best[0].labels[0], f"{values}; by {search['score']}")]
    if study.about["kind"] == "ablation":
        name = " + ".join(head for head, label in zip(one.heads, best[0].labels, strict=True) if label) or "none"
    elif study.about["kind"] == "sensitivity":
        name = f"{one.heads[0]} {labels[0]}"
    else:
        name = labels[-1]
    told = f"{percent(entry.mean)} %" + (f" ± {percent(spread)} over seeds" if spread else "")
    first = f"{labels[0]}; " if one.heads[0] == "standard" else ""
    tie = f"; {len(best) - 1} more as good" if len(best) > 1 else ""
    return [("Best average", name, f"{first}{told}{tie}")]


def _time_section(study: Study, rivals: Sequence[Competitor]) -> Section | None:
    """Return what accuracy cost in time."""
    spent = [value for one in rivals for value in one.minutes.values()]
    unit, factor = ("seconds", 60.0) if max(spent, default=0.0) < 2 else ("minutes", 1.0)
    points = {
        one.name: (factor * statistics.fmean(one.minutes.values()), one.mean)
        for one in rivals
        if one.minutes and len(one.minutes) == len(one.accuracy)
    }
    if not points:
        return None
    front = charts.unbeaten(points)
    rows: list[Row] = [
        [name_of(f"{number}. {name}"), f"{time:.1f}", percent(share), "yes" if name in front else "no"]
        for number, (name, (time, share)) in enumerate(points.items(), 1)
    ]
    body = Html("")
    if len(points) > 1:
        told = "; ".join(f"{name} {percent(share)} % in {time:.1f} {unit}" for name, (time, share) in points.items())
        caption = "Numbers are those of the table; nothing is both faster and better than what is on the line."
        body += figure(charts.against_time(points, unit), caption, description=told)
    heads = ["method", unit, "accuracy, %", "unbeaten"]
    body += table(heads, rows, caption=f"Mean {unit} of a target and seed", sortable=True)
    note = "Time by the wall clock with reading and scoring: of single best, of all its sources; of a run that was "
    note += "stopped and resumed, of its last part."
    hardware = {str(row.get("hardware")) for row in study.rows.values()}
    if len(hardware) > 1:
        note += " Runs were made on different hardware: times do not compare."
    told = Html(" Runs side by side slow each other down; <code>graphmsda study timing</code> measures properly.")
    return Section("Time", body + paragraph(as_html(note) + told, "note"))


def _timing_charts(found: Sequence[Table]) -> Section | None:
    parts = Html("")
    for one in found:
        for column in one.columns:
            # The paper's seconds are of other hardware: beside ours in the table, but not on one axis with them.
            lines = [replace(line, entries={column: replace(line.entries[column], paper=None)}) for line in one.lines]
            drawn = [line for line in lines if line.entries[column].mean is not None]
            if len(drawn) > 1:
                told = "; ".join(f"{line.labels[0]} {line.entries[column].mean:.2f} s" for line in drawn)
                chart = charts.averages(replace(one, lines=drawn), column)
                parts += figure(chart, f"{column}, mean and standard deviation", description=told)
    return Section("Seconds", parts) if parts else None
