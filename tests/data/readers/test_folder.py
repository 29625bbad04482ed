import os
import unicodedata
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from graphmsda.data.formats import open_listing
from graphmsda.data.listing import choose_image_size
from graphmsda.data.readers.folder import FolderListing
from graphmsda.errors import UserError


def picture(path, value=128, size=(10, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, value).save(path)
    return path


def error(path, **options):
    with pytest.raises(UserError) as caught:
        open_listing(path, **options)
    return str(caught.value)


def test_labels_are_folder_names_and_the_order_is_fixed(tmp_path):
    for name in ("b/2.png", "b/1.png", "a/z.png", "a/deep/er/1.png", "a/A.png"):
        picture(tmp_path / "place" / name)
    listing = open_listing(tmp_path / "place", labelled=True)
    assert listing.name == "place"
    assert listing.origin == tmp_path / "place"
    relative = [os.path.relpath(name, tmp_path / "place") for name in listing.item_names]
    assert relative == ["a/A.png", "a/deep/er/1.png", "a/z.png", "b/1.png", "b/2.png"]
    assert listing.labels == ("a", "a", "a", "b", "b")
    assert len(listing) == 5


def test_hidden_and_other_files_are_passed_over(tmp_path):
    picture(tmp_path / "a/1.JPEG")
    picture(tmp_path / "b/1.png")
    picture(tmp_path / "b/.hidden.png")
    picture(tmp_path / ".cache/1.png")
    picture(tmp_path / "b/.thumbs/1.png")
    (tmp_path / "README.txt").write_text("hello")
    (tmp_path / "b/Thumbs.db").write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "b/pipe.png")  # opening it would wait for ever
    assert open_listing(tmp_path, labelled=True).labels == ("a", "b")
    assert len(open_listing(tmp_path, labelled=False)) == 2


def test_without_labels_any_arrangement_is_read_and_class_folders_mean_nothing(tmp_path):
    picture(tmp_path / "1.png")
    picture(tmp_path / "cat/2.png")
    picture(tmp_path / "dog/x/3.png")
    listing = open_listing(tmp_path, labelled=False)
    assert listing.labels is None
    assert len(listing) == 3


def test_a_single_image_is_an_unlabelled_listing_of_one(tmp_path):
    path = picture(tmp_path / "one.png", 9)
    listing = open_listing(str(path), labelled=False)
    assert (listing.name, len(listing), listing.labels, listing.item_names) == ("one", 1, None, [str(path)])
    assert (listing.read([0], 4).x == 9).all()
    assert "one.png: a single image has no label" in error(path, labelled=True)


def test_unicode_names(tmp_path):
    picture(tmp_path / "café" / "ß 猫.png", 3)
    picture(tmp_path / unicodedata.normalize("NFD", "señor") / "1.png", 4)
    listing = open_listing(tmp_path, labelled=True)
    assert set(listing.labels) == {"café", "señor"}
    assert listing.read([0, 1], 4).kept == [0, 1]


def test_names_that_are_not_valid_text_can_still_be_printed(tmp_path):
    picture(tmp_path / "a.png")
    try:
        os.rename(tmp_path / "a.png", os.fsencode(tmp_path) + b"/\xff.png")
    except OSError:
        pytest.skip("this file system only takes valid names")
    listing = open_listing(tmp_path, labelled=False)
    listing.item_names[0].encode("utf-8")
    assert listing.read([0], 4).kept == [0]


def test_a_level_of_parts_above_the_classes(tmp_path):
    for name in ("Train/cat/1.png", "Train/dog/2.png", "test/cat/3.png", "val/dog/deep/4.png"):
        picture(tmp_path / name)
    (tmp_path / ".git").mkdir()
    (tmp_path / "README.md").touch()
    listing = open_listing(tmp_path, labelled=True)
    assert listing.labels == ("cat", "dog", "cat", "dog")
    assert listing.parts == ("train", "train", "test", "validation")
    unlabelled = open_listing(tmp_path, labelled=False)
    assert (unlabelled.labels, unlabelled.parts) == (None, listing.parts)
    assert unlabelled.item_names == listing.item_names
    assert unlabelled.identity() == listing.identity()
    test = open_listing(tmp_path, labelled=True, part="test")
    assert (test.labels, test.parts) == (("cat",), ("test",))


def test_an_unlabelled_part_may_have_no_classes(tmp_path):
    picture(tmp_path / "train/1.png")
    picture(tmp_path / "test/2.png")
    assert len(open_listing(tmp_path, labelled=False, part="train")) == 1
    assert f"{tmp_path / 'test'}: its 2 images lie directly in it" in error(tmp_path, labelled=True)
    picture(tmp_path / "train/cat/1.png")
    assert "test/2.png lies beside the class folders" in error(tmp_path, labelled=True)


@pytest.mark.parametrize("names", [("train", "bus", "car"), ("test", "val"), ("training set", "test")])
def test_classes_that_sound_like_parts_are_classes(tmp_path, names):
    for name in names:
        picture(tmp_path / name / "1.png")
    listing = open_listing(tmp_path, labelled=True)
    assert listing.parts is None
    assert set(listing.labels) == set(names)


def test_asking_for_a_part_that_is_not_there(tmp_path):
    picture(tmp_path / "train/cat/1.png")
    assert "has no test part, only train" in error(tmp_path, labelled=True, part="test")


def test_a_level_called_images_is_passed_over(tmp_path):
    picture(tmp_path / "amazon/images/back_pack/1.png")
    picture(tmp_path / "amazon/images/bike/1.png")
    (tmp_path / "amazon/interest_points").mkdir()
    assert open_listing(tmp_path / "amazon", labelled=True).labels == ("back_pack", "bike")
    picture(tmp_path / "both/Images/train/cat/1.png")
    picture(tmp_path / "both/Images/test/dog/1.png")
    listing = open_listing(tmp_path / "both", labelled=True)
    assert (listing.labels, listing.parts) == (("dog", "cat"), ("test", "train"))
    picture(tmp_path / "kinds/images/1.png")
    picture(tmp_path / "kinds/logos/1.png")
    assert open_listing(tmp_path / "kinds", labelled=True).labels == ("images", "logos")


def test_a_very_deep_folder(tmp_path, monkeypatch):
    depth = 1100  # deeper than functions can call themselves
    monkeypatch.chdir(tmp_path)
    try:
        for _ in range(depth):
            os.mkdir("d")
            os.chdir("d")
        Image.new("L", (4, 4)).save("x.png")
        listing = open_listing(tmp_path, labelled=True)
        assert listing.labels == ("d",)
        assert listing.read([0], 4).kept == [0]
    finally:  # pytest could not remove it
        os.remove("x.png")
        for _ in range(depth):
            os.chdir("..")
            os.rmdir("d")


def test_identity_follows_content_and_place_does_not_matter(tmp_path):
    path = picture(tmp_path / "a/x/1.png")
    first = open_listing(tmp_path / "a", labelled=True).identity()
    os.rename(tmp_path / "a", tmp_path / "b")
    assert open_listing(tmp_path / "b", labelled=False).identity() == first
    os.rename(tmp_path / "b", tmp_path / "a")
    os.utime(path, ns=(1, 1))
    assert open_listing(tmp_path / "a", labelled=True).identity() != first


def test_a_link_in_circles_counts_as_unreadable(tmp_path):
    picture(tmp_path / "1.png")
    (tmp_path / "x.png").symlink_to(tmp_path / "x.png")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    decoded = open_listing(tmp_path, labelled=False).read([0, 1], 4)
    assert decoded.kept == [0]
    assert decoded.failures == [(1, "a link that leads in circles")]


def test_links_are_followed_but_loops_end(tmp_path):
    picture(tmp_path / "elsewhere/cats/1.png")
    root = tmp_path / "root"
    picture(root / "dog/1.png")
    (root / "cat").symlink_to(tmp_path / "elsewhere/cats")
    (root / "dog/loop").symlink_to(root / "dog")
    (root / "dog/up").symlink_to(root)
    assert open_listing(root, labelled=True).labels == ("cat", "dog")
    assert len(open_listing(root, labelled=False)) == 2


def test_a_link_to_nowhere_counts_as_unreadable(tmp_path):
    (tmp_path / "gone.png").symlink_to(tmp_path / "nothing.png")
    assert open_listing(tmp_path, labelled=False).read([0], 4).failures == [(0, "file not found")]


def test_errors(tmp_path, monkeypatch):
    assert error(tmp_path / "absent", labelled=True).startswith(f"{tmp_path / 'absent'}: not found")
    (tmp_path / "notes.doc").write_text("x")
    assert "its name does not tell what it is" in error(tmp_path / "notes.doc", labelled=False)
    assert "not a folder" in error(tmp_path / "notes.doc", labelled=False, format="folder")
    for labelled in (True, False):
        empty = tmp_path / "empty"
        empty.mkdir(exist_ok=True)
        assert f"{empty}: no images in it" in error(empty, labelled=labelled)
    picture(tmp_path / "flat/1.png")
    assert "one folder per class" in error(tmp_path / "flat", labelled=True)
    picture(tmp_path / "both/1.png")
    picture(tmp_path / "both/0.png")
    picture(tmp_path / "both/cat/1.png")
    assert "both/0.png lies beside the class folders" in error(tmp_path / "both", labelled=True)

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert "cannot be listed (Permission denied)" in error(tmp_path / "flat", labelled=False)


def test_reading_keeps_the_order_and_tells_failures(tmp_path):
    for number in range(20):
        picture(tmp_path / f"{number:02}.png", number * 10)
    (tmp_path / "03.png").write_bytes(b"")
    (tmp_path / "15.png").write_bytes((tmp_path / "15.png").read_bytes()[:40])
    decoded = open_listing(tmp_path, labelled=False).read([15, 7, 3, 0, 19], 6)
    assert decoded.x.shape == (3, 3, 6, 6)
    assert decoded.x.dtype == torch.uint8
    assert decoded.x[:, 0, 0, 0].tolist() == [70, 0, 190]
    assert decoded.kept == [1, 3, 4]
    assert [position for position, _ in decoded.failures] == [0, 2]
    assert decoded.failures[1][1] == "empty file"


def test_reading_nothing(tmp_path):
    picture(tmp_path / "1.png")
    assert open_listing(tmp_path, labelled=False).read([], 6).x.shape == (0, 3, 6, 6)


def test_large_pictures_below_the_limit_are_read_without_a_warning(tmp_path, monkeypatch):
    picture(tmp_path / "1.png", 5, (30, 30))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600)  # Pillow warns above this and refuses above twice as many
    picture(tmp_path / "2.png", 5, (60, 60))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoded = open_listing(tmp_path, labelled=False).read([0, 1], 4)
    assert decoded.kept == [0]
    assert decoded.failures == [(1, "too many pixels")]


def test_name_of_the_current_folder(tmp_path, monkeypatch):
    picture(tmp_path / "here/1.png")
    monkeypatch.chdir(tmp_path / "here")
    assert open_listing(".", labelled=False).name == "here"


@pytest.mark.parametrize(("sides", "expected"), [((28, 64, 64), 32), ((28, 65, 300), 224)])
def test_image_size_follows_the_median_of_the_smaller_side(tmp_path, sides, expected):
    for number, side in enumerate(sides):
        picture(tmp_path / f"{number}.png", size=(side, side * 3))
    listing = open_listing(tmp_path, labelled=False)
    assert choose_image_size([listing]) == expected
    assert listing.read([0], None).x.shape == (1, 3, expected, expected)


def test_image_size_of_illegible_files_and_of_many(tmp_path):
    (tmp_path / "1.png").write_bytes(b"")
    assert choose_image_size([open_listing(tmp_path, labelled=False)]) == 32
    paths = [picture(tmp_path / "many" / f"{number}.png", size=(4, 4)) for number in range(9)]
    listing = FolderListing("many", tmp_path, None, tuple(paths))
    assert len(listing.sides(4)) == 3
    assert np.mean(listing.sides(100)) == 4
    assert listing.feature_count is None
