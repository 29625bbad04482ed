"""The page in headless Chromium, at two widths, light and dark, by mouse and by keyboard."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from graphmsda.run import Run
from graphmsda.serve.app import create_app
from graphmsda.serve.commands import listen
from graphmsda.serve.limits import Limits
from tests.serve.conftest import picture

pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def address(run: Run, browser: Any) -> Iterator[str]:
    """A server in a thread."""
    listener = listen("127.0.0.1", 0)
    examples = {place: picture(place) for place in range(len(run.domains) * len(run.classes))}
    app = create_app(run, Limits(most_images=3), examples)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    listener.listen()
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def complaints() -> list[str]:
    return []


def open_page(browser: Any, address: str, complaints: list[str], **options: Any) -> Any:
    page = browser.new_context(**options).new_page()

    def hear(message: Any) -> None:
        complaints.extend([message.text] if message.type in ("error", "warning") else [])

    def watch(request: Any) -> None:
        complaints.extend([] if request.url.startswith((address, "blob:", "data:")) else [request.url])

    page.on("console", hear)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", watch)
    page.goto(address)
    return page


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_results(browser: Any, address: str, complaints: list[str], pictures: list[Path], width: int, colours: str,
                 run: Run) -> None:  # fmt: skip
    from playwright.sync_api import expect

    page = open_page(browser, address, complaints, viewport={"width": width, "height": 800}, color_scheme=colours)
    expect(page.locator("#model")).to_contain_text(f"mrf on small, {len(run.classes)} classes, adapted from source-0")
    shown = [path for path in pictures if path.suffix != ".tif"]  # which browsers do not show
    page.set_input_files("#files", shown)
    expect(page.locator("#status")).to_have_text(f"{len(shown)} classified")
    cards = page.locator("#results > li")
    expected = run.predict([str(path) for path in shown])
    assert page.locator(".card h2").all_text_contents() == expected.labels
    assert page.locator(".card .name").all_text_contents() == [path.name for path in shown]
    for place, confidence in enumerate(expected.confidence.tolist()):
        expect(cards.nth(place)).to_contain_text(f"{percent(confidence)} confident")
        expect(cards.nth(place).locator(".prototypes li")).to_have_count(3)
        expect(cards.nth(place).locator("h3").nth(1)).to_contain_text("Leans on")
    images = page.locator("img")
    assert images.count() == 4 * len(shown)
    images.last.scroll_into_view_if_needed()
    page.wait_for_load_state("networkidle")
    assert all(image.evaluate("image => image.hasAttribute('alt')") for image in images.all())
    assert images.last.evaluate("image => image.naturalWidth") > 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing hangs over the edge
    back, ink = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
    assert (lightness(back) > lightness(ink)) == (colours == "light")
    page.click("#clear")
    expect(cards).to_have_count(0)
    expect(page.locator("#clear")).to_be_hidden()
    assert complaints == []


def percent(share: float) -> str:
    return "100 %" if share > 0.9995 else f"{100 * share:.1f} %"


def lightness(colour: str) -> float:
    return sum(float(part) for part in colour.strip("rgba()").split(",")[:3])


def test_bad_images_and_dropping(browser: Any, address: str, complaints: list[str]) -> None:
    from playwright.sync_api import expect

    page = open_page(browser, address, complaints)
    expect(page.locator("#how")).to_contain_text("up to 32 MB")
    files = [
        {"name": "fine.png", "mimeType": "image/png", "buffer": picture()},
        {"name": "<b>bad</b>.png", "mimeType": "image/png", "buffer": b"no picture"},
    ]
    page.set_input_files("#files", files)
    expect(page.locator("#status")).to_have_text("1 classified, 1 could not be read")
    assert page.locator(".card .name").all_text_contents() == ["fine.png", "<b>bad</b>.png"]
    expect(page.locator(".card .error")).to_have_text("not a picture or damaged")
    page.set_input_files("#files", files[1:])  # alone it is refused as a whole
    expect(page.locator("#status")).to_have_text("1 classified, 2 could not be read")
    expect(page.locator(".card .error").last).to_contain_text("could not be read (not a picture or damaged)")
    content = list(picture(120))
    page.evaluate(
        """content => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(content)], "dropped.png", {type: "image/png"}));
            document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true}));
        }""",
        content,
    )
    expect(page.locator("#status")).to_have_text("2 classified, 2 could not be read")
    assert [text for text in complaints if "422" not in text] == []  # Chromium notes the refusal


def test_keyboard_and_screen_reader(browser: Any, address: str, complaints: list[str]) -> None:
    page = open_page(browser, address, complaints)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "files"
    tree = page.locator("body").aria_snapshot()
    for part in ('heading "Classify images" [level=1]', "status", "Choose images, drop them anywhere"):
        assert part in tree, tree
    with page.expect_file_chooser(timeout=30_000):
        page.evaluate("document.activeElement.id")  # a way there and back: by then the browser knows who waits
        page.keyboard.press("Space")
    assert complaints == []
