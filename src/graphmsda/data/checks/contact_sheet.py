"""One picture of many: classes as rows, a few images of each, to see at a glance what a domain holds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from graphmsda.data.images import Unreadable
from graphmsda.files import replacing

COLUMNS = 12
MOST_ROWS = 40
SMALL_TILE, LARGE_TILE, GAP, MARGIN = 64, 96, 4, 16
NAMES_WIDTH = 240
INK, FAINT, GROUND = "#1f2328", "#6a737d", "#ffffff"

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def contact_sheet(
    path: Path,
    title: str,
    classes: Mapping[str, Sequence[int]],
    picture: Callable[[int], Image.Image],
    *,
    columns: int = COLUMNS,
    most_rows: int = MOST_ROWS,
    seed: int = 0,
) -> None:
    """Draw some images of each class and write them as one PNG.

    Args:
        path: The file to write; folders are made.
        title: The heading.
        classes: The items of each class; a class named ``""`` stands for images without labels and fills a block.
        picture: Returns the image of an item, or raises `Unreadable`, whereupon another is taken.
        columns: Images in a row.
        most_rows: Classes shown; of more, as many are shown evenly spread over the list, and the sheet says so.
        seed: Of the choice of images.
    """
    names = list(classes)
    shown = [names[place] for place in np.linspace(0, len(names) - 1, min(len(names), most_rows)).round().astype(int)]
    rows: list[tuple[str, str, list[Image.Image]]] = []
    for name in shown:
        items = classes[name]
        chosen = _sample(items, picture, columns if name else 8 * columns, [seed, names.index(name)])
        if name:
            rows.append((name, f"{len(items):,}", chosen))
        else:
            rows += [("", "", chosen[start : start + columns]) for start in range(0, len(chosen), columns)]
    cut = f"; {len(shown)} of {len(names)} classes shown, evenly spread" if len(shown) < len(names) else ""
    sheet = _draw(title + cut, rows, columns)
    with replacing(path, "choose another --sheets") as beside:
        sheet.save(beside, "PNG")


def _sample(
    items: Sequence[int], picture: Callable[[int], Image.Image], count: int, seed: Sequence[int]
) -> list[Image.Image]:
    order = np.random.default_rng(seed).permutation(len(items))[: 3 * count]  # a class of damaged files alone must end
    found: list[Image.Image] = []
    for place in order:
        if len(found) == count:
            break
        try:
            image = picture(items[place])
        except Unreadable:
            continue
        # Whole photographs in memory would add up.
        image.thumbnail((2 * LARGE_TILE, 2 * LARGE_TILE), reducing_gap=3.0)
        found.append(image)
    return found


def _draw(title: str, rows: Sequence[tuple[str, str, list[Image.Image]]], columns: int) -> Image.Image:
    large, small = _font(18), _font(13)
    sides = [max(image.size) for _, _, images in rows for image in images]
    tile = SMALL_TILE if not sides or statistics.median(sides) <= SMALL_TILE else LARGE_TILE
    names = max((int(max(_width(name, large), _width(count, small))) for name, count, _ in rows), default=0)
    left = MARGIN + (min(names, NAMES_WIDTH) + 12 if names else 0)
    top = MARGIN + 36
    width = max(left + columns * (tile + GAP), int(_width(title, large)) + MARGIN) + MARGIN
    sheet = Image.new("RGB", (width, top + len(rows) * (tile + GAP) + MARGIN), GROUND)
    pen = ImageDraw.Draw(sheet)
    _write(pen, (MARGIN, MARGIN), title, large, INK)
    for number, (name, count, images) in enumerate(rows):
        y = top + number * (tile + GAP)
        _write(pen, (MARGIN, y + tile // 2 - 20), _shortened(name, large), large, INK)
        _write(pen, (MARGIN, y + tile // 2 + 3), count, small, FAINT)
        for column, image in enumerate(images):
            shown = _fitted(image, tile)
            x = left + column * (tile + GAP)
            sheet.paste("#eaeef2", (x, y, x + tile, y + tile))
            sheet.paste(shown, (x + (tile - shown.width) // 2, y + (tile - shown.height) // 2))
    return sheet


def _fitted(image: Image.Image, tile: int) -> Image.Image:
    """Return an image whole, its sides in proportion, as large as a tile allows; few pixels stay visible as squares."""
    scale = tile / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.LANCZOS)


def _font(size: int) -> Font:
    return ImageFont.load_default(size)


def _width(text: str, font: Font) -> float:
    return font.getlength(_drawable(text, font))


def _write(pen: ImageDraw.ImageDraw, place: tuple[int, int], text: str, font: Font, fill: str) -> None:
    pen.text(place, _drawable(text, font), fill=fill, font=font)


def _drawable(text: str, font: Font) -> str:
    # One line, whatever a folder is called; without FreeType there are only the letters of Latin-1.
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if isinstance(font, ImageFont.FreeTypeFont) else text.encode("latin-1", "replace").decode("latin-1")


def _shortened(name: str, font: Font) -> str:
    if _width(name, font) <= NAMES_WIDTH:
        return name
    while name and _width(name + "…", font) > NAMES_WIDTH:
        name = name[:-1]
    return name + "…"
