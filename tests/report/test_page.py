"""The frame of a page and its pieces."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
from PIL import Image

from graphmsda.figures import style
from graphmsda.report import page, parts, pictures
from graphmsda.report.page import Section
from graphmsda.report.parts import Cell, Html


def test_text_is_escaped_and_html_is_not() -> None:
    made = page.page("<b>", [Section("a & b", parts.paragraph("5 < 6") + Html("<hr>") + "<i>")], subtitle="<u>")
    assert "<title>&lt;b&gt;</title>" in made
    assert "<p>5 &lt; 6</p><hr>&lt;i&gt;" in made
    assert '<p class="subtitle">&lt;u&gt;</p>' in made
    assert '<section id="a-b"' in made


def test_nothing_can_be_fetched() -> None:
    made = page.page("title", [Section("one", parts.paragraph("text"))])
    assert "default-src 'none'" in made
    assert not re.search(r"(src|href)=\"(?!data:|#)", made)


def test_the_library_comes_only_with_interactive_figures() -> None:
    from bokeh.plotting import figure

    plain = parts.figure(Html("<svg></svg>"), "caption", description="what it shows")
    assert "Anaconda" not in page.page("title", [Section("one", plain)])
    plot = figure(width=100, height=100)
    plot.scatter(["</script><script>alert(1)</script>"], [1])
    live = parts.figure(Html("<svg></svg>"), "caption", description="what it shows", live=plot)
    made = page.page("title", [Section("one", live)])
    assert "Copyright (c) Anaconda, Inc., and Bokeh Contributors" in made  # as its licence asks
    assert "alert(1)</script>" not in made
    assert len(made.encode()) < 2_000_000


def test_a_table_says_what_is_what() -> None:
    made = parts.table(
        ["class", "share", "taken for"],
        [["7", Cell("93 %", shade=0.93, sort=0.93), "1"], ["mug", Cell("·", shade=0.1), "cup"]],
        caption="By <class>",
        words=[2],
        sortable=True,
    )
    assert made.count('scope="col"') == 3
    assert '<th scope="row">7</th>' in made
    assert '<td class="n shade dark" style="--s:93%" data-sort="0.93">93 %</td>' in made
    assert "<td>1</td>" in made
    assert 'aria-label="By &lt;class&gt;"' in made


def test_a_table_of_groups() -> None:
    made = parts.table(["a", "b"], {"first": [["x", "1"]], "second": [["y", "2"]]}, caption="groups")
    assert made.count("<tbody>") == 2
    assert made.count('scope="rowgroup"') == 2


def test_a_download_holds_its_content() -> None:
    made = parts.download("table.csv", "a,b\n1,é\n", "as CSV")
    held = re.search(r"base64,([^\"]+)", made)
    assert held is not None
    assert base64.b64decode(held[1]).decode() == "a,b\n1,é\n"


def test_shares_make_a_bar_that_is_read_aloud() -> None:
    made = parts.bar([0.25, 0.75], ["<a>", "b"])
    assert 'aria-label="&lt;a&gt; 25 %, b 75 %"' in made
    assert "width:25.00%" in made


def test_figures_follow_the_colours_of_the_page() -> None:
    drawn = []
    with style.styled():
        for _ in range(2):
            sheet = style.new_figure(2, 1)
            axes = sheet.subplots()
            axes.plot([0, 1], [0, 1], color=style.COLOURS[0])
            axes.set_title("title")
            drawn.append(pictures.svg_of(sheet))
    assert "var(--c0)" in drawn[0]
    assert "#000000" not in drawn[0]
    assert "<metadata" not in drawn[0]
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in drawn]
    assert not ids[0] & ids[1]
    for text, own in zip(drawn, ids, strict=True):
        assert set(re.findall(r'href="#([^"]+)"', text)) <= own


def test_a_heat_map_is_clear_where_nothing_is() -> None:
    made = pictures.heat_image(np.array([[0.0, 1.0], [0.5, np.nan]]))
    held = re.search(r"base64,([^\"]+)", made)
    assert held is not None
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(held[1]))).convert("RGBA"))
    assert pixels[..., 3].tolist() == [[0, 255], [128, 0]]


def test_a_thumbnail_keeps_its_proportions() -> None:
    assert pictures.thumbnail(np.zeros((3, 100, 50), np.uint8), 40).size == (20, 40)
    assert pictures.thumbnail(np.zeros((3, 10, 5), np.uint8), 40).size == (5, 10)
