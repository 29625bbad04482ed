"""The report of a run in a browser: drawn at all widths and in both colour schemes, and it answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.browser import NARROW, WIDE, overflow, undrawn
from tests.report.conftest import Opening


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_it_is_drawn(image_report: Path, open_page: Opening, width: int, dark: bool) -> None:
    with open_page(image_report, width=width, dark=dark) as page:
        assert overflow(page) <= 0
        assert undrawn(page) == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") != dark


def test_the_map_answers(image_report: Path, open_page: Opening) -> None:
    with open_page(image_report) as page:
        page.get_by_role("button", name="Next point").click()
        status = page.locator(".told")
        assert "goal: class" in status.inner_text()
        assert page.locator(".told .thumb").count() == 1
        first = status.inner_text()
        page.locator(".moving").focus()
        page.keyboard.press("ArrowRight")
        assert status.inner_text() != first
        # Hovering over the second point shows it too.
        view = "Bokeh.index.roots[0]"
        spot = page.evaluate(
            f"""() => {{
              const one = {view}.model.renderers.find((renderer) => renderer.name === 'domain-2').data_source.data;
              const frame = {view}.frame;
              return [frame.x_scale.compute(one.x[1]), frame.y_scale.compute(one.y[1])];
            }}"""
        )
        area = page.locator(".moving")
        area.scroll_into_view_if_needed()
        box = area.bounding_box()
        page.mouse.move(box["x"] + spot[0] - 1, box["y"] + spot[1])
        page.mouse.move(box["x"] + spot[0], box["y"] + spot[1])
        page.get_by_text("goal: class").nth(1).wait_for(timeout=5000)
        wide = f"{view}.model.x_range.end - {view}.model.x_range.start"
        before = page.evaluate(wide)
        page.get_by_role("button", name="Zoom in").click()
        assert page.evaluate(wide) < before
        page.locator("figure .key").get_by_label("one").uncheck()
        assert page.evaluate(f"{view}.model.renderers.find((one) => one.name === 'domain-0').visible") is False


def test_tables_sort(image_report: Path, open_page: Opening) -> None:
    with open_page(image_report) as page:
        table = page.locator("#classes table.sortable")
        table.get_by_role("button", name="Mean confidence").click()
        values = [
            float(text.split()[0]) for text in table.locator("tbody td:nth-child(5)").all_inner_texts() if "%" in text
        ]
        assert values == sorted(values)


def test_it_reads_without_scripts_and_prints(image_report: Path, open_page: Opening, tmp_path: Path) -> None:
    with open_page(image_report, scripts=False) as page:
        assert undrawn(page) == []
        assert page.locator("svg.map").is_visible()
    with open_page(image_report, dark=True) as page:
        page.emulate_media(media="print")
        assert page.locator("svg.map").is_visible()
        assert not page.locator("nav").is_visible()
        printed: bytes = page.pdf(path=str(tmp_path / "report.pdf"), format="A4")
        assert printed.startswith(b"%PDF")
