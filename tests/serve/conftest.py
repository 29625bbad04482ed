"""Small finished runs, pictures of many kinds, and a browser where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from graphmsda.engine.fit import fit
from graphmsda.run import Run
from tests.conftest import QUICK, image_task

pytest.importorskip("fastapi")

NO_BROWSER = "no Chromium is installed; `apt-get install chromium` or your system's package gives one"


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """Train a method once and return the run."""
    found: dict[str, Run] = {}

    def get(method: str) -> Run:
        if method not in found:
            path = tmp_path_factory.mktemp("runs") / method
            found[method] = fit(image_task(), method, out=path, backbone="small", **QUICK)
        return found[method]

    return get


@pytest.fixture(scope="session")
def run(runs: Callable[[str], Run]) -> Run:
    return runs("mrf")


def picture(shade: int = 90, size: tuple[int, int] = (20, 24), kind: str = "PNG", **options: Any) -> bytes:
    """A noisy picture as a file."""
    chance = np.random.default_rng(shade)
    pixels = chance.integers(0, 100, (*size, 3)) + shade
    file = BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, kind, **options)
    return file.getvalue()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of several formats, modes, sizes and orientations."""
    folder = tmp_path_factory.mktemp("pictures")
    turned = Image.Exif()
    turned[0x0112] = 6
    contents = {
        "a.png": picture(20),
        "b.jpg": picture(80, (40, 30), "JPEG"),
        "c.webp": picture(140, (16, 16), "WEBP"),
        "d.bmp": picture(60, (33, 7), "BMP"),
        "e.jpg": picture(100, (48, 64), "JPEG", exif=turned),
        "f.png": picture(10, (300, 200)),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    with Image.open(BytesIO(contents["a.png"])) as image:
        image.convert("RGBA").save(folder / "g.png")
        image.convert("L").save(folder / "h.tif")
        image.convert("I;16").save(folder / "i.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")  # no longer: as long as it lives, no other event loop can run in this thread
def browser() -> Iterator[Any]:
    """Chromium without a window."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip(NO_BROWSER)
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield found
        found.close()
