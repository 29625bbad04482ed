"""The frame of a report: one HTML file with its style, its script and, where a figure is interactive, Bokeh inside.

What a reader sees first is always static (tables, inline SVG, images); a script may then put something livelier in its
place. So a page reads without scripts, on paper and by a screen reader. Bokeh is bundled for its size and licence (1.3
MB, BSD), as its Python package brings it; a page without interactive figures does not hold it.

Text is escaped wherever it is not `Html`. The pieces are in `graphmsda.report.parts`, images and matplotlib figures in
`graphmsda.report.pictures`::

    body = paragraph("5 < 6") + table(["class", "accuracy"], [["mug", Cell("93 %", shade=0.93)]], caption="By class")
    write_text(path, page("A title", [Section("Results", body)]))
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from graphmsda.errors import UserError
from graphmsda.report.parts import Html, Text, as_html, join, with_code

MOST_BYTES = 5_000_000  # of a page, so that it can be sent around: figures keep to their share, tests see to it
# Nothing may be fetched, whatever a file or class is called; Bokeh makes styles of its own.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    """A chapter of a page.

    Attributes:
        title: Its heading, and its line in the list of contents.
        body: What stands in it, made by the functions below.
        lead: A sentence or two under the heading: what to look at.
        key: Its anchor; by default made from the title.
    """

    title: str
    body: Text
    lead: Text = ""
    key: str = ""

    @property
    def anchor(self) -> str:
        """The part of an address that leads here.

        >>> Section("Loss terms, by epoch", "").anchor
        'loss-terms-by-epoch'
        """
        return self.key or re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def page(title: str, sections: Sequence[Section], *, subtitle: Text = "", footer: Text = "") -> str:
    """Return a whole page.

    Args:
        title: Heading of the page and name of its window.
        sections: Its chapters.
        subtitle: A line under the heading.
        footer: A line at the end, such as what made the page and when.
    """
    links = join(Html(f'<li><a href="#{one.anchor}">{as_html(one.title)}</a></li>') for one in sections)
    body = "".join(_section(one) for one in sections)
    live = '<script type="application/json" class="live"' in body
    library = f"<script>{_bokeh()}</script>" if live else ""
    bundled = " Interactive figures by Bokeh (BSD 3-Clause licence), bundled." if live else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{as_html(title)}</title>
<style>{_resource("page.css")}</style>
<noscript><style>.needs-script{{display:none}}</style></noscript>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header><h1>{as_html(title)}</h1>{f'<p class="subtitle">{as_html(subtitle)}</p>' if subtitle else ""}</header>
<div class="columns">
<nav aria-label="Contents"><ul>{links}</ul></nav>
<main id="content">
{body}
</main>
</div>
<footer><p>{as_html(footer)}{bundled}</p></footer>
{library}
<script>{_resource("page.js")}</script>
</body>
</html>
"""


def check_bokeh() -> None:
    """Refuse to begin a page with interactive figures where Bokeh is missing."""
    try:
        import bokeh  # noqa: F401
    except ImportError as error:
        raise UserError(
            "interactive figures are drawn with Bokeh, which is not installed; run `pip install 'graphmsda[report]'`"
        ) from error


def _section(section: Section) -> str:
    lead = f'<p class="lead">{with_code(section.lead)}</p>' if section.lead else ""
    anchor = section.anchor
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">'
        f'<h2 id="{anchor}-title">{as_html(section.title)}</h2>{lead}{as_html(section.body)}</section>\n'
    )


@cache
def _bokeh() -> str:
    from bokeh.resources import INLINE

    return INLINE.js_raw[0].replace("</script", "<\\/script")


@cache
def _resource(name: str) -> str:
    return resources.files("graphmsda.report").joinpath(name).read_text(encoding="utf-8")
