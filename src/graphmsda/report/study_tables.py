"""The tables of a study on a page, and the same as files to save."""

from __future__ import annotations

import json
from collections.abc import Sequence

from graphmsda.report import study_charts as charts
from graphmsda.report.page import Section
from graphmsda.report.parts import Cell, Html, Row, Text, as_html, details, download, figure, join, paragraph, table
from graphmsda.study.cells import Study
from graphmsda.study.entries import ON, Entry, Line, Table
from graphmsda.study.formats import as_csv, as_json, as_latex

ORACLE = Html("oracle<br><small>chosen by labels</small>")
MOST_LINES = 20  # of a table that is not the main one, before it is folded
MOST_RUNS = 1_000_000  # bytes of single runs in the file to save: a page may have 5 million in all
SAID = ("cells are not finished", "failed: the same command tries them again")  # in a section of its own


def table_sections(study: Study, found: Sequence[Table]) -> list[Section]:
    """Return a section for each table of a study, the first with links to save all of them."""
    sections = []
    for number, one in enumerate(found):
        written = write_table(one)
        if number and len(one.lines) > MOST_LINES:
            written = details(f"{len(one.lines)} rows", written)
        notes = [note for note in one.notes if not note.endswith(SAID)] + _legend(one)
        body = _chart(study, one) + written + paragraph(charts.arrow(" ".join(map(_sentence, notes))), "note")
        body += downloads(study, found) if number == 0 else Html("")
        sections.append(Section(charts.arrow(one.title), body, key=f"table-{number}"))
    return sections


def write_table(one: Table) -> Html:
    """Return a table; where its first column is the standard, rows are grouped by it."""
    heads = [ORACLE if column == "oracle" else charts.arrow(column) for column in one.columns]
    grouped = one.heads[0] == "standard"
    rows: dict[str, list[Row]] = {}
    for line in one.lines:
        rows.setdefault(line.labels[0] if grouped else "", []).append(_row(one, line, grouped))
    names = one.heads[1:] if grouped else one.heads
    unit = "" if one.plain else ", seconds" if one.seconds else ", %"
    return table([*names, *heads], rows, caption=charts.arrow(one.title) + unit)


def downloads(study: Study, found: Sequence[Table]) -> Html:
    """Return links that save the tables; the page itself holds the files."""
    name = f"study-{study.about.get('benchmark') or study.about['kind']}"
    content, told = json.loads(as_json(study, found)), "JSON with every run"
    if len(json.dumps(content["runs"], ensure_ascii=False).encode()) > MOST_RUNS:
        content["runs"], told = [], "JSON (of the tables: there are too many runs to hold here)"
    whole = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    links = [
        download(f"{name}.csv", as_csv(found) + "\n", "CSV"),
        download(f"{name}.json", whole + "\n", told, "application/json"),
        download(f"{name}.tex", "\n\n".join(map(as_latex, found)) + "\n", "LaTeX", "application/x-tex"),
    ]
    return paragraph(as_html("Save the tables: ") + join(links, ", ") + ".")


def name_of(text: Text) -> Html:
    """Return a name that is not broken into lines: tables scroll instead."""
    return Html(f'<span style="white-space:nowrap">{as_html(text)}</span>')


def percent(value: float | None, digits: int = 1) -> str:
    """Return a fraction for people.

    >>> percent(0.9137), percent(None)
    ('91.4', '–')
    """
    return "–" if value is None else f"{100 * value:.{digits}f}"


def several(count: int, word: str) -> str:
    """Return a number of things.

    >>> several(1, "run"), several(3, "run")
    ('1 run', '3 runs')
    """
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _chart(study: Study, one: Table) -> Html:
    kind = study.about["kind"]
    drawn = [line for line in one.lines if any(entry.mean is not None for entry in line.entries.values())]
    if not drawn:
        return Html("")
    if kind == "sensitivity" and len(drawn) > 1:
        caption = f"Accuracy over {one.heads[0]}; bands are one standard deviation over seeds."
        return figure(charts.sensitivity(one), caption, description=_told(one, drawn, "Avg"))
    if one.heads[0] == "standard" and len(drawn) > 1 and any(line.entries["Avg"].mean is not None for line in drawn):
        beside = " Hollow squares: the paper." if any(line.entries["Avg"].paper for line in drawn) else ""
        caption = f"Average over targets; bars are one standard deviation over seeds.{beside}"
        return figure(charts.averages(one, "Avg"), caption, description=_told(one, drawn, "Avg"))
    return Html("")


def _told(one: Table, lines: Sequence[Line], column: str) -> str:
    numbers = [(", ".join(line.labels), line.entries[column].mean) for line in lines if column in line.entries]
    return f"{one.title}, average: " + "; ".join(
        f"{name} {percent(mean)} %" for name, mean in numbers if mean is not None
    )


def _row(one: Table, line: Line, grouped: bool) -> Row:
    labels = [_label(label) for label in (line.labels[1:] if grouped else line.labels)]
    return [*labels, *(_cell(one, line.entries.get(column), column) for column in one.columns)]


def _label(label: str) -> Html:
    return Html('<span role="img" aria-label="on">✓</span>') if label == ON else name_of(label or "–")


def _cell(one: Table, entry: Entry | None, column: str) -> Cell:
    """Return a number with its deviation, how many seeds it is of if not all, and below it the paper's."""
    if entry is None:
        return Cell("")

    def number(value: float) -> str:
        return f"{value:.4f}" if column in one.plain else f"{value:.2f}" if one.seconds else percent(value)

    text = "–"
    if entry.mean is not None:
        text = f"<b>{number(entry.mean)}</b>" if entry.best else number(entry.mean)
        text += f" ± {number(entry.std)}" if entry.std is not None else ""
        text += "" if entry.complete else f" <sup>{len(entry.values)}/{entry.asked}</sup>"
    text = f"<i>{text}</i>" if column in one.apart else text
    title = ", ".join(number(value) for value in entry.values) if len(entry.values) > 1 else ""
    if entry.chosen:
        text += ' <span role="img" aria-label="chosen">·</span>'
    if entry.paper is not None:
        text += f"<br><small>({number(entry.paper[0])})</small>"
    return Cell(Html(text), sort=entry.mean, title=title, shade=0.25 if entry.chosen else None)


def _legend(one: Table) -> list[str]:
    entries = [entry for line in one.lines for entry in line.entries.values()]
    found = ["Bold: best of its column."] if any(entry.best for entry in entries) else []
    found += ["Shaded: the one chosen."] if any(entry.chosen for entry in entries) else []
    if any(entry.values and not entry.complete for entry in entries):
        found.append("A raised fraction tells how many of the seeds asked for are there.")
    return [" ".join(found)] if found else []


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
