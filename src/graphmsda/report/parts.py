"""Pieces of a page: text, tables that are heat maps too, figures that are static first, bars, downloads.

Text is escaped wherever it is not `Html`.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NUMBER = re.compile(r"^[-+−–±<>≈~·\s\d.,:%/×e()]*(s|ms|MB|GB|min|h)?$")


class Html(str):
    """Text that is HTML already and is not escaped any more."""

    __slots__ = ()

    def __add__(self, other: str) -> Html:
        return Html(str.__add__(self, as_html(other)))


Text = str | Html


@dataclass(frozen=True)
class Cell:
    """A cell of a table that is more than its text.

    Attributes:
        text: What it says.
        shade: From 0 to 1, how much colour lies behind it: a heat map that a screen reader reads.
        sort: The number to sort by, where the text does not begin with it.
        strong: Whether it stands out, as the best of a column does.
        title: A hint for the mouse.
    """

    text: Text
    shade: float | None = None
    sort: float | None = None
    strong: bool = False
    title: str = ""


Row = Sequence[Text | Cell]


def as_html(text: Text) -> Html:
    """Return text with its special characters escaped, unless it is HTML.

    >>> as_html("a < b"), as_html(Html("<b>a</b>"))
    ('a &lt; b', '<b>a</b>')
    """
    return text if isinstance(text, Html) else Html(html.escape(text))


def with_code(text: Text) -> Html:
    """Return text in which what stood in backticks is marked as code.

    >>> with_code("run `a < b`")
    'run <code>a &lt; b</code>'
    """
    return Html(re.sub(r"`([^`]+)`", r"<code>\1</code>", as_html(text)))


def join(parts: Iterable[Text], between: str = "") -> Html:
    """Return several pieces as one."""
    return Html(between.join(map(as_html, parts)))


def paragraph(text: Text, kind: str = "") -> Html:
    """Return a paragraph; `kind` is ``note`` (small), ``warning`` or nothing. What stands in backticks is code."""
    return Html(f"<p{_kind(kind)}>{with_code(text)}</p>")


def heading(text: Text) -> Html:
    """Return a heading inside a section."""
    return Html(f"<h3>{as_html(text)}</h3>")


def bullets(items: Iterable[Text], kind: str = "") -> Html:
    """Return a list."""
    return Html(f"<ul{_kind(kind)}>{''.join(f'<li>{as_html(item)}</li>' for item in items)}</ul>")


def code(text: str) -> Html:
    """Return a command or the like, whole lines of it, with a button that copies it."""
    return Html(f'<pre class="code" tabindex="0"><code>{as_html(text)}</code></pre>')


def tiles(items: Iterable[tuple[Text, Text, Text]]) -> Html:
    """Return the figures that matter most, large: of each its name, its value and a remark."""
    made = (
        f"<div><dt>{as_html(name)}</dt><dd><b>{as_html(value)}</b><span>{as_html(remark)}</span></dd></div>"
        for name, value, remark in items
    )
    return Html(f'<dl class="tiles">{"".join(made)}</dl>')


def facts(items: Mapping[str, Text]) -> Html:
    """Return names with what they stand for, a line each."""
    made = (f"<div><dt>{as_html(name)}</dt><dd>{as_html(value)}</dd></div>" for name, value in items.items())
    return Html(f'<dl class="facts">{"".join(made)}</dl>')


def details(summary: Text, body: Text, *, opened: bool = False) -> Html:
    """Return something that unfolds when asked, without a script; on paper it is unfolded."""
    return Html(f"<details{' open' if opened else ''}><summary>{as_html(summary)}</summary>{as_html(body)}</details>")


def grid(items: Iterable[Text], *, least: int = 240) -> Html:
    """Return pieces beside each other, as many in a row as have `least` pixels each."""
    return Html(f'<div class="grid" style="--least:{least}px">{"".join(as_html(item) for item in items)}</div>')


def table(
    head: Sequence[Text],
    rows: Sequence[Row] | Mapping[str, Sequence[Row]],
    *,
    caption: Text,
    words: Collection[int] = (),
    sortable: bool = False,
    matrix: bool = False,
) -> Html:
    """Return a table whose first column names its rows; on narrow screens it scrolls by itself.

    Args:
        head: Names of the columns.
        rows: Rows of as many cells, or several groups of such rows by their headings.
        caption: What it shows, for all readers.
        words: Further columns, by place, that hold names, be they numbers.
        sortable: Let readers sort by a column (with scripts on); for tables of one group.
        matrix: Draw narrow cells without lines between, as a heat map has.
    """
    groups = rows if isinstance(rows, Mapping) else {"": rows}
    every = [row for group in groups.values() for row in group]
    named = {0, *words}
    marks = [place not in named and all(_is_number(row[place]) for row in every) for place in range(len(head))]
    top = "".join(
        f'<th scope="col"{_kind("n" if number else "")}>{as_html(name)}</th>' if name else "<td></td>"
        for name, number in zip(head, marks, strict=True)
    )
    bodies = []
    for name, group in groups.items():
        lines = [f'<tr class="group"><th colspan="{len(head)}" scope="rowgroup">{as_html(name)}</th></tr>'] * bool(name)
        for row in group:
            cells = (_cell(cell, place, number) for place, (cell, number) in enumerate(zip(row, marks, strict=True)))
            lines.append(f"<tr>{''.join(cells)}</tr>")
        bodies.append(f"<tbody>{''.join(lines)}</tbody>")
    kinds = " ".join(kind for kind, on in (("sortable", sortable), ("matrix", matrix)) if on)
    label = html.escape(html.unescape(re.sub(r"<[^>]*>", "", as_html(caption))))
    return Html(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table{_kind(kinds)}>'
        f"<caption><span>{as_html(caption)}</span></caption><thead><tr>{top}</tr></thead>{''.join(bodies)}</table></div>"
    )


def figure(
    static: Html, caption: Text, *, description: str, live: Any = None, legend: Text = "", least: int = 0
) -> Html:
    """Return a figure.

    Args:
        static: What is seen first, and for good on paper and without scripts: `svg_of` a matplotlib figure, SVG or
            images of your own.
        caption: A sentence below it.
        description: What it shows, for those who do not see it: the finding, with its numbers.
        live: A Bokeh model that takes its place where scripts run.
        legend: What stands above both, such as which sign means what.
        least: Width in pixels below which it scrolls rather than shrinks.
    """
    inner = f'<div class="static" role="img" aria-label="{html.escape(description)}">{static}</div>'
    if least:
        inner = inner.replace('role="img"', f'role="img" style="min-width:{least}px"', 1)
    moving = ""
    if live is not None:
        content = json.dumps(_embeddable(live), separators=(",", ":")).replace("<", "\\u003c")
        moving = (
            f'<div class="moving" tabindex="0" role="group" aria-label="{html.escape(description)}"></div>'
            f'<script type="application/json" class="live">{content}</script>'
        )
    scroll = f'<div class="scroll" role="region" tabindex="0" aria-label="figure">{inner}</div>' if least else inner
    return Html(f"<figure>{as_html(legend)}{scroll}{moving}<figcaption>{as_html(caption)}</figcaption></figure>")


def bar(shares: Sequence[float], names: Sequence[str]) -> Html:
    """Return one bar made of shares of a whole, each in the colour of its place (`key` tells which)."""
    parts = "".join(
        f'<i class="c{place % 8}" style="width:{100 * share:.2f}%" title="{html.escape(name)} {100 * share:.0f} %"></i>'
        for place, (share, name) in enumerate(zip(shares, names, strict=True))
    )
    told = ", ".join(f"{name} {100 * share:.0f} %" for share, name in zip(shares, names, strict=True))
    return Html(f'<span class="bar" role="img" aria-label="{html.escape(told)}">{parts}</span>')


def key(names: Sequence[str]) -> Html:
    """Return which colour of a `bar` stands for what."""
    return Html(
        '<ul class="key">'
        + "".join(f'<li><i class="c{n % 8}"></i>{as_html(name)}</li>' for n, name in enumerate(names))
        + "</ul>"
    )


def download(name: str, content: str, text: Text, kind: str = "text/csv") -> Html:
    """Return a link that saves `content`, which the page holds, as a file called `name`."""
    data = base64.b64encode(content.encode()).decode()
    return Html(f'<a download="{html.escape(name)}" href="data:{kind};charset=utf-8;base64,{data}">{as_html(text)}</a>')


def _cell(cell: Text | Cell, place: int, number: bool) -> str:
    made = cell if isinstance(cell, Cell) else Cell(cell)
    kinds = ["n"] if number else []
    kinds += ["strong"] if made.strong else []
    style = ""
    if made.shade is not None:
        shade = min(1.0, max(0.0, made.shade))
        kinds += ["shade", *(["dark"] if shade > 0.5 else [])]
        style = f' style="--s:{100 * shade:.0f}%"'
    sort = "" if made.sort is None else f' data-sort="{made.sort:.10g}"'
    title = f' title="{html.escape(made.title)}"' if made.title else ""
    tag = "td" if place else "th"
    scope = "" if place else ' scope="row"'
    return f"<{tag}{scope}{_kind(' '.join(kinds))}{style}{sort}{title}>{as_html(made.text)}</{tag}>"


def _is_number(cell: Text | Cell) -> bool:
    text = cell.text if isinstance(cell, Cell) else cell
    return "<img" not in text and bool(NUMBER.match(re.sub(r"<[^>]*>", "", text)))


def _kind(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _embeddable(model: Any) -> Any:
    from bokeh.embed import json_item

    return json_item(model)
