"""What can be seen of a page that a browser shows."""

from __future__ import annotations

from typing import Any

NARROW, WIDE = 390, 1280  # a phone and a desktop


def overflow(page: Any) -> int:
    """By how many pixels a page is wider than its window; only tables and figures may scroll, each by itself."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def undrawn(page: Any) -> list[str]:
    """Figures in which nothing can be seen, by their captions."""
    script = """() => [...document.querySelectorAll('figure')].filter((figure) => {
      const shown = [...figure.querySelectorAll('svg, img, .moving')].filter((one) => {
        const box = one.getBoundingClientRect();
        return box.width > 20 && box.height > 20 && getComputedStyle(one).visibility !== 'hidden';
      });
      const broken = [...figure.querySelectorAll('img')].some((image) => !image.complete || !image.naturalWidth);
      return broken || !shown.length;
    }).map((figure) => figure.innerText.slice(0, 80))"""
    found: list[str] = page.evaluate(script)
    return found
