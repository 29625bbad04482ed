import unicodedata

import pytest

from graphmsda.data.readers.layout import arrange, class_name, path_order, printable
from graphmsda.errors import UserError


@pytest.mark.parametrize(
    ("paths", "wrapped", "labels", "parts"),
    [
        (["a/1.png", "b/x/2.png"], False, ("a", "b"), None),
        (["images/a/1.png", "images/b/2.png"], False, ("a", "b"), None),
        (["images/a/1.png", "other/b/2.png"], False, ("images", "other"), None),
        (["TRAIN/a/1.png", "Testing/b/2.png"], False, ("a", "b"), ("train", "test")),
        (["train/a/1.png", "b/2.png"], False, ("train", "b"), None),
        (["test/a/1.png", "val/b/2.png"], False, ("test", "val"), None),
        (["top/a/1.png", "top/b/2.png"], False, ("top", "top"), None),
        (["top/a/1.png", "top/b/2.png"], True, ("a", "b"), None),
        (["a/1.png", "a/2.png"], True, ("a", "a"), None),
        (["train/a/1.png", "train/a/2.png"], True, ("a", "a"), ("train", "train")),
        (["x/images/val/a/1.png", "x/images/train/b/2.png"], True, ("a", "b"), ("validation", "train")),
    ],
)
def test_parts_and_classes(paths, wrapped, labels, parts):
    assert arrange("place", paths, labelled=True, wrapped=wrapped) == (labels, parts)
    assert arrange("place", paths, labelled=False, wrapped=wrapped) == (None, parts)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["1.png", "2.png"], "place: its 2 images lie directly in it"),
        (["images/1.png"], "place/images: its 1 images lie directly in it"),
        (["train/1.png", "test/2.png"], "place/train: its 2 images lie directly in it"),
        (["a/1.png", "2.png"], "place: place/2.png lies beside the class folders"),
        (["train/a/1.png", "test/2.png"], "place: place/test/2.png lies beside the class folders"),
    ],
)
def test_images_outside_class_folders_matter_only_where_classes_do(paths, message):
    with pytest.raises(UserError, match=message):
        arrange("place", paths, labelled=True)
    assert arrange("place", paths, labelled=False)[0] is None


def test_names():
    assert class_name(unicodedata.normalize("NFD", "señor")) == unicodedata.normalize("NFC", "señor")
    assert printable("a\udcff") == "a\ufffd"
    assert sorted(["a b/1", "a/2", "a-c/1"], key=path_order) == ["a/2", "a b/1", "a-c/1"]
