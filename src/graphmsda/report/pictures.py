"""Figures and images as text inside a page: theme-aware SVG, heat maps, thumbnails."""

from __future__ import annotations

import base64
import html
import io
import itertools
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphmsda.report.parts import Html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NUMBERS = itertools.count()
# What is black or white on paper follows the page's own colours on a screen.
_THEME = (
    (re.compile(r"(stroke|fill): #(?:000000|262626|333333)\b"), r"\1: currentColor"),
    (re.compile(r"(stroke|fill): #e[56][0-9a-f]{4}\b"), r"\1: var(--grid)"),
    (re.compile(r"(stroke|fill): #ffffff\b"), r"\1: var(--paper)"),
    *(
        (re.compile(rf"(stroke|fill): #{colour}\b"), rf"\1: var(--c{number})")
        for number, colour in enumerate(("0072b2", "e69f00", "009e73", "cc79a7", "56b4e9", "d55e00"))
    ),
)


def svg_of(figure: Figure, width: int | None = None) -> Html:
    """Return a matplotlib figure as inline SVG in the page's colours; call it inside of ``figures.style.styled()``.

    Args:
        figure: The figure; its background is left out.
        width: Width in pixels at which it is shown where there is room; by default its own.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    # Several figures in one page may not share the names of their glyphs.
    own = f"f{next(_NUMBERS)}-"
    text = re.sub(r'\bid="', f'id="{own}', text)
    text = re.sub(r'href="#', f'href="#{own}', text)
    text = re.sub(r"url\(#", f"url(#{own}", text)
    for pattern, themed in _THEME:
        text = pattern.sub(themed, text)
    pixels = width or round(96 * figure.get_size_inches()[0])
    text = re.sub(r'^<svg [^>]*?viewBox="([^"]*)"[^>]*>', _opening(pixels), text, count=1, flags=re.DOTALL)
    return Html(re.sub(r">\s+<", "><", text))


def _opening(pixels: int) -> str:
    return rf'<svg xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="\1" style="width:{pixels}px" aria-hidden="true">'


def heat_image(values: NDArray[Any], highest: float = 1.0) -> Html:
    """Return a matrix as an image, a pixel for each value, from clear (0) to strong (`highest`) on any background."""
    from PIL import Image

    share = np.nan_to_num(np.clip(np.asarray(values, dtype=np.float64) / highest, 0, 1))
    pixels = np.zeros((*share.shape, 4), np.uint8)
    pixels[..., :3] = (124, 84, 200)
    pixels[..., 3] = np.round(255 * share)
    return Html(f'<img class="heat" alt="" src="{data_uri(Image.fromarray(pixels, "RGBA"), "PNG")}">')


def image_tag(image: Any, alt: str, *, side: int = 96) -> Html:
    """Return a picture, a uint8 array ``(3, H, W)``, as an image of at most `side` pixels."""
    return Html(f'<img alt="{html.escape(alt)}" src="{data_uri(thumbnail(image, side))}">')


def thumbnail(image: Any, side: int) -> Any:
    """Return a uint8 array ``(3, H, W)`` as a picture whose sides are at most `side`, never larger than it is."""
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(np.asarray(image).transpose(1, 2, 0)))
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    return picture


def data_uri(picture: Any, kind: str = "JPEG") -> str:
    """Return a picture as an address that holds it."""
    file = io.BytesIO()
    picture.save(file, kind, **({"quality": 85} if kind == "JPEG" else {"optimize": True}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
