"""What all figures share: sizes, colours that survive grey print and colour-blind eyes, and how a file is written."""

from __future__ import annotations

import colorsys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from graphmsda.errors import UserError
from graphmsda.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

KINDS = ("png", "svg", "pdf")
MOST_SQUARES = 100  # rows of a matrix up to which it is drawn square by square
COLUMN, PAGE = 3.5, 7.16  # widths of one and of both columns of a journal, inches
HEAT = ("#ffffff", "#c6d9ec", "#8c96c6", "#88419d", "#3a0038")  # from white to dark: lightness alone tells the value
SIGNS = {"sigma": r"$\sigma$", "tau": r"$\tau$", "alpha": r"$\alpha$", "beta": r"$\beta$",
         "lambda_1": r"$\lambda_1$", "lambda_2": r"$\lambda_2$", "N_neg": r"$N_{neg}$"}  # fmt: skip
# Okabe and Ito's colours in an order in which neighbours differ in lightness; dash and marker tell the lines too.
COLOURS = ("#0072B2", "#E69F00", "#000000", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

_SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "mathtext.fontset": "dejavusans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "figure.facecolor": "white",
    "pdf.fonttype": 42,  # TrueType, embedded: journals refuse the default
    "svg.fonttype": "path",  # outlines: an SVG file cannot count on a font of its reader
    "svg.hashsalt": "graphmsda",  # the same run gives the same file
    "axes.formatter.useoffset": False,
}


def check_out(path: Path) -> str:
    """Return the kind of file that `path` names, refusing what cannot be drawn, before any work is done."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise UserError(f"--out {path}: its ending {path.suffix!r} is no kind of figure; give .png, .svg or .pdf")
    if path.is_dir():
        raise UserError(f"--out {path}: a folder is there; give a file")
    return kind


@contextmanager
def styled() -> Iterator[None]:
    """Draw and save inside of this: the house's look, and nothing left behind for other code that draws."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(
            "figures are drawn with matplotlib, which is not installed; run `pip install 'graphmsda[figures]'`"
        ) from error
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        matplotlib.rcdefaults()  # a user's own matplotlibrc would change sizes that were chosen to fit
        settings: Any = matplotlib.rcParams  # whose type differs between versions
        settings.update(_SETTINGS)
        try:
            yield
        except UserWarning as warning:
            raise UserError("--width: there is no room for all panels and their labels; give more inches") from warning


def new_figure(width: float, height: float, *, square: bool = False) -> Figure:
    """Return an empty figure of a size in inches; no window and no global state belong to it.

    Panels of fixed proportions (`square`) move close together; `fit_height` then takes what they leave over.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="compressed" if square else "constrained")


def fit_height(figure: Figure) -> Figure:
    """Take away or add the height that square panels leave over or lack, and return the figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    for _ in range(3):  # the layout answers to each new height
        figure.draw_without_rendering()
        used = figure.get_tightbbox(canvas.get_renderer())
        width, height = figure.get_size_inches()
        left_over = height - used.height - 0.08
        if abs(left_over) < 0.03:
            break
        figure.set_size_inches(width, height - left_over)
    return figure


def draw_cells(axes: Axes, values: NDArray[Any], highest: float) -> ScalarMappable:
    """Draw a matrix as squares from white (0) to dark (`highest`), its first row at the top; what is missing is grey.

    Small ones are vector graphics; of large ones, files would have millions of squares smaller than a printed dot.
    """
    from matplotlib.colors import LinearSegmentedColormap

    rows, columns = values.shape
    heat: dict[str, Any] = {"vmin": 0, "vmax": highest}
    heat["cmap"] = LinearSegmentedColormap.from_list("heat", list(HEAT)).with_extremes(bad="0.85")
    drawn: ScalarMappable
    if max(rows, columns) > MOST_SQUARES:
        drawn = axes.imshow(values, interpolation="nearest", **heat)
    else:
        edges = [[place - 0.5 for place in range(size + 1)] for size in (columns, rows)]
        # A hair of the same colour around each: viewers show gaps between squares that only touch.
        drawn = axes.pcolormesh(*edges, np.ma.masked_invalid(values), edgecolors="face", linewidth=0.1, **heat)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), aspect="equal")
    axes.grid(False)
    axes.spines[:].set_visible(True)
    return drawn


def save(figure: Figure, path: Path, dpi: float = 300) -> None:
    """Write a figure whole or not at all; its kind is the file's ending, and no date makes two alike differ.

    Args:
        figure: The figure.
        path: The file.
        dpi: Dots to the inch of what consists of dots: a .png, and the matrices inside of other files.
    """
    kind = check_out(path)
    undated: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}[kind]
    with replacing(path) as beside:
        figure.savefig(beside, format=kind, metadata=undated, dpi=dpi)


def line_style(number: int) -> dict[str, Any]:
    """Return colour, dash and marker of the line of a number; each of the three alone tells seven lines apart."""
    place = number % len(COLOURS)
    # From the eighth line on, the dash moves on against the colour, so that pairs differ for 49 lines.
    turn = (place + number // len(COLOURS)) % len(COLOURS)
    return {"color": COLOURS[place], "linestyle": DASHES[turn], "marker": MARKERS[turn]}


def letter(axes: Axes, number: int, title: str = "") -> None:
    """Put (a), (b), ... and a title above a panel."""
    axes.set_title(f"({chr(ord('a') + number)}) {title}".rstrip() if number < 26 else title, loc="left")


def sign(name: str) -> str:
    r"""Return the paper's symbol of a hyper-parameter, or its name.

    >>> sign("lambda_1"), sign("wrong_edges")
    ('$\\lambda_1$', 'wrong edges')
    """
    return SIGNS.get(name, name.replace("_", " "))


def plain(text: str) -> str:
    r"""Return a name such that matplotlib prints it as it stands: a dollar sign would begin mathematics.

    >>> plain("a$b")
    'a\\$b'
    """
    return text.replace("$", r"\$")


def short(name: str, most: int) -> str:
    """Return a name cut to a length.

    >>> short("wristwatch", 6), short("mug", 6)
    ('wrist…', 'mug')
    """
    return name if len(name) <= most else name[: most - 1] + "…"


def hue(number: int, count: int) -> tuple[float, float, float]:
    """Return the colour of a class; neighbouring numbers lie far apart on the circle of hues."""
    step = 3 if count % 3 else 1
    place = (number * step % count) / count
    return colorsys.hsv_to_rgb(place, 0.85, 0.9)


def with_lightness(colour: tuple[float, float, float], lightness: float) -> tuple[float, float, float]:
    """Return a colour mixed with black or white until it has a CIE lightness from 0 to 100.

    Printed in grey, two colours of one lightness are the same and two of different lightness are told apart.

    >>> [round(part, 2) for part in with_lightness((1.0, 0.0, 0.0), 100.0)]
    [1.0, 1.0, 1.0]
    """
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour]
    wanted = ((lightness + 16) / 116) ** 3 if lightness > 8 else lightness / 903.3
    now = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    if now >= wanted:
        linear = [part * wanted / max(now, 1e-9) for part in linear]
    else:
        white = (wanted - now) / (1 - now)
        linear = [part + white * (1 - part) for part in linear]
    red, green, blue = (
        12.92 * part if part <= 0.0031308 else 1.055 * min(1.0, part) ** (1 / 2.4) - 0.055 for part in linear
    )
    return red, green, blue
