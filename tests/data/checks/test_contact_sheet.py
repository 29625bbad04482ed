import numpy as np
import pytest
from PIL import Image

from graphmsda.data.checks.contact_sheet import contact_sheet
from graphmsda.data.images import Unreadable
from graphmsda.errors import UserError

COLOURS = [(255, 0, 0), (0, 160, 0), (0, 0, 255)]


def coloured(item):
    return Image.new("RGB", (20, 20), COLOURS[item % 3])


def drawn(path, classes, picture=coloured, **options):
    contact_sheet(path, "somewhere", classes, picture, **options)
    with Image.open(path) as sheet:
        return np.asarray(sheet.convert("RGB"))


def count(sheet, colour):
    return int((sheet == colour).all(axis=2).sum())


def test_classes_are_rows_of_images_beside_their_names(tmp_path):
    sheet = drawn(tmp_path / "new/folder/sheet.png", {"red": [0, 3, 6], "green": [1, 4]}, columns=4)
    assert count(sheet, COLOURS[0]) == 3 * 64 * 64
    assert count(sheet, COLOURS[1]) == 2 * 64 * 64
    assert count(sheet, COLOURS[2]) == 0
    red = np.nonzero((sheet == COLOURS[0]).all(axis=2))
    green = np.nonzero((sheet == COLOURS[1]).all(axis=2))
    assert red[0].max() < green[0].min()
    names = sheet[red[0].min() : red[0].max(), : red[1].min() - 5]
    assert (names < 128).any(), "the name stands beside the row"


def test_the_choice_is_seeded(tmp_path):
    classes = {"all": list(range(300))}

    def shade(item):
        return Image.new("RGB", (8, 8), (item % 256, item // 256, 99))

    first = drawn(tmp_path / "1.png", classes, shade, seed=1)
    assert (first == drawn(tmp_path / "2.png", classes, shade, seed=1)).all()
    assert (first != drawn(tmp_path / "3.png", classes, shade, seed=2)).any()


def test_of_many_classes_some_are_shown_and_the_sheet_grows_no_further(tmp_path):
    some = drawn(tmp_path / "some.png", {f"class {number}": [number] for number in range(40)})
    many = drawn(tmp_path / "many.png", {f"class {number}": [number] for number in range(345)})
    assert some.shape[0] == many.shape[0] < 4000


def test_without_labels_images_fill_a_block(tmp_path):
    sheet = drawn(tmp_path / "sheet.png", {"": list(range(0, 300, 3))}, columns=5)
    assert count(sheet, COLOURS[0]) == 40 * 64 * 64


def test_unreadable_images_make_room_for_others(tmp_path):
    def picture(item):
        if item < 5:
            raise Unreadable("truncated")
        return Image.new("RGB", (9, 9), COLOURS[0])

    assert count(drawn(tmp_path / "a.png", {"x": list(range(10))}, picture, columns=4), COLOURS[0]) == 4 * 64 * 64
    assert count(drawn(tmp_path / "b.png", {"x": list(range(5))}, picture, columns=4), COLOURS[0]) == 0


@pytest.mark.parametrize("name", ["猫 и кот", "line\nbreak\x00", "x" * 500, "\ud800"])
def test_any_name_can_be_drawn(tmp_path, name):
    sheet = drawn(tmp_path / "sheet.png", {name: [0]})
    assert count(sheet, COLOURS[0]) == 64 * 64
    assert sheet.shape[1] < 1500


@pytest.mark.parametrize("size", [(1, 1), (3000, 2), (2, 3000), (227, 227)])
def test_images_of_any_shape_fit_their_tile(tmp_path, size):
    sheet = drawn(tmp_path / "sheet.png", {"x": [0]}, lambda item: Image.new("RGB", size, COLOURS[0]))
    rows, columns = np.nonzero((sheet == COLOURS[0]).all(axis=2))
    assert np.ptp(rows) < 96
    assert np.ptp(columns) < 96


def test_a_folder_that_may_not_be_written_is_told_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="in the way"):
        contact_sheet(tmp_path / "file" / "sheet.png", "x", {"x": [0]}, coloured)
