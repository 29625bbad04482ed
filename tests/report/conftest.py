"""A browser without a window, driven through its DevTools protocol, and runs to report on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from graphmsda.cli import main
from tests.report.runs import CLASSES, train, write_images

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HOW = "no Chromium is installed; on Debian or Ubuntu run `apt-get install chromium`, then these tests run too"

Opening = Callable[..., Any]


@pytest.fixture(scope="module")  # no longer: as long as it lives, no other event loop can run in this thread
def browser() -> Iterator[Any]:
    """A headless Chromium; tests that need one are skipped where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: `pip install playwright`"
    )
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(HOW)
    with playwright.sync_playwright() as driver:
        # Containers and root have no sandbox of the browser's own; the pages are ours.
        opened = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any) -> Opening:
    """``with open_page(path, width=390, dark=True) as page``: a Playwright page, drawn.

    Anything that the page logs as a warning or an error, any script that fails and anything it tries to fetch is an
    error at the end of the block.
    """

    @contextmanager
    def opening(path: Path, *, width: int = 1280, dark: bool = False, scripts: bool = True) -> Iterator[Any]:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
        )
        wrong: list[str] = []
        page = context.new_page()
        page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else wrong.append(asked.url))
        try:
            page.goto(path.resolve().as_uri())
            if scripts:
                page.wait_for_function("document.querySelectorAll('script.live').length === "
                                       "document.querySelectorAll('.is-live .buttons').length")  # fmt: skip
            yield page
            assert wrong == []
        finally:
            context.close()

    return opening


@pytest.fixture(scope="session")
def image_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources and a target of images."""
    folder = tmp_path_factory.mktemp("data")
    for number, name in enumerate(("one", "two", "goal")):
        write_images(folder / f"{name}.npz", 20 * number, CLASSES, seed=number)
    return folder


@pytest.fixture(scope="session")
def image_runs(image_data: Path) -> dict[str, Path]:
    """A run of each kind of method."""
    places = [image_data / "one.npz", image_data / "two.npz"]
    return {
        method: train(image_data, method, places, image_data / "goal.npz") for method in ("mrf", "crf", "source-only")
    }


@pytest.fixture(scope="session")
def image_report(image_runs: dict[str, Path], image_data: Path) -> Path:
    """The report of the MRF run with labels of the target."""
    out = image_data / "report.html"
    assert main(["report", str(image_runs["mrf"]), "-o", str(out), "--data", str(image_data / "goal.npz")]) == 0
    return out
