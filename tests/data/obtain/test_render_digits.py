import hashlib
import io
import json
import os
import struct
import zipfile

import numpy as np
import pytest
from PIL import Image, ImageFont

from graphmsda.data.benchmarks.digits_five import MARKER, find
from graphmsda.data.formats import open_listing
from graphmsda.data.obtain import fonts as fonts_module
from graphmsda.data.obtain import synthesis
from graphmsda.data.obtain.fonts import find_faces
from graphmsda.data.obtain.render_digits import draw_number, render_digits
from graphmsda.data.obtain.synthesis import Dice
from graphmsda.errors import UserError


@pytest.fixture(scope="session")
def font_bytes():
    font = ImageFont.load_default(32)  # Pillow carries one, so that no font need be installed
    if not isinstance(font, ImageFont.FreeTypeFont) or not getattr(font, "font_bytes", b""):
        pytest.skip("this Pillow carries no scalable font")
    return font.font_bytes


@pytest.fixture
def fonts(tmp_path, font_bytes):
    folder = tmp_path / "fonts" / "deep"
    folder.mkdir(parents=True)
    (folder / "a.ttf").write_bytes(font_bytes)
    return tmp_path / "fonts"


def without_characters(font_bytes):
    """The font with a table of characters that has none, so that each one is drawn as the same box."""
    tables = int.from_bytes(font_bytes[4:6], "big")
    for entry in range(12, 12 + 16 * tables, 16):
        tag, _, start, _ = struct.unpack(">4sIII", font_bytes[entry : entry + 16])
        if tag == b"cmap":  # version, tables; platform, encoding, offset; format 4 with the obligatory last segment
            table = struct.pack(">HHHHI", 0, 1, 3, 1, 12)
            table += struct.pack(">12H", 4, 24, 0, 2, 2, 0, 0, 0xFFFF, 0, 0xFFFF, 1, 0)
            return font_bytes[:start] + table + font_bytes[start + len(table) :]
    raise AssertionError("no such table")


def error(out, **options):
    with pytest.raises(UserError) as caught:
        render_digits(out, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pictures(path):
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".png")]
        return names, np.stack([np.asarray(Image.open(io.BytesIO(archive.read(name)))) for name in names])


def test_what_is_written(tmp_path, fonts):
    done = render_digits(tmp_path / "digits-five" / "syn.zip", fonts=[fonts], train=60, test=30)
    assert (done.train, done.test, done.fonts) == (60, 30, 1)
    assert "fonts with digits: 1, which is little variety" in done.notes[0]
    names, x = pictures(done.path)
    assert x.shape == (90, 32, 32, 3)
    assert x.dtype == np.uint8
    for part, count in (("train", 6), ("test", 3)):
        for digit in range(10):
            assert sum(name.startswith(f"{part}/{digit}/") for name in names) == count
    assert len({picture.tobytes() for picture in x}) == 90
    assert x.std(axis=(1, 2)).max(axis=1).min() > 3  # something is to be seen on each
    assert sorted(path.name for path in (tmp_path / "digits-five").iterdir()) == ["syn.zip"]


def test_the_archive_says_what_it_is(tmp_path, fonts, font_bytes):
    render_digits(tmp_path / "syn.zip", fonts=[fonts], train=10, test=10, seed=7)
    with zipfile.ZipFile(tmp_path / "syn.zip") as archive:
        about = json.loads(archive.read(MARKER))
        readme = archive.read("README.txt").decode()
    assert readme.startswith("Re-synthesised Synthetic Digits: not the published files")
    assert about["seed"] == 7
    assert about["command"] == "graphmsda data render-digits --train 10 --test 10 --seed 7"
    assert about["fonts"][0]["sha256"] == hashlib.sha256(font_bytes).hexdigest()
    assert set(about["versions"]) == {"graphmsda", "pillow", "freetype", "numpy"}


def test_the_reader_of_the_benchmark_takes_it(tmp_path, fonts):
    render_digits(tmp_path / "syn.zip", fonts=[fonts], train=20, test=10)
    assert find(tmp_path, "syn").kind == "archive"
    listing = open_listing(tmp_path / "syn.zip", labelled=True, part="train")
    assert sorted(listing.labels) == sorted("0123456789" * 2)
    assert listing.read([0, 1], 32).x.shape == (2, 3, 32, 32)


def test_the_same_seed_gives_the_same_bytes_however_many_processes_draw(tmp_path, fonts, monkeypatch):
    monkeypatch.setattr(synthesis, "FEW", 0)
    monkeypatch.setattr(synthesis, "CHUNK", 16)
    options = {"fonts": [fonts], "train": 60, "test": 20}
    one = render_digits(tmp_path / "1.zip", processes=1, **options).path.read_bytes()
    assert render_digits(tmp_path / "2.zip", processes=3, **options).path.read_bytes() == one
    assert render_digits(tmp_path / "3.zip", seed=1, **options).path.read_bytes() != one


def test_where_a_font_lies_and_how_often_makes_no_difference(tmp_path, fonts, font_bytes):
    (tmp_path / "z.otf").write_bytes(font_bytes)
    options = {"train": 10, "test": 10}
    one = render_digits(tmp_path / "1.zip", fonts=[fonts], **options).path.read_bytes()
    two = render_digits(tmp_path / "2.zip", fonts=[tmp_path / "z.otf", fonts], **options)
    assert two.fonts == 1
    assert two.path.read_bytes() == one


def test_a_longer_set_begins_with_the_shorter_one(tmp_path, fonts):
    short = pictures(render_digits(tmp_path / "1.zip", fonts=[fonts], train=20, test=10).path)
    long = pictures(render_digits(tmp_path / "2.zip", fonts=[fonts], train=30, test=10).path)
    assert short[0][:20] == long[0][:20]
    assert (short[1][:20] == long[1][:20]).all()
    assert (short[1][20:] == long[1][30:]).all()


def test_training_and_test_pictures_differ(tmp_path, fonts):
    _, x = pictures(render_digits(tmp_path / "1.zip", fonts=[fonts], train=10, test=10).path)
    assert not (x[:10] == x[10:]).all(axis=(1, 2, 3)).any()


def test_the_label_is_the_digit_in_the_middle(fonts):
    (face,), _ = find_faces([fonts])
    for number in range(30):  # with the same random numbers another label changes the middle, and the middle alone
        one, other = (draw_number(Dice(0, "train", number), [face], label).astype(int) for label in (3, 8))
        rows, columns = np.nonzero(np.abs(one - other).sum(axis=2) > 20)
        assert len(rows) > 0
        assert 8 < rows.mean() < 24
        assert 8 < columns.mean() < 24


def test_fonts_without_digits_are_left_out(tmp_path, fonts, font_bytes):
    (fonts / "boxes.ttf").write_bytes(without_characters(font_bytes))
    (fonts / "damaged.ttf").write_bytes(font_bytes[: len(font_bytes) // 3])
    (fonts / "empty.otf").write_bytes(b"")
    (fonts / "notes.txt").write_text("no font")
    done = render_digits(tmp_path / "syn.zip", fonts=[fonts], train=10, test=10)
    assert done.fonts == 1
    assert done.notes[0] == "3 of 4 fonts have no digits of their own and were left out"


def test_no_font_at_all(tmp_path, font_bytes, monkeypatch):
    (tmp_path / "none").mkdir()
    assert "no .ttf, .otf or .ttc files there; give others with --fonts" in error(
        tmp_path / "syn.zip", fonts=[tmp_path / "none"]
    )
    (tmp_path / "none" / "boxes.ttf").write_bytes(without_characters(font_bytes))
    assert "none of the 1 fonts found has the digits 0 to 9" in error(tmp_path / "syn.zip", fonts=[tmp_path / "none"])
    assert "gone: not found" in error(tmp_path / "syn.zip", fonts=[tmp_path / "gone"])
    monkeypatch.setattr(fonts_module, "_system_files", lambda: iter(()))
    assert "no fonts were found on this system; install some" in error(tmp_path / "syn.zip")
    assert not (tmp_path / "syn.zip").exists()


def test_the_fonts_of_the_system_are_found_without_fontconfig(tmp_path, fonts, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    os.rename(fonts, tmp_path / ".fonts")
    assert tmp_path / ".fonts" / "deep" / "a.ttf" in list(fonts_module._system_files())


def test_fonts_of_symbols_are_left_out(fonts):
    (face, vectors) = fonts_module._try(fonts / "deep" / "a.ttf", "x")
    generator = np.random.default_rng(0)
    others = [(face, vectors + 0.01 * generator.standard_normal(vectors.shape)) for _ in range(9)]
    symbols = (fonts_module.Face(face.path, "symbols", "y", 0.7), np.roll(vectors, 3, axis=0))
    assert [one.name for one in fonts_module._alike([*others, symbols])] == [face.name] * 9


def test_arguments_are_checked(tmp_path, fonts):
    assert "--train 9: too few" in error(tmp_path / "syn.zip", fonts=[fonts], train=9)
    assert "--test 0: too few" in error(tmp_path / "syn.zip", fonts=[fonts], test=0)
    assert "--seed -1" in error(tmp_path / "syn.zip", fonts=[fonts], seed=-1)
    assert "give the name of a .zip file" in error(tmp_path / "syn", fonts=[fonts])


def test_only_an_archive_of_its_own_is_replaced(tmp_path, fonts):
    out = tmp_path / "syn.zip"
    out.write_bytes(b"precious")
    assert "is there and was not made by this command" in error(out, fonts=[fonts], train=10, test=10)
    assert out.read_bytes() == b"precious"
    out.unlink()
    options = {"fonts": [fonts], "train": 10, "test": 10}
    first = render_digits(out, **options).path.read_bytes()
    assert render_digits(out, seed=1, **options).path.read_bytes() != first


def test_an_interrupt_leaves_nothing(tmp_path, fonts, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(synthesis, "_drawn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        render_digits(tmp_path / "out" / "syn.zip", fonts=[fonts], train=10, test=10)
    assert list((tmp_path / "out").iterdir()) == []


def test_dice():
    dice = Dice(0, "train", 0)
    values = np.array([dice.uniform(2.0, 3.0) for _ in range(2000)])
    assert 2.0 <= values.min() < 2.01
    assert 2.99 < values.max() < 3.0
    counts = np.bincount([dice.below(7) for _ in range(7000)], minlength=7)
    assert len(counts) == 7
    assert counts.min() > 850
    assert Dice(0, "train", 1).uniform() != Dice(0, "test", 1).uniform()
