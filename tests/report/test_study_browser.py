"""The report of a study as Chromium shows it: no errors, all charts drawn, at both widths, in light, dark and print."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphmsda.report.study import study_page
from tests.report.browser import NARROW, WIDE, overflow, undrawn
from tests.report.conftest import Opening
from tests.report.test_study import write_kinds

# Texts of charts that are cut off by the edge of their drawing, and marks that lie outside of it.
CUT = """() => [...document.querySelectorAll('svg.chart')].flatMap((chart) => {
  const edge = chart.getBoundingClientRect();
  return [...chart.querySelectorAll('text, .mark')].filter((one) => {
    const box = one.getBoundingClientRect();
    const across = box.left < edge.left - 1 || box.right > edge.right + 1;
    return across || box.top < edge.top - 1 || box.bottom > edge.bottom + 1;
  }).map((one) => one.textContent);
})"""
SMALL = """() => Math.min(...[...document.querySelectorAll('svg.chart text')].map((one) =>
  parseFloat(getComputedStyle(one).fontSize) * one.ownerSVGElement.getScreenCTM().a))"""
# Contrast of a chart's text with the page (WCAG 2: 4.5 is enough for any size).
CONTRAST = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  return Math.min(...[...document.querySelectorAll('svg.chart text')].map((one) => {
    const ink = light(getComputedStyle(one).fill);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  }));
}"""
CHARTS = {"table": 3, "ablation": 1, "sensitivity": 2, "timing": 2}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("reports")
    found = {}
    for kind, folder in write_kinds(out).items():
        found[kind] = out / f"{kind}.html"
        found[kind].write_text(study_page(folder), encoding="utf-8")
    return found


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("kind", list(CHARTS))
def test_charts_are_drawn(pages: dict[str, Path], open_page: Opening, kind: str, width: int) -> None:
    with open_page(pages[kind], width=width, dark=width == NARROW) as page:
        assert overflow(page) <= 0
        assert undrawn(page) == []
        assert page.locator("svg.chart").count() == CHARTS[kind]
        assert page.locator("svg.chart .mark").count() >= 2 * CHARTS[kind]
        assert page.evaluate(CUT) == []
        assert page.evaluate(SMALL) >= 9
        assert page.evaluate(CONTRAST) >= 4.5


def test_without_scripts(pages: dict[str, Path], open_page: Opening) -> None:
    with open_page(pages["table"], scripts=False) as page:
        assert page.locator("svg.chart:visible").count() == CHARTS["table"]
        assert page.get_by_role("heading", name="Ranks and significance").is_visible()
        page.get_by_text("All 21 pairs", exact=True).click()
        assert page.get_by_role("table", name="Wilcoxon's signed-rank test").is_visible()


def test_tables_sort_and_save(pages: dict[str, Path], open_page: Opening, tmp_path: Path) -> None:
    with open_page(pages["table"]) as page:
        table = page.get_by_role("table", name="Mean minutes")
        table.get_by_role("button", name="accuracy").click()
        shares = [float(text) for text in table.locator("tbody tr td:nth-child(3)").all_inner_texts()]
        assert shares == sorted(shares)
        with page.expect_download() as waiting:
            page.get_by_role("link", name="CSV").click()
        waiting.value.save_as(tmp_path / "saved.csv")
        assert (tmp_path / "saved.csv").read_text().startswith("table,row,column,mean")


def test_screen_readers_are_told(pages: dict[str, Path], open_page: Opening) -> None:
    with open_page(pages["table"]) as page:
        for told in ("Average ranks: MRF-MSDA", "MRF-MSDA 9", "Critical difference"):
            assert page.locator(f'[role=img][aria-label*="{told}"]').count() >= 1
        assert page.locator("section h2").count() == page.locator("nav a").count()


def test_it_prints(pages: dict[str, Path], open_page: Opening, tmp_path: Path) -> None:
    with open_page(pages["table"]) as page:
        content: Any = page.pdf(path=tmp_path / "page.pdf", format="A4", print_background=False)
    assert content.startswith(b"%PDF")
    assert 2 <= content.count(b"/Type /Page\n") <= 20
