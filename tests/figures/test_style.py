"""What figures share: files, fonts, colours."""

from __future__ import annotations

import itertools
from pathlib import Path

import matplotlib
import pytest

from graphmsda import UserError
from graphmsda.figures import style
from tests.figures.helpers import clashes

BEGINS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def lightness(colour: tuple[float, ...]) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]]
    y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * y ** (1 / 3) - 16


def write(path: Path) -> None:
    with style.styled():
        figure = style.new_figure(2, 2)
        axes = figure.subplots()
        axes.plot([0, 1], [2, 3], **style.line_style(0))
        axes.set_title(rf"{style.sign('tau')} of {style.plain('a$b')}")
        style.save(figure, path)


@pytest.mark.parametrize("kind", style.KINDS)
def test_files_are_of_their_kind_and_the_same_each_time(tmp_path: Path, kind: str) -> None:
    one, two = tmp_path / f"one.{kind}", tmp_path / "deeper" / f"two.{kind}"
    write(one)
    write(two)
    assert one.read_bytes().startswith(BEGINS[kind])
    assert one.read_bytes() == two.read_bytes()
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == [one.name]  # nothing left beside it


def test_fonts_are_embedded(tmp_path: Path) -> None:
    write(tmp_path / "a.pdf")
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    write(tmp_path / "a.svg")
    assert "<text" not in (tmp_path / "a.svg").read_text()


def test_other_code_that_draws_is_left_alone() -> None:
    before = dict(matplotlib.rcParams)
    with style.styled():
        assert matplotlib.rcParams["pdf.fonttype"] == 42
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("name", ["figure.jpg", "figure", "figure.PDF.gz"])
def test_refuses_other_kinds_of_files(name: str) -> None:
    with pytest.raises(UserError, match=r"give \.png, \.svg or \.pdf"):
        style.check_out(Path(name))


def test_refuses_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    with pytest.raises(UserError, match="a folder is there"):
        style.check_out(tmp_path / "a.png")


def test_lines_differ_without_their_colours() -> None:
    looks = [style.line_style(number) for number in range(49)]
    assert len({(look["color"], str(look["linestyle"])) for look in looks}) == 49
    assert len({look["marker"] for look in looks[:7]}) == 7


def test_lightness_is_what_was_asked() -> None:
    for number, wanted in itertools.product(range(10), (20.0, 32.0, 60.0, 85.0)):
        colour = style.with_lightness(style.hue(number, 10), wanted)
        assert lightness(colour) == pytest.approx(wanted, abs=0.1)
        assert all(0 <= part <= 1 for part in colour)
    assert len({style.hue(number, 12) for number in range(12)}) == 12


def test_the_check_for_overlaps_sees_one() -> None:
    with style.styled():
        figure = style.new_figure(2, 2)
        figure.text(0.5, 0.5, "one")
        assert clashes(figure) == []
        figure.text(0.5, 0.51, "two")
        figure.text(0.9, 0.9, "far too long")
        assert len(clashes(figure)) == 2
