"""Tables as text, Markdown, LaTeX, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from graphmsda.study.cells import Study
from graphmsda.study.entries import ON, Entry, Line, Table
from graphmsda.study.summary import tables

FORMATS = ("text", "markdown", "latex", "csv", "json")

Write = Callable[[str], str]
"""From a text to how a format has it in bold."""


def show(study: Study, format: str = "text", *, by: str | None = None) -> str:
    """Return the tables of a study in one of `FORMATS`; the last two hold fractions, the others percent.

    Args:
        study: The study.
        format: Of the result.
        by: A score without target labels that chooses among settings and sources.
    """
    found = tables(study, by)
    if format == "json":
        return as_json(study, found)
    if format == "csv":
        return as_csv(found)
    write = {"text": as_text, "markdown": as_markdown, "latex": as_latex}[format]
    return "\n\n".join(write(table) for table in found)


def as_text(table: Table) -> str:
    """Return a table for a terminal: the best of a column has a star."""
    body = _body(table, bold=lambda text: f"{text}*", chosen="<", plus="±", on="x", missing="-")
    for number, column in enumerate(table.columns, len(table.heads)):
        if column in table.apart:
            width = max(len(row[number]) for row in body)
            body = [[*row[:number], f"│ {row[number].rjust(width)}", *row[number + 1 :]] for row in body]
    widths = [max(map(len, texts)) for texts in zip(*body, strict=True)]
    labels = len(table.heads)
    lines = [
        "  ".join(t.ljust(w) if n < labels else t.rjust(w) for n, (t, w) in enumerate(zip(row, widths, strict=True)))
        for row in body
    ]
    rule = "─" * max(map(len, lines))
    lines[1:1] = [rule]
    for number in reversed(_groups(table)[1:]):
        lines.insert(number + 2, rule)
    legend = _legend(table, "* best of its column", "< chosen")
    return "\n".join([table.title, *(line.rstrip() for line in lines), *table.notes, *legend])


def as_markdown(table: Table) -> str:
    """Return a table for a page: the best of a column is bold."""
    body = _body(table, bold=lambda text: f"**{text}**", chosen="←", plus="±", on="✓", missing="–", escape=_pipes)
    labels = len(table.heads)
    rule = "|".join([":---"] * labels + ["---:"] * len(table.columns))
    lines = [f"| {' | '.join(row)} |" for row in body]
    lines[1:1] = [f"|{rule}|"]
    notes = [_pipes(note) for note in [*table.notes, *_legend(table, "", "← chosen")]]
    return "\n".join([f"**{_pipes(table.title)}**", "", *lines, "", *(f"{note}  " for note in notes)]).rstrip()


def as_latex(table: Table) -> str:
    r"""Return a LaTeX table that needs nothing but ``\usepackage{booktabs}``; the best of a column is bold."""
    body = _body(
        table, bold=lambda text: rf"\textbf{{{text}}}", chosen=r"$\leftarrow$", plus=r"$\pm$", on=r"$\surd$",
        missing="--", escape=_tex,
    )  # fmt: skip
    groups = _groups(table)
    numbers = "".join("|r" if column in table.apart else "r" for column in table.columns)
    lines = [" & ".join(row) + r" \\" for row in body]
    rows = [lines[0], r"\midrule"]
    for number, line in enumerate(lines[1:]):
        rows += [r"\midrule"] if number in groups[1:] else []
        rows.append(line)
    caption = " ".join(_tex(note) for note in [f"{table.title}.", *table.notes, *_legend(table, "", "<- chosen.")])
    return "\n".join(
        [
            r"% \usepackage{booktabs}",
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\begin{{tabular}}{{{'l' * len(table.heads)}{numbers}}}",
            r"\toprule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def as_csv(found: Sequence[Table]) -> str:
    """Return all numbers one a line, for programs: fractions or seconds."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["table", "row", "column", "mean", "std", "values", "asked", "best", "paper_mean", "paper_std"])
    for table in found:
        for line in table.lines:
            for column in table.columns:
                entry = line.entries.get(column, Entry())
                mean, std = (f"{value:.6f}" if value is not None else "" for value in (entry.mean, entry.std))
                paper = [*(entry.paper or ()), "", ""][:2]
                name = _name(table, line)
                writer.writerow(
                    [table.title, name, column, mean, std, len(entry.values), entry.asked, int(entry.best), *paper]
                )
    return file.getvalue().rstrip("\n")


def as_json(study: Study, found: Sequence[Table]) -> str:
    """Return everything: the tables, every run, and what failed."""
    content = {
        "study": dict(study.about),
        "tables": [
            {
                "title": table.title,
                "notes": list(table.notes),
                "lines": [
                    {
                        "labels": dict(zip(table.heads, line.labels, strict=True)),
                        "entries": {column: _plain(entry) for column, entry in line.entries.items()},
                    }
                    for line in table.lines
                ],
            }
            for table in found
        ],
        "runs": [study.rows[cell.path] for cell in study.cells if cell.path in study.rows],
        "failed": [
            {**cell.named(), "error": study.errors[cell.path]} for cell in study.cells if cell.path in study.errors
        ],
    }
    return json.dumps(content, indent=1, ensure_ascii=False)


def _plain(entry: Entry) -> dict[str, Any]:
    found: Mapping[str, Any] = {
        "mean": entry.mean,
        "std": entry.std,
        "values": list(entry.values),
        "asked": entry.asked,
        "best": entry.best,
        "chosen": entry.chosen or None,
        "paper": None if entry.paper is None else list(entry.paper),
    }
    return {name: value for name, value in found.items() if value is not None}


def _body(
    table: Table, *, bold: Write, chosen: str, plus: str, on: str, missing: str, escape: Write = str
) -> list[list[str]]:
    """Return the head and all rows as texts; of rows of one group, only the first names it."""
    head = [*table.heads, *table.columns]
    body = [[escape(text) for text in head]]
    before = ""
    for line in table.lines:
        first, *others = line.labels
        shown = "" if table.heads[0] == "standard" and first == before else first
        before = first
        labels = [on if label == ON else escape(label) for label in [shown, *others]]
        entries = [(line.entries.get(column), _figure(table, column)) for column in table.columns]
        body.append([*labels, *(_told(entry, figure, bold, chosen, plus, missing) for entry, figure in entries)])
    return body


def _figure(table: Table, column: str) -> Callable[[float], str]:
    """Return how numbers of a column are written."""
    if column in table.plain:
        return lambda value: f"{value:.4f}"
    return (lambda value: f"{value:.2f}") if table.seconds else (lambda value: f"{100 * value:.1f}")


def _told(
    entry: Entry | None, figure: Callable[[float], str], bold: Write, chosen: str, plus: str, missing: str
) -> str:
    """Return a number: bold where it is the best, with deviation, how many are there if not all, and the paper's."""
    if entry is None:
        return ""
    if entry.mean is None:
        text = missing
    else:
        text = bold(figure(entry.mean)) if entry.best else figure(entry.mean)
        text += f" {plus} {figure(entry.std)}" if entry.std is not None else ""
        text += "" if entry.complete else f" [{len(entry.values)} of {entry.asked}]"
    if entry.paper is not None:
        text += f" ({figure(entry.paper[0])})"
    return text + (f" {chosen}" if entry.chosen else "")


def _legend(table: Table, best: str, chosen: str) -> list[str]:
    entries = [entry for line in table.lines for entry in line.entries.values()]
    found = [best] if best and any(entry.best for entry in entries) else []
    found += [chosen] if any(entry.chosen for entry in entries) else []
    found += ["[n of m]: seeds that are there"] if any(e.values and not e.complete for e in entries) else []
    return ["; ".join(found)] if found else []


def _groups(table: Table) -> list[int]:
    """Return the numbers of rows that begin a group."""
    if table.heads[0] != "standard":
        return [0]
    names = [line.labels[0] for line in table.lines]
    return [number for number, name in enumerate(names) if number == 0 or name != names[number - 1]]


def _name(table: Table, line: Line) -> str:
    if all(label in ("", ON) for label in line.labels):
        return "+".join(head for head, label in zip(table.heads, line.labels, strict=True) if label) or "none"
    return ", ".join(line.labels)


def _pipes(text: str) -> str:
    return text.replace("|", r"\|").replace("->", "→")


def _tex(text: str) -> str:
    r"""Return a text with LaTeX's own characters escaped.

    >>> print(_tex("50% of lambda_1 -> mm"))
    50\% of lambda\_1 $\rightarrow$ mm
    """
    special = {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
    parts = {"<-": r"$\leftarrow$", "->": r"$\rightarrow$"}
    for arrow, sign in parts.items():
        if arrow in text:
            return sign.join(_tex(part) for part in text.split(arrow))
    return "".join(special.get(character, character) for character in text)
